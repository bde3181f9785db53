//! The stores: Postgres owns ownership, Redis is the fast gate, the timer, the queue and the picture.

pub mod pg;
pub mod redis;
