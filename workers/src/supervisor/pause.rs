//! Pausing a queue while the store that its jobs need is down, instead of failing job after job.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use apalis::prelude::WorkerContext;
use tokio::sync::Notify;

const WAIT_MIN_MS: u64 = 250;
const WAIT_MAX_MS: u64 = 5_000;

/// A queue's pause.
#[derive(Debug)]
pub(super) struct Pause {
    asked: Notify,
    wait_ms: AtomicU64,
}

impl Default for Pause {
    fn default() -> Self {
        Self { asked: Notify::new(), wait_ms: AtomicU64::new(WAIT_MIN_MS) }
    }
}

impl Pause {
    /// A job says that its store is down. Returns how long the job should wait: until just after the pause.
    pub(super) fn store_is_down(&self, reason: &str) -> Duration {
        tracing::warn!(reason, "a store is down");
        self.asked.notify_one();
        Duration::from_millis(self.wait_ms.load(Ordering::Acquire))
    }

    /// A job is done, so its stores answer: the next pause is a short one again.
    pub(super) fn store_is_up(&self) -> Duration {
        self.wait_ms.store(WAIT_MIN_MS, Ordering::Release);
        Duration::ZERO
    }

    /// Pauses that worker whenever a job asks for it, each time twice as long until a job is done. Never returns.
    pub(super) async fn keep(&self, worker: &WorkerContext) {
        loop {
            self.asked.notified().await;
            let wait_ms = self.wait_ms.load(Ordering::Acquire);
            // Not running (starting, stopping): there is nothing to pause.
            if worker.pause().is_err() {
                continue;
            }
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            self.wait_ms.store((wait_ms * 2).min(WAIT_MAX_MS), Ordering::Release);
            if worker.resume().is_err() {
                tracing::debug!("the worker was stopped while it paused");
            }
        }
    }
}
