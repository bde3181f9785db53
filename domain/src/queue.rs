//! The queues: apalis on Redis, and everything around it that apalis-redis 1.0 leaves out.
//!
//! apalis drives the workers and fetches through its `RedisStorage`. Around that stand our own enqueueing (deduplicated
//! by id, wakes an idle worker), acknowledgement (one script per outcome, fenced by the worker's lease), delays in
//! milliseconds, bounded history, dead list and figures. A job is delivered at least once and two deliveries may overlap:
//! the effect of a job must be idempotent in Postgres. A loss of Redis is repaired by pushing the open outbox rows again.
//!
//! Reading order: [`Queue`] and [`QueuePrefix`] name things, [`JobSender`] enqueues, [`JobSource`] and [`Deliveries`] are
//! the worker's side, [`promote_due`] and [`trim_history`] keep the queues moving and small, [`list_dead`] and
//! [`queue_stats`] are for operators.

use std::fmt;

use serde::{Deserialize, Serialize};

mod board;
mod connect;
mod dead;
mod deliveries;
mod envelope;
mod jobs;
mod keys;
mod sender;
mod source;
mod stats;
mod tend;

pub use board::{OpsView, OpsViewError};
pub use connect::{QueueRedis, QueueRedisError};
pub use dead::{discard_dead, list_dead, requeue_dead};
pub use deliveries::{Begun, Company, Deliveries, Outcome, Released, Settled};
pub use envelope::{Envelope, OpenEnvelopeError};
pub use jobs::{JobPage, JobState, JobView, PAGE_MAX, list_jobs, lost_jobs, read_job, read_jobs};
pub use keys::{QueuePrefix, QueuePrefixError};
pub use sender::{Enqueued, JobId, JobIdError, JobSender, NewJob, Repeat};
pub use source::{JobSource, Lease, Slot, Slots};
pub use stats::{QueueStats, QueueTotals, WorkerStats, queue_stats, record_queue_gauges, stats_of};
pub use tend::{Promoted, Retention, promote_due, trim_history};

/// A named queue. The wire names are part of what is stored in Redis and outlive every type: never change one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// `finalize-payment` jobs: authorise, commit the seats, capture, confirm.
    Payments,
    /// `expire-reservation` jobs: cancel a reservation whose deadline has passed.
    Expiries,
    /// `open-event` and `close-event` jobs: write or remove an event's buckets and lists.
    Events,
    /// `warm-up` jobs: rebuild Redis from Postgres.
    WarmUp,
}

impl Queue {
    /// Every queue, in the order in which operators see them.
    pub const ALL: [Self; 4] = [Self::Payments, Self::Expiries, Self::Events, Self::WarmUp];

    /// The name on the wire and in settings, without prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payments => "payments",
            Self::Expiries => "expiries",
            Self::Events => "events",
            Self::WarmUp => "warm-up",
        }
    }

    /// The queue of that wire name, without prefix.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|queue| queue.name() == name)
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a call to the queues' Redis failed. Nothing else can go wrong once the arguments have their types.
#[derive(Debug, thiserror::Error)]
#[error("the queues' Redis did not answer")]
pub struct QueueError(#[from] redis::RedisError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_names_of_the_queues_are_frozen() {
        let names: Vec<_> = Queue::ALL.iter().map(|queue| queue.name()).collect();
        assert_eq!(names, ["payments", "expiries", "events", "warm-up"]);
        for queue in Queue::ALL {
            assert_eq!(Queue::parse(queue.name()), Some(queue));
            assert_eq!(serde_json::to_value(queue).unwrap(), queue.name());
        }
        assert_eq!(Queue::parse("Payments"), None);
    }
}
