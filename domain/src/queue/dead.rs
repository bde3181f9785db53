//! The dead list: jobs that failed for good wait there for an operator.

use std::sync::LazyLock;

use redis::Script;

use super::{
    Queue, QueueError, QueueRedis,
    connect::{LOOK_LIMIT, answered_within},
    jobs::{JobPage, JobState, list_jobs},
};

static DEAD: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("dead.lua")));

/// A page of a queue's dead jobs, latest first, at most [`super::PAGE_MAX`].
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn list_dead(redis: &QueueRedis, queue: Queue, offset: usize, limit: usize) -> Result<JobPage, QueueError> {
    list_jobs(redis, queue, JobState::Dead, offset, limit).await
}

/// Puts a dead job back into its queue with all its attempts. `false` if no such job is dead.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn requeue_dead(redis: &QueueRedis, queue: Queue, id: &str) -> Result<bool, QueueError> {
    take_off(redis, queue, id, "requeue").await
}

/// Forgets a dead job. `false` if no such job is dead.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn discard_dead(redis: &QueueRedis, queue: Queue, id: &str) -> Result<bool, QueueError> {
    take_off(redis, queue, id, "discard").await
}

async fn take_off(redis: &QueueRedis, queue: Queue, id: &str, what: &str) -> Result<bool, QueueError> {
    let keys = redis.keys(queue);
    let mut call = DEAD.prepare_invoke();
    call.key(keys.dead_ms()).key(keys.data()).key(format!("{}:{id}", keys.meta()));
    call.key(keys.active()).key(keys.totals());
    call.arg(id).arg(what).arg(keys.wake_channel());
    let mut connection = redis.connection();
    let taken = async { Ok(call.invoke_async::<u32>(&mut connection).await?) };
    Ok(answered_within(LOOK_LIMIT, taken).await? == 1)
}
