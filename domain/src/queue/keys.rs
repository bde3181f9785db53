//! The key scheme of the queues. The first group of keys is apalis-redis 1.0's own, byte for byte; the second is ours.

use std::{fmt, str::FromStr, sync::Arc};

use super::Queue;

/// Put before each queue's name, so that several installations (or tests) share one Redis. Empty by default.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueuePrefix(Arc<str>);

impl Default for QueuePrefix {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

/// A prefix that would make keys ambiguous.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a queue prefix has at most 40 characters of a-z, A-Z, 0-9, '-', '_' and '.'; this one is {0:?}")]
pub struct QueuePrefixError(String);

impl QueuePrefix {
    /// Checks a prefix.
    ///
    /// # Errors
    /// `QueuePrefixError` if it is longer than 40 characters or holds others than `a-z A-Z 0-9 - _ .`. A colon above all
    /// would break the names of apalis's channels.
    pub fn new(prefix: &str) -> Result<Self, QueuePrefixError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if prefix.len() > 40 || !prefix.chars().all(allowed) {
            return Err(QueuePrefixError(prefix.to_owned()));
        }
        Ok(Self(Arc::from(prefix)))
    }

    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Ours: prefix of the sets of suspects by process, over all queues; `{prefix}suspects:{process}`.
    pub(crate) fn suspects(&self) -> String {
        format!("{}suspects", self.0)
    }

    pub(crate) fn keys(&self, queue: Queue) -> Keys {
        Keys { q: format!("{}{}", self.0, queue.name()) }
    }
}

impl FromStr for QueuePrefix {
    type Err = QueuePrefixError;

    fn from_str(prefix: &str) -> Result<Self, Self::Err> {
        Self::new(prefix)
    }
}

impl fmt::Display for QueuePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keys of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    q: String,
}

impl Keys {
    /// The queue's name with its prefix: what apalis calls the queue.
    pub(crate) fn name(&self) -> &str {
        &self.q
    }

    /// apalis: hash, job id → envelope.
    pub(crate) fn data(&self) -> String {
        format!("{}:data", self.q)
    }

    /// apalis: prefix of the hashes with a job's state; `{q}:meta:{id}`.
    pub(crate) fn meta(&self) -> String {
        format!("{}:meta", self.q)
    }

    /// apalis: list of ready ids, head first.
    pub(crate) fn active(&self) -> String {
        format!("{}:active", self.q)
    }

    /// apalis: sorted set of ids by second. Nothing of ours writes it; what is found there is moved to `active`.
    pub(crate) fn scheduled(&self) -> String {
        format!("{}:scheduled", self.q)
    }

    /// apalis: prefix of the sets of ids a worker has fetched; `{q}:inflight:{worker}`.
    pub(crate) fn inflight(&self) -> String {
        format!("{}:inflight", self.q)
    }

    /// apalis: sorted set, worker → second of its last heartbeat.
    pub(crate) fn workers(&self) -> String {
        format!("{}:workers", self.q)
    }

    /// apalis: prefix of one hash per worker name; leaks unless the worker's end removes it.
    pub(crate) fn worker_metadata(&self) -> String {
        format!("{}:workers:metadata", self.q)
    }

    /// apalis: the channel on which a push is announced.
    pub(crate) fn wake_channel(&self) -> String {
        format!("tasks:{}:active:available", self.q)
    }

    /// Ours: sorted set of waiting ids by the millisecond at which they are due.
    pub(crate) fn delayed_ms(&self) -> String {
        format!("{}:delayed_ms", self.q)
    }

    /// Ours: sorted set of failed ids by the millisecond of their next attempt.
    pub(crate) fn retry_ms(&self) -> String {
        format!("{}:retry_ms", self.q)
    }

    /// Ours: sorted set of done ids by the millisecond at which they were done.
    pub(crate) fn done_ms(&self) -> String {
        format!("{}:done_ms", self.q)
    }

    /// Ours: sorted set of dead ids by the millisecond at which they died.
    pub(crate) fn dead_ms(&self) -> String {
        format!("{}:dead_ms", self.q)
    }

    /// Ours: hash of counters since the queue exists: `enqueued`, `done`, `retried`, `dead`, `requeued`, `discarded`,
    /// and `day:{days since 1970}` with the jobs that ended on it.
    pub(crate) fn totals(&self) -> String {
        format!("{}:totals", self.q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_would_make_keys_ambiguous_is_refused() {
        for bad in ["a:b", "a b", "{x}", "é", &"x".repeat(41)] {
            assert!(QueuePrefix::new(bad).is_err(), "{bad}");
        }
        assert_eq!(QueuePrefix::new("t-1_x.").unwrap().keys(Queue::WarmUp).active(), "t-1_x.warm-up:active");
        assert_eq!(QueuePrefix::default().keys(Queue::Payments).data(), "payments:data");
    }
}
