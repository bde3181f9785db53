//! domain

#[cfg(feature = "io")]
pub mod queue;
