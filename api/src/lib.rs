//! Holdfast's HTTP API.

pub mod mirror;
