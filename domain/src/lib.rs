//! domain

pub mod demo;
pub mod import;
pub mod label;
pub mod venue;
