//! The queues and their workers against a real Redis.

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
