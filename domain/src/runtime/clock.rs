//! The only place that asks for the time and for randomness.
//!
//! Deadlines are compared by Postgres's clock in Postgres and by Redis's in Lua, never by this one (design.md, truth 3).
//! What this one gives is for headers, logs, ids and waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use uuid::Uuid;

use crate::time::{Instant, from_ms};

/// The offset that tests and the simulation give to both stores' clocks, so that time can be moved. Production never
/// sets it.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// Milliseconds to add to a store's own clock.
    #[must_use]
    pub fn offset_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Moves time for everything that shares this clock. For tests.
    pub fn advance(&self, by_ms: i64) {
        self.0.fetch_add(by_ms, Ordering::Relaxed);
    }

    /// This process's time, moved by the offset: for headers and logs, never for a deadline.
    #[must_use]
    pub fn process_now(&self) -> Instant {
        from_ms(system_ms() + self.offset_ms())
    }
}

/// Milliseconds since the epoch by this machine's clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place that asks")]
pub fn system_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

/// A new id: UUID v7, so that rows made together stand together.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place that makes ids")]
pub fn new_uuid() -> Uuid {
    Uuid::now_v7()
}

/// 32 random bytes from the operating system, for secrets.
#[must_use]
pub fn random_secret() -> [u8; 32] {
    rand::random()
}
