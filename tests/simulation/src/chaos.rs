//! The judgement of a chaos run: what its clients were told, compared with what Postgres, Redis and the fake provider
//! say once everything has come to rest. It shares no code with the engine: its SQL and its keys are its own.

pub mod books;
pub mod history;
mod picture;
pub mod rest;
pub mod verdict;
