//! Everything has a limit. Limits that belong together are checked against each other at start.

/// The most seats in one reservation that any event may allow.
pub const SEATS_PER_RESERVATION_MAX: i32 = 100;
/// The most seats that a request may name, before the event's own limit is looked at.
pub const SEATS_PER_REQUEST_MAX: usize = 100;
/// The most seats that any event may allow one buyer.
pub const SEATS_PER_BUYER_MAX: i32 = 100_000;
/// The shortest and the longest hold and payment window, ms.
pub const WINDOW_MS: std::ops::RangeInclusive<i64> = 1_000..=86_400_000;
/// The longest title, in characters.
pub const TITLE_CHARS_MAX: usize = 200;
/// The most extensions of a hold that an event may allow.
pub const EXTENSIONS_MAX: i32 = 10;

/// The spans, in ms, by which holds and expiries pace themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long a gate stands unless the hold behind it commits.
    pub gate_ms: i64,
    /// How long a held bucket outlives its deadline, so that readers can tell held from available by the deadline.
    pub bucket_grace_ms: i64,
    /// How long an expired key may go unclaimed by any bridge before the sweep takes it.
    pub sweep_grace_ms: i64,
    /// How long a claimed deadline belongs to whoever claimed it.
    pub lease_ms: i64,
    /// The longest that one statement may run in Postgres.
    pub statement_ms: i64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { gate_ms: 5_000, bucket_grace_ms: 600_000, sweep_grace_ms: 300, lease_ms: 5_000, statement_ms: 4_000 }
    }
}

/// Two limits that cannot both hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LimitsError(&'static str);

impl Timing {
    /// Checks the spans against each other.
    ///
    /// # Errors
    /// [`LimitsError`] names the pair and the remedy.
    pub fn check(&self) -> Result<(), LimitsError> {
        if self.gate_ms <= self.statement_ms {
            return Err(LimitsError("gate_ms must exceed statement_ms: a gate must outlast the commit it guards"));
        }
        if self.sweep_grace_ms >= 1_000 {
            return Err(LimitsError("sweep_grace_ms must stay under 1000: no seat may look held for longer (I3)"));
        }
        if self.lease_ms <= self.statement_ms {
            return Err(LimitsError("lease_ms must exceed statement_ms: a claim must outlast the job it causes"));
        }
        if self.bucket_grace_ms < 10 * self.lease_ms {
            return Err(LimitsError("bucket_grace_ms must be at least ten leases, or buckets vanish before jobs end"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_agree_with_each_other() {
        assert_eq!(Timing::default().check(), Ok(()));
        assert!(Timing { gate_ms: 1_000, ..Timing::default() }.check().is_err());
        assert!(Timing { sweep_grace_ms: 1_000, ..Timing::default() }.check().is_err());
    }
}
