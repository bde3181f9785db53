//! Breaks the engine by a seed, and proves that nothing was lost.

pub mod chaos;
pub mod conform;
pub mod model;
pub mod mutations;
pub mod proxy;
