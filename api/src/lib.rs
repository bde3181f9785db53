//! api

pub mod ops;
