//! The queues in figures. Every figure is a length or a field that Redis keeps: a million done jobs cost the same.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;

use super::{
    Queue, QueueError, QueueRedis,
    connect::{LOOK_LIMIT, answered_within},
};

/// One queue in figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Which queue.
    pub queue: Queue,
    /// Jobs the next free worker takes.
    pub ready: u64,
    /// Jobs that wait for their time.
    pub delayed: u64,
    /// Failed jobs that wait for their next attempt.
    pub retrying: u64,
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
    /// Jobs that ended (done or dead) on each of the last seven days by UTC, today last.
    pub ended_by_day: [u64; 7],
    /// When the last job was done, in ms since 1970.
    pub last_done_ms: Option<i64>,
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
    /// When it started, in seconds since 1970; unknown until its first heartbeat.
    pub started_s: Option<i64>,
    /// Its last sign of life, in seconds since 1970.
    pub last_heartbeat_s: i64,
    /// Jobs it has.
    pub in_flight: u64,
}

type Scored = Vec<(String, f64)>;

/// Clock; ready, delayed, in apalis's schedule, retrying, done, dead; the last done; the workers; totals; the head.
type Lengths = ((i64, i64), u64, u64, u64, u64, u64, u64, Scored, Scored, HashMap<String, u64>, Option<String>);

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
    answered_within(LOOK_LIMIT, read_stats(redis, queue)).await
}

async fn read_stats(redis: &QueueRedis, queue: Queue) -> Result<QueueStats, QueueError> {
    let keys = redis.keys(queue);
    let mut connection = redis.connection();
    let mut pipe = redis::pipe();
    pipe.cmd("TIME");
    pipe.cmd("LLEN").arg(keys.active());
    for set in [keys.delayed_ms(), keys.scheduled(), keys.retry_ms(), keys.done_ms(), keys.dead_ms()] {
        pipe.cmd("ZCARD").arg(set);
    }
    pipe.cmd("ZREVRANGE").arg(keys.done_ms()).arg(0).arg(0).arg("WITHSCORES");
    pipe.cmd("ZRANGE").arg(keys.workers()).arg(0).arg(-1).arg("WITHSCORES");
    pipe.cmd("HGETALL").arg(keys.totals());
    pipe.cmd("LINDEX").arg(keys.active()).arg(0);
    let (clock, ready, delayed, scheduled, retrying, done, dead, last_done, workers, totals, head): Lengths =
        pipe.query_async(&mut connection).await?;
    let mut pipe = redis::pipe();
    pipe.cmd("HGET").arg(format!("{}:{}", keys.meta(), head.as_deref().unwrap_or(""))).arg("ready_ms");
    for (name, _) in &workers {
        pipe.cmd("SCARD").arg(format!("{}:{name}", keys.inflight()));
        pipe.cmd("HGET").arg(format!("{}:{name}", keys.worker_metadata())).arg("started_s");
    }
    let answers: Vec<Option<i64>> = pipe.query_async(&mut connection).await?;
    let (ready_ms, of_workers) = answers.split_first().map_or((None, &[][..]), |(first, rest)| (*first, rest));
    let now_ms = clock.0 * 1_000 + clock.1 / 1_000;
    let workers: Vec<WorkerStats> = workers
        .into_iter()
        .zip(of_workers.chunks_exact(2))
        .map(|((name, beat), answer)| WorkerStats {
            name,
            started_s: answer[1],
            last_heartbeat_s: whole(beat),
            in_flight: answer[0].and_then(|count| u64::try_from(count).ok()).unwrap_or_default(),
        })
        .collect();
    let total = |field: &str| totals.get(field).copied().unwrap_or_default();
    let today = clock.0 / 86_400;
    Ok(QueueStats {
        queue,
        ready,
        delayed: delayed + scheduled,
        retrying,
        in_flight: workers.iter().map(|worker| worker.in_flight).sum(),
        done,
        dead,
        oldest_ready_age_ms: ready_ms.map(|ready_ms| u64::try_from(now_ms - ready_ms).unwrap_or_default()),
        workers,
        totals: QueueTotals {
            enqueued: total("enqueued"),
            done: total("done"),
            retried: total("retried"),
            dead: total("dead"),
        },
        ended_by_day: [6, 5, 4, 3, 2, 1, 0].map(|ago| total(&format!("day:{}", today - ago))),
        last_done_ms: last_done.first().map(|(_, at_ms)| whole(*at_ms)),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "a score that is a whole number of seconds or ms")]
fn whole(score: f64) -> i64 {
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
