//! Tests against real services, one module per subject.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, its support too")]

mod board;
