//! Expiring: one transaction cancels what is PENDING, overdue and not being captured, and frees its seats → Redis shows
//! it → only then does it leave the deadline index.
//!
//! Bridge, sweep and warm-up all come here. It may run twice, late, or for reservations that were paid, extended or
//! cancelled meanwhile: the update changes nothing then, and Redis is made to show what is.
//!
//! Crash windows: after the commit, and after Redis shows it, the index entry still stands and the lease on it runs out:
//! the sweep comes back.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::id::{EventId, ReservationId};
use crate::label::Label;
use crate::store::pg::reservations::{ExpiredRows, expire_reservations as expire_rows};
use crate::store::pg::{PgError, commit};
use crate::store::redis::releases::ExpiredSeats;
use crate::time::to_ms;

use super::show_reservation::{ShowReservationError, show_reservations};
use super::{FaultPoint, Stores};

/// Reservations in one expire job.
pub const RESERVATIONS_PER_JOB_MAX: usize = 500;

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
    let count = expired.reservations.len();
    metrics::counter!("holdfast_reservations_expired_total").increment(u64::try_from(count).unwrap_or(0));
    let shown = release(stores, &expired).await?;
    // Of all others something else may have to be shown, or a payment's job to be queued.
    let others: Vec<ReservationId> = ids.iter().copied().filter(|id| !shown.contains(id)).collect();
    if !others.is_empty() {
        show_reservations(stores, &others).await?;
    }
    Ok(count)
}

/// Shows that the seats of those that just expired are available: all in one round trip, and without asking Postgres
/// again, since a burst of deadlines is many of them. Returns those that are shown. Those with payments are not among
/// them.
async fn release(stores: &Stores, expired: &ExpiredRows) -> Result<HashSet<ReservationId>, ShowReservationError> {
    let deadlines: HashMap<ReservationId, i64> = expired
        .reservations
        .iter()
        .filter(|reservation| !reservation.has_payment)
        .map(|reservation| (reservation.id, to_ms(reservation.deadline)))
        .collect();
    let mut blocks: BTreeMap<(EventId, Label), ExpiredSeats> = BTreeMap::new();
    for freed in &expired.seats {
        let Some(&deadline_ms) = deadlines.get(&freed.reservation) else { continue };
        // An event that is gone has no picture.
        let Some(sheet) = stores.book.sheet(freed.event).await? else { continue };
        let Some(seat) = sheet.map.seat(freed.seat) else { continue };
        let block = sheet.map.block_of(seat);
        let of_block = blocks.entry((freed.event, block.block.clone())).or_insert_with(|| ExpiredSeats {
            event: freed.event,
            block: sheet.block_key(block),
            seats: Vec::new(),
        });
        let key = stores.redis.keys().seat(&of_block.block, &seat.column, &seat.row);
        of_block.seats.push((key, freed.reservation, deadline_ms));
    }
    let blocks: Vec<ExpiredSeats> = blocks.into_values().collect();
    stores.redis.release_expired(&blocks).await?;
    stores.faults.pass(FaultPoint::ExpiryShown).await;
    let shown: Vec<ReservationId> = deadlines.into_keys().collect();
    stores.redis.forget_deadlines(&shown).await?;
    Ok(shown.into_iter().collect())
}
