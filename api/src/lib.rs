//! Holdfast's HTTP API: the public listener, and the operators' listener beside it.
//!
//! Handlers only translate: they parse a request once, call one flow of `domain`, and write its result down.

mod answer;
pub mod app;
pub mod auth;
pub mod edge;
pub mod extract;
pub mod idempotency;
mod listener;
pub mod mirror;
pub mod openapi;
pub mod ops;
pub mod problem;
pub mod rate;
pub mod routes;
pub mod serve;
pub mod settings;
pub mod stream;
pub mod wire;

pub use ops::serve_worker_ops;
pub use serve::serve;
pub use settings::{ApiSettings, OpsSettings, ServeError};
