//! The only place that asks for the time and for randomness.
//!
//! Deadlines are compared by Postgres's clock in Postgres and by Redis's in Lua, never by this one (design.md, truth 3).
//! What this one gives is for headers, logs, ids and waiting.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant as Monotonic;

use uuid::Uuid;

use crate::time::{Instant, from_ms, to_ms};

/// Postgres's time as this process knows it, and the offset that tests and the simulation give to both stores' clocks, so
/// that time can be moved. Production never sets the offset.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    offset_ms: AtomicI64,
    /// What Postgres's clock said, without the offset, and when it was heard.
    heard: Mutex<Option<(i64, Monotonic)>>,
}

impl Clock {
    /// Milliseconds to add to a store's own clock.
    #[must_use]
    pub fn offset_ms(&self) -> i64 {
        self.0.offset_ms.load(Ordering::Relaxed)
    }

    /// Moves time for everything that shares this clock. For tests.
    pub fn advance(&self, by_ms: i64) {
        self.0.offset_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    /// Takes note of what Postgres's clock says, given to it with this offset.
    pub fn hear(&self, store: Instant, offset_ms: i64) {
        let heard = (to_ms(store) - offset_ms, Monotonic::now());
        *self.0.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
    }

    /// The time that is told to callers, moved by the offset; never for a deadline. It is Postgres's, by which deadlines
    /// are made: a countdown to one must not depend on the clock of whichever machine answers. Until Postgres has been
    /// heard it is this machine's.
    #[must_use]
    pub fn told_now(&self) -> Instant {
        let heard = *self.0.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = match heard {
            Some((store_ms, at)) => store_ms + i64::try_from(at.elapsed().as_millis()).unwrap_or_default(),
            None => system_ms(),
        };
        from_ms(now_ms + self.offset_ms())
    }
}

/// Milliseconds since some moment of this process: for spans, which a step of the machine's clock must not stretch.
#[must_use]
pub fn monotonic_ms() -> i64 {
    static START: LazyLock<Monotonic> = LazyLock::new(Monotonic::now);
    i64::try_from(START.elapsed().as_millis()).unwrap_or(i64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_told_is_postgress_and_goes_on_from_there() {
        let clock = Clock::default();
        let own = to_ms(clock.told_now());
        assert!((own - system_ms()).abs() < 1_000, "nobody has been heard yet");
        clock.advance(5_000);
        let store = from_ms(system_ms() - 90_000 + 5_000);
        clock.hear(store, 5_000);
        assert!((0..1_000).contains(&(to_ms(clock.told_now()) - to_ms(store))));
        clock.advance(1_000);
        assert!((1_000..2_000).contains(&(to_ms(clock.told_now()) - to_ms(store))));
    }
}
