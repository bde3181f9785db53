//! The queues in figures. Every figure is a length or a field that Redis keeps: a million done jobs cost the same.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;

use super::{Queue, QueueError, QueueRedis};

/// One queue in figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Which queue.
    pub queue: Queue,
    /// Jobs the next free worker takes.
    pub ready: u64,
    /// Jobs that wait for their time or for a retry.
    pub delayed: u64,
    /// Jobs that workers have.
    pub in_flight: u64,
    /// Done jobs still kept.
    pub done: u64,
    /// Jobs in the dead list.
    pub dead: u64,
    /// Since when the job at the head has been ready, in ms; `None` if none is.
    pub oldest_ready_age_ms: Option<u64>,
    /// The workers that are registered.
    pub workers: Vec<WorkerStats>,
    /// Counted since this Redis has the queue.
    pub totals: QueueTotals,
}

/// Counts since the queue exists in this Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct QueueTotals {
    /// Jobs enqueued.
    pub enqueued: u64,
    /// Jobs done.
    pub done: u64,
    /// Failures that were put off to another attempt.
    pub retried: u64,
    /// Jobs that came to the dead list.
    pub dead: u64,
}

/// One worker of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerStats {
    /// Its name, unique per process start and restart.
    pub name: String,
    /// Its last sign of life, in seconds since 1970.
    pub last_heartbeat_s: i64,
    /// Jobs it has.
    pub in_flight: u64,
}

/// What a queue holds outside of the workers: lengths, clock, workers, totals, the head of the line.
type Lengths = ((i64, i64), u64, u64, u64, u64, u64, Vec<(String, f64)>, HashMap<String, u64>, Option<String>);

/// The figures of every queue, in two round trips per queue.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn queue_stats(redis: &QueueRedis) -> Result<Vec<QueueStats>, QueueError> {
    let mut all = Vec::with_capacity(Queue::ALL.len());
    for queue in Queue::ALL {
        all.push(stats_of(redis, queue).await?);
    }
    Ok(all)
}

/// The figures of one queue.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn stats_of(redis: &QueueRedis, queue: Queue) -> Result<QueueStats, QueueError> {
    let keys = redis.keys(queue);
    let mut connection = redis.connection();
    let (clock, ready, delayed, scheduled, done, dead, workers, totals, head): Lengths = redis::pipe()
        .cmd("TIME")
        .cmd("LLEN")
        .arg(keys.active())
        .cmd("ZCARD")
        .arg(keys.delayed_ms())
        .cmd("ZCARD")
        .arg(keys.scheduled())
        .cmd("ZCARD")
        .arg(keys.done_ms())
        .cmd("ZCARD")
        .arg(keys.dead_ms())
        .cmd("ZRANGE")
        .arg(keys.workers())
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES")
        .cmd("HGETALL")
        .arg(keys.totals())
        .cmd("LINDEX")
        .arg(keys.active())
        .arg(0)
        .query_async(&mut connection)
        .await?;
    let mut pipe = redis::pipe();
    pipe.cmd("HGET").arg(format!("{}:{}", keys.meta(), head.as_deref().unwrap_or(""))).arg("ready_ms");
    for (name, _) in &workers {
        pipe.cmd("SCARD").arg(format!("{}:{name}", keys.inflight()));
    }
    let answers: Vec<Option<i64>> = pipe.query_async(&mut connection).await?;
    let now_ms = clock.0 * 1_000 + clock.1 / 1_000;
    let workers: Vec<WorkerStats> = workers
        .into_iter()
        .zip(answers.iter().skip(1))
        .map(|((name, beat), in_flight)| WorkerStats {
            name,
            last_heartbeat_s: whole_seconds(beat),
            in_flight: in_flight.and_then(|count| u64::try_from(count).ok()).unwrap_or_default(),
        })
        .collect();
    let total = |field: &str| totals.get(field).copied().unwrap_or_default();
    Ok(QueueStats {
        queue,
        ready,
        delayed: delayed + scheduled,
        in_flight: workers.iter().map(|worker| worker.in_flight).sum(),
        done,
        dead,
        oldest_ready_age_ms: answers
            .first()
            .copied()
            .flatten()
            .map(|ready_ms| u64::try_from(now_ms - ready_ms).unwrap_or_default()),
        workers,
        totals: QueueTotals {
            enqueued: total("enqueued"),
            done: total("done"),
            retried: total("retried"),
            dead: total("dead"),
        },
    })
}

#[expect(clippy::cast_possible_truncation, reason = "a score that apalis writes as whole seconds since 1970")]
fn whole_seconds(score: f64) -> i64 {
    score as i64
}

/// Sets the gauges `holdfast_queue_depth{queue,state}`, `holdfast_queue_oldest_ready_seconds{queue}` and
/// `holdfast_queue_workers{queue}` from the figures.
#[expect(clippy::cast_precision_loss, reason = "a gauge is an f64; a queue of 2^52 jobs does not fit into memory")]
pub fn record_queue_gauges(all: &[QueueStats]) {
    for stats in all {
        let queue = stats.queue.name();
        for (state, count) in
            [("ready", stats.ready), ("delayed", stats.delayed), ("in-flight", stats.in_flight), ("dead", stats.dead)]
        {
            metrics::gauge!("holdfast_queue_depth", "queue" => queue, "state" => state).set(count as f64);
        }
        let age = Duration::from_millis(stats.oldest_ready_age_ms.unwrap_or_default());
        metrics::gauge!("holdfast_queue_oldest_ready_seconds", "queue" => queue).set(age.as_secs_f64());
        metrics::gauge!("holdfast_queue_workers", "queue" => queue).set(stats.workers.len() as f64);
    }
}
