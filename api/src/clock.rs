//! The process's own clock, for what a caller is told and never for who owns a seat.

use chrono::{DateTime, Utc};

/// Now, by this process's clock.
#[expect(clippy::disallowed_methods, reason = "the one place of this crate that asks for the time")]
pub fn now() -> DateTime<Utc> {
    Utc::now()
}
