//! Holdfast's HTTP API: the public listener, and the operators' listener beside it.
//!
//! Handlers only translate: they parse a request once, call one flow of `domain`, and write its result down.

pub mod auth;
pub mod edge;
pub mod extract;
pub mod idempotency;
pub mod ops;
pub mod problem;
pub mod rate;
pub mod wire;
