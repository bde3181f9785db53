//! domain

pub mod import;
pub mod label;
pub mod venue;
