//! The tests that need real stores: one binary, a module for each subject.

#![cfg(test)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, its support too")]

mod board;
mod harness;
mod attacks;
