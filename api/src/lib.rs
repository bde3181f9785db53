//! Holdfast's HTTP API: the public listener, and the operators' listener beside it.
//!
//! Handlers only translate: they parse a request once, call one flow of `domain`, and write its result down.

pub mod clock;
pub mod edge;
pub mod extract;
pub mod problem;
pub mod wire;
