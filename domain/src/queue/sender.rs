//! Enqueueing.

use std::{fmt, sync::LazyLock, time::Duration};

use redis::Script;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Queue, QueueError, QueueRedis, connect::answered_within, envelope::envelope_start};

/// One script call blocks Redis for all: 500 jobs take about 4 ms.
const JOBS_PER_CALL_MAX: usize = 500;

/// How long one call may take: what is not enqueued in that time is pushed again from the outbox.
const CALL_LIMIT: Duration = Duration::from_secs(2);

static ENQUEUE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("enqueue.lua")));

/// A job's id within its queue: 1 to 100 characters of `a-z A-Z 0-9 - _ .`, the first a letter. It is the job's
/// idempotency key: while Redis knows a job of that id (waiting, running, dead, or done and not yet trimmed), another
/// enqueue changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

/// A text that cannot be a job's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a job id: {0:?}; it has 1 to 100 characters of a-z A-Z 0-9 - _ ., starts with a letter and is no ULID or UUID"
)]
pub struct JobIdError(String);

impl JobId {
    /// `{prefix}-{id}`, for example `pay-0192…`. A job about one row carries the row's id, so that the same work has the
    /// same id wherever it is enqueued from.
    #[must_use]
    pub fn new(prefix: &'static str, id: Uuid) -> Self {
        debug_assert!(
            prefix.starts_with(|c: char| c.is_ascii_lowercase()),
            "the prefix keeps apalis from reading a UUID"
        );
        Self(format!("{prefix}-{id}"))
    }

    /// Checks a text.
    ///
    /// # Errors
    /// `JobIdError` if it breaks the rule of the type. Bare numbers, ULIDs and UUIDs are refused because apalis rewrites
    /// them (`0042` to `42`, lower case to upper) and its worker then dies of a job it cannot find in flight.
    pub fn parse(text: &str) -> Result<Self, JobIdError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let shape = (1..=100).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(allowed);
        if !shape || Uuid::parse_str(text).is_ok() || ulid::Ulid::from_string(text).is_ok() {
            return Err(JobIdError(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for JobId {
    type Error = JobIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.0
    }
}

/// What to do with a job whose id is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Nothing, as long as Redis remembers it. For work that is done once.
    Never,
    /// Run it again if it is done; nothing while it waits, runs or is dead. For work that recurs under one id, such as
    /// the expiry of a reservation whose deadline has moved. A request that arrives while the job runs is dropped: the
    /// caller must be one that asks again.
    AfterDone,
}

/// A job to enqueue.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Where it goes.
    pub queue: Queue,
    /// Its id and idempotency key within the queue.
    pub id: JobId,
    /// Which handler runs it, for example `finalize-payment`. On the wire: never change one.
    pub kind: &'static str,
    /// What the handler gets. Ids rather than copies of rows.
    pub payload: Value,
    /// The earliest start in ms since 1970 by Redis's clock; `None` = at once.
    pub not_before_ms: Option<i64>,
    /// What to do if the id is known.
    pub repeat: Repeat,
}

impl NewJob {
    /// A job that runs at once, and once per id.
    #[must_use]
    pub fn new(queue: Queue, id: JobId, kind: &'static str, payload: Value) -> Self {
        Self { queue, id, kind, payload, not_before_ms: None, repeat: Repeat::Never }
    }

    /// Not before that time, in ms since 1970.
    #[must_use]
    pub fn not_before_ms(mut self, at_ms: i64) -> Self {
        self.not_before_ms = Some(at_ms);
        self
    }

    /// Run again if a job of that id is done.
    #[must_use]
    pub fn again_after_done(mut self) -> Self {
        self.repeat = Repeat::AfterDone;
        self
    }
}

/// What an enqueue did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enqueued {
    /// Jobs that were added.
    pub added: u64,
    /// Jobs whose id was known: nothing changed for them.
    pub known: u64,
}

/// The enqueueing side. Cheap to clone; the clones share one connection, so many callers are pipelined.
#[derive(Debug, Clone)]
pub struct JobSender {
    redis: QueueRedis,
}

impl JobSender {
    /// A sender over that connection.
    #[must_use]
    pub fn new(redis: QueueRedis) -> Self {
        Self { redis }
    }

    /// The connection it uses.
    #[must_use]
    pub fn redis(&self) -> &QueueRedis {
        &self.redis
    }

    /// Enqueues the jobs and wakes a worker. Repeatable: what is known stays as it is. Jobs of one queue keep their
    /// order. In calls of at most 500 jobs, so a failure may leave the first part enqueued: call again.
    ///
    /// # Errors
    /// `QueueError` if Redis does not answer within 2 s or refuses (out of memory, read-only replica).
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Enqueued, QueueError> {
        let mut total = Enqueued::default();
        for queue in Queue::ALL {
            let of_queue: Vec<&NewJob> = jobs.iter().filter(|job| job.queue == queue).collect();
            for chunk in of_queue.chunks(JOBS_PER_CALL_MAX) {
                let (added, known) = answered_within(CALL_LIMIT, self.enqueue_chunk(queue, chunk)).await?;
                total.added += added;
                total.known += known;
            }
        }
        Ok(total)
    }

    /// How many jobs of a queue wait for a worker, all due.
    ///
    /// # Errors
    /// `QueueError` if Redis does not answer within 2 s.
    pub async fn count_waiting(&self, queue: Queue) -> Result<u64, QueueError> {
        let active = self.redis.keys(queue).active();
        let mut connection = self.redis.connection();
        let count = async { Ok(redis::cmd("LLEN").arg(active).query_async(&mut connection).await?) };
        answered_within(CALL_LIMIT, count).await
    }

    async fn enqueue_chunk(&self, queue: Queue, jobs: &[&NewJob]) -> Result<(u64, u64), QueueError> {
        let keys = self.redis.keys(queue);
        let mut call = ENQUEUE.prepare_invoke();
        call.key(keys.data()).key(keys.meta()).key(keys.active());
        call.key(keys.delayed_ms()).key(keys.done_ms()).key(keys.totals());
        call.arg(keys.wake_channel());
        for job in jobs {
            let repeat = match job.repeat {
                Repeat::Never => "never",
                Repeat::AfterDone => "after_done",
            };
            let due = job.not_before_ms.map(|at| at.to_string()).unwrap_or_default();
            call.arg(job.id.as_str()).arg(job.kind).arg(envelope_start(job)).arg(due).arg(repeat);
        }
        Ok(call.invoke_async(&mut self.redis.connection()).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_apalis_would_rewrite_is_refused() {
        for bad in [
            "",
            "0042",
            "42",
            "01J9ZQ2V6Y8XK3M4N5P6Q7R8S9",
            "01j9zq2v6y8xk3m4n5p6q7r8s9",
            "a0e0c3f2-7c1b-4d6f-9d6e-0a1b2c3d4e5f",
            "a0e0c3f27c1b4d6f9d6e0a1b2c3d4e5f",
            "a:b",
            "a b",
            "é",
        ] {
            assert!(JobId::parse(bad).is_err(), "{bad}");
        }
        for good in ["pay-0192f0c1-2345-7abc-8def-0123456789ab", "expire-1.g2", "A"] {
            let id = JobId::parse(good).unwrap();
            let task: apalis_core::task::task_id::TaskId = id.as_str().parse().unwrap();
            assert_eq!(task.to_string(), good);
        }
    }
}
