//! The operators' listener.

pub mod board;
