//! Expiring: one transaction cancels what is PENDING, overdue and not being captured, and frees its seats → Redis shows
//! it → only then does it leave the deadline index.
//!
//! Bridge, sweep and warm-up all come here. It may run twice, late, or for reservations that were paid, extended or
//! cancelled meanwhile: the update changes nothing then, and Redis is made to show what is.
//!
//! Crash windows: after the commit, and after Redis shows it, the index entry still stands and the lease on it runs out:
//! the sweep comes back.

use crate::id::ReservationId;
use crate::store::pg::reservations::expire_reservations as expire_rows;
use crate::store::pg::{PgError, commit};

use super::show_reservation::{ShowReservationError, show_reservations};
use super::{FaultPoint, Stores};

/// Reservations in one expire job.
pub const RESERVATIONS_PER_JOB_MAX: usize = 100;

/// Why reservations could not be expired: nothing is lost, the index still has them.
#[derive(Debug, thiserror::Error)]
pub enum ExpireReservationsError {
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
    /// They are expired, but not shown.
    #[error(transparent)]
    Show(#[from] ShowReservationError),
}

/// Expires those of `ids` that are due, and makes Redis show all of them as they are. Returns how many expired.
///
/// # Errors
/// [`ExpireReservationsError`]; a repeat is harmless.
pub async fn expire_reservations(stores: &Stores, ids: &[ReservationId]) -> Result<usize, ExpireReservationsError> {
    let mut tx = stores.pg.begin().await?;
    let expired = expire_rows(&mut tx, ids, stores.pg.clock().offset_ms()).await?;
    commit(tx).await?;
    stores.faults.pass(FaultPoint::ExpiryCommitted).await;
    metrics::counter!("holdfast_reservations_expired_total").increment(u64::try_from(expired.len()).unwrap_or(0));
    show_reservations(stores, ids).await?;
    Ok(expired.len())
}
