//! workers

pub mod outcome;
