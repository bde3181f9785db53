//! What a job is to its handler, and what a handler may say about how it went: the verdict.
//!
//! A handler answers in our words only. What becomes of each word (acknowledge, wait, dead list, pause) is decided by
//! `supervisor`, through [`outcome_of`]; a handler that returned apalis's errors would be retried by apalis's fixed rule.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use domain::queue::{JobId, Outcome, Queue};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One delivery of a job to a handler.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Its queue.
    pub queue: Queue,
    /// Its id within the queue.
    pub id: JobId,
    /// What it was enqueued with.
    pub payload: Value,
    /// Which counted attempt this is, from 1.
    pub attempt: u32,
    /// With which attempt it dies.
    pub attempts_max: u32,
    /// How often it has been started, this start included: crashes, give-backs and snoozes too.
    pub starts: u32,
    /// When it was enqueued, in ms since 1970 by Redis's clock.
    pub enqueued_ms: i64,
    /// The worker that runs it: unique per process start and restart.
    pub worker: Arc<str>,
}

impl Delivery {
    /// The payload as the handler's own type.
    ///
    /// # Errors
    /// [`JobError::Never`] if it does not fit: running it again would not change that.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, JobError> {
        T::deserialize(&self.payload).map_err(|error| JobError::never(format!("payload: {error}")))
    }

    /// Whether a further [`JobError::Retry`] sends the job to the dead list.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.attempt >= self.attempts_max
    }
}

/// Runs the jobs of one kind. A job may be delivered again after it has run, and two deliveries may overlap: the effect
/// must be fenced in Postgres. The future may be dropped at any await (lost lease, forced stop).
#[async_trait]
pub trait JobHandler: Send + Sync + 'static {
    /// The kind on the wire, for example `finalize-payment`.
    fn kind(&self) -> &'static str;

    /// Does the work. `Ok` acknowledges it.
    ///
    /// # Errors
    /// The verdict on what should become of the job.
    async fn run(&self, delivery: Delivery) -> Result<(), JobError>;
}

/// The verdict on a job that is not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// It failed and may go better: again after a growing, jittered wait, until its queue's attempts are used up.
    #[error("retry: {reason}")]
    Retry {
        /// Why, for the log and the dead list.
        reason: String,
    },
    /// It is not its time yet. Does not count as an attempt.
    #[error("later: {reason}")]
    Later {
        /// When to start it again.
        when: When,
        /// Why, for the log and the board.
        reason: String,
    },
    /// It can never succeed: to the dead list at once.
    #[error("never: {reason}")]
    Never {
        /// Why, for the dead list.
        reason: String,
    },
    /// The store that the handler needs does not answer. Says nothing about the job: it does not count as an attempt,
    /// and the queue pauses instead of failing job after job.
    #[error("store down: {reason}")]
    StoreDown {
        /// Which store and how, for the log.
        reason: String,
    },
}

/// When to start a job again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// After that time from now.
    After(Duration),
    /// At that time, in ms since 1970.
    AtMs(i64),
}

impl JobError {
    /// See [`JobError::Retry`].
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into() }
    }

    /// See [`JobError::Later`].
    pub fn later(after: Duration, reason: impl Into<String>) -> Self {
        Self::Later { when: When::After(after), reason: reason.into() }
    }

    /// See [`JobError::Later`]; `at_ms` in ms since 1970.
    pub fn later_at_ms(at_ms: i64, reason: impl Into<String>) -> Self {
        Self::Later { when: When::AtMs(at_ms), reason: reason.into() }
    }

    /// See [`JobError::Never`].
    pub fn never(reason: impl Into<String>) -> Self {
        Self::Never { reason: reason.into() }
    }

    /// See [`JobError::StoreDown`].
    pub fn store_down(reason: impl Into<String>) -> Self {
        Self::StoreDown { reason: reason.into() }
    }
}

/// What the queue does with a verdict. `retry_wait` is the wait before the next attempt, `down_wait` the one while a
/// store is down.
#[must_use]
pub fn outcome_of(verdict: Result<(), JobError>, retry_wait: Duration, down_wait: Duration) -> Outcome {
    match verdict {
        Ok(()) => Outcome::Done,
        Err(JobError::Retry { reason }) => Outcome::Retry { wait: retry_wait, reason },
        Err(JobError::Later { when: When::After(wait), reason }) => Outcome::Later { wait, reason },
        Err(JobError::Later { when: When::AtMs(at_ms), reason }) => Outcome::LaterAt { at_ms, reason },
        Err(JobError::Never { reason }) => Outcome::Never { reason },
        Err(JobError::StoreDown { reason }) => Outcome::Later { wait: down_wait, reason },
    }
}
