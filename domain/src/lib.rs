//! domain

pub mod label;
pub mod venue;
