//! The queues and their workers against a real Redis.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, its support too")]

#[path = "queue/support.rs"]
mod support;

#[path = "queue/crashes.rs"]
mod crashes;
#[path = "queue/operators.rs"]
mod operators;
#[path = "queue/running.rs"]
mod running;
#[path = "queue/verdicts.rs"]
mod verdicts;
