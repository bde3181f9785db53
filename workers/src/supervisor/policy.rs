//! The rules of each queue: how many at once, how long, how often, and how long between.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use domain::queue::{Lease, Queue};

/// The rules of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Jobs that one worker runs at once.
    pub concurrency: usize,
    /// With which counted attempt a job that keeps failing is dead.
    pub attempts_max: u32,
    /// With how many starts that ended with their process a job is dead. Low: each of them took its neighbours along.
    pub crashes_max: u32,
    /// How long one run may take; then it is dropped and counts as failed.
    pub run_limit: Duration,
    /// The wait after the first failure; it doubles.
    pub retry_base: Duration,
    /// The longest wait.
    pub retry_cap: Duration,
    /// How long a silent worker keeps its jobs.
    pub lease: Lease,
    /// How long a stopping worker waits for what runs, before it gives it back.
    pub stop_limit: Duration,
}

impl QueuePolicy {
    /// The rules of that queue in production.
    #[must_use]
    pub fn of(queue: Queue) -> Self {
        let (concurrency, attempts_max, run_limit_s, retry_base_ms, retry_cap_s) = match queue {
            // A provider may be away for a while; the payment window ends it earlier than the attempts do.
            Queue::Payments => (32, 25, 60, 250, 60),
            // A job is up to 500 reservations: more at once only make each other, and holds, wait.
            Queue::Expiries => (16, 25, 20, 100, 30),
            // One job writes a whole venue: 200,000 seats.
            Queue::Events => (2, 10, 1_800, 1_000, 60),
            Queue::WarmUp => (1, 10, 3_600, 1_000, 60),
        };
        Self {
            concurrency,
            attempts_max,
            crashes_max: 5,
            run_limit: Duration::from_secs(run_limit_s),
            retry_base: Duration::from_millis(retry_base_ms),
            retry_cap: Duration::from_secs(retry_cap_s),
            lease: Lease::default(),
            stop_limit: Duration::from_secs(20),
        }
    }

    /// The wait before the attempt after `attempt`: doubled each time up to the cap, of which between a half and the
    /// whole. The job's id decides how much, so that jobs that failed together do not come back together.
    #[must_use]
    pub fn retry_wait(&self, id: &str, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(30);
        let whole = self.retry_base.saturating_mul(1 << doublings).min(self.retry_cap);
        let mut hasher = DefaultHasher::new();
        (id, attempt).hash(&mut hasher);
        let share = u32::try_from(hasher.finish() % 1_000).unwrap_or_default();
        whole / 2 + whole * share / 2_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_up_to_its_cap_and_is_spread() {
        let policy = QueuePolicy::of(Queue::Payments);
        for attempt in 1..=40 {
            let whole = (policy.retry_base * 2u32.pow((attempt - 1).min(20))).min(policy.retry_cap);
            let waits: Vec<_> = (0..50).map(|n| policy.retry_wait(&format!("pay-{n}"), attempt)).collect();
            assert!(waits.iter().all(|wait| *wait >= whole / 2 && *wait <= whole), "attempt {attempt}: {waits:?}");
            let distinct: std::collections::HashSet<_> = waits.iter().collect();
            assert!(distinct.len() > 25, "attempt {attempt} is not spread");
        }
    }
}
