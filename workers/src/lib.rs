//! workers

pub mod outcome;
pub mod supervisor;
