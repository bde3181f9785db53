//! What keeps the queues moving and small: due jobs become ready, old history goes. Every worker process runs both, in
//! any number: each step is one bounded script, and an idle round is one call.

use std::{sync::LazyLock, time::Duration};

use redis::Script;

use super::{Queue, QueueError, QueueRedis};

static PROMOTE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("promote.lua")));
static TRIM: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("trim.lua")));

/// Per set and call: 1,000 moves take about 1 ms of Redis's time.
const PROMOTED_PER_CALL_MAX: usize = 1_000;
/// Per call: below what a client notices.
const TRIMMED_PER_CALL_MAX: usize = 500;

/// One round of promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    /// Jobs that became ready.
    pub moved: u64,
    /// More are due already: go on at once.
    pub more: bool,
    /// Until the next delayed job is due, if there is one.
    pub next_due: Option<Duration>,
}

/// How much history to keep per queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Done jobs kept at most.
    pub done_max: usize,
    /// How long a done job is kept at most. Until it goes, its id is known and not enqueued again.
    pub done_for: Duration,
    /// Dead jobs kept at most.
    pub dead_max: usize,
    /// How long a dead job waits for an operator.
    pub dead_for: Duration,
}

impl Default for Retention {
    /// 1,000 done jobs for an hour; 100,000 dead ones for 30 days.
    fn default() -> Self {
        Self {
            done_max: 1_000,
            done_for: Duration::from_secs(3_600),
            dead_max: 100_000,
            dead_for: Duration::from_secs(30 * 24 * 3_600),
        }
    }
}

/// Moves what is due, in every queue: our delayed jobs, and what stands in apalis's own schedule (nothing of ours writes
/// there, but an apalis client might, and 8,000 due entries would stop the queue for ever).
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn promote_due(redis: &QueueRedis) -> Result<Promoted, QueueError> {
    let mut call = PROMOTE.prepare_invoke();
    call.arg(PROMOTED_PER_CALL_MAX);
    for queue in Queue::ALL {
        let keys = redis.keys(queue);
        call.key(keys.delayed_ms()).key(keys.retry_ms()).key(keys.scheduled()).key(keys.active());
        call.arg(keys.wake_channel());
    }
    let (moved, full, wait): (u64, u64, i64) = call.invoke_async(&mut redis.connection()).await?;
    let next_due = u64::try_from(wait).ok().map(Duration::from_millis);
    Ok(Promoted { moved, more: full == 1, next_due })
}

/// Removes one slice of old history per queue. Returns how many jobs went; not 0 means that there may be more.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn trim_history(redis: &QueueRedis, retention: &Retention) -> Result<u64, QueueError> {
    let mut removed = 0;
    for queue in Queue::ALL {
        let keys = redis.keys(queue);
        for (history, keep, keep_for) in [
            (keys.done_ms(), retention.done_max, retention.done_for),
            (keys.dead_ms(), retention.dead_max, retention.dead_for),
        ] {
            let mut call = TRIM.prepare_invoke();
            call.key(history).key(keys.data()).key(keys.meta());
            call.arg(keep).arg(u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX / 4)).arg(TRIMMED_PER_CALL_MAX);
            removed += call.invoke_async::<u64>(&mut redis.connection()).await?;
        }
    }
    Ok(removed)
}
