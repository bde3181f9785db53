//! The tests that need real stores: one binary, a module for each subject.

#![cfg(test)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, its support too")]

mod board;
mod crashes;
mod deadlines;
mod expiry;
mod harness;
mod holds;
mod idempotency;
mod layout;
mod limits;
mod names;
mod payments;
mod races;
mod redis_gone;
mod redis_servers;
mod warm_up;
mod workers;
