//! The tests that need real stores: one binary, a module for each subject.

#![cfg(test)]

mod attacks;
mod board;
mod crashes;
mod deadlines;
mod expiry;
mod harness;
mod holds;
mod http;
mod idempotency;
mod layout;
mod limits;
mod mirror;
mod names;
mod payments;
mod races;
mod redis_gone;
mod warm_up;
