//! Showing a reservation: makes Redis show what Postgres has of it, whatever happened before. Every flow ends here, and
//! the sweep comes here for whatever a crash left behind: one path for the first time and for every repair.
//!
//! It may run twice, late, or beside itself: buckets change by compare-and-set on the reservation, and deadlines of a
//! held seat only grow.

use std::collections::BTreeMap;

use crate::id::{EventId, ReservationId};
use crate::label::Label;
use crate::reservation::{Reservation, ReservationState};
use crate::seat::SeatStatus;
use crate::store::pg::PgError;
use crate::store::pg::outbox::OutboxRow;
use crate::store::pg::payments::finalize_job;
use crate::store::redis::RedisUnavailable;
use crate::store::redis::buckets::{BucketOwner, Showing};
use crate::store::redis::keys::BlockKey;
use crate::time::to_ms;

use super::{FaultPoint, Stores};

/// Why a reservation could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShowReservationError {
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
    /// Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisUnavailable),
    /// The queues' Redis failed.
    #[error(transparent)]
    Queue(#[from] crate::queue::QueueError),
}

/// Shows a reservation after a change. Where Redis is away, the warm-up will do it.
pub(crate) async fn show_after_change(stores: &Stores, id: ReservationId) {
    if let Err(error) = show_reservations(stores, &[id]).await {
        stores.note_redis_missed();
        tracing::warn!(%id, error = &error as &dyn std::error::Error, "the change is not shown in Redis yet");
    }
}

/// Makes Redis show reservations as Postgres has them; what is over leaves the deadline index. Ids without a
/// reservation (a hold that never committed) leave it too.
///
/// # Errors
/// [`ShowReservationError`]; a repeat is harmless.
pub async fn show_reservations(stores: &Stores, ids: &[ReservationId]) -> Result<(), ShowReservationError> {
    let found = stores.pg.find_reservations(ids).await?;
    let mut over: Vec<ReservationId> =
        ids.iter().copied().filter(|id| !found.iter().any(|reservation| reservation.id == *id)).collect();
    push_jobs_of_events(stores, &over).await?;
    let mut alive = Vec::new();
    for reservation in &found {
        show(stores, reservation).await?;
        push_open_payment(stores, reservation).await?;
        match reservation.state {
            _ if !reservation.is_tidy => alive.push((reservation.id, to_ms(reservation.expires_at))),
            ReservationState::Pending => alive.push((reservation.id, to_ms(reservation.expires_at))),
            ReservationState::Committed { .. }
            | ReservationState::Confirmed { .. }
            | ReservationState::Cancelled { .. } => over.push(reservation.id),
        }
    }
    stores.faults.pass(FaultPoint::ExpiryShown).await;
    stores.redis.register_deadlines(&alive).await?;
    stores.redis.forget_deadlines(&over).await?;
    Ok(())
}

/// The keys of a reservation's seats, by block.
fn keys_by_block(stores: &Stores, date: &str, reservation: &Reservation) -> Vec<(BlockKey, Vec<String>)> {
    let mut blocks: BTreeMap<&Label, Vec<String>> = BTreeMap::new();
    let key = |block: &Label| BlockKey { date: date.into(), block: block.clone() };
    for seat in &reservation.seats {
        let seat_key = stores.redis.keys().seat(&key(&seat.block), &seat.column, &seat.row);
        blocks.entry(&seat.block).or_default().push(seat_key);
    }
    blocks.into_iter().map(|(block, keys)| (key(block), keys)).collect()
}

async fn show(stores: &Stores, reservation: &Reservation) -> Result<(), ShowReservationError> {
    let Some(sheet) = stores.book.sheet(reservation.event).await? else { return Ok(()) };
    let owner = |deadline| BucketOwner {
        reservation: reservation.id,
        buyer: reservation.buyer.clone(),
        created_at: reservation.created_at,
        deadline,
    };
    let showing = match reservation.state {
        ReservationState::Pending => Showing::Owned(SeatStatus::Held, owner(Some(reservation.expires_at))),
        ReservationState::Committed { .. } => Showing::Owned(SeatStatus::Held, owner(None)),
        ReservationState::Confirmed { .. } => Showing::Owned(SeatStatus::Sold, owner(None)),
        ReservationState::Cancelled { .. } => Showing::Released(reservation.id),
    };
    let event = (reservation.event, &sheet.event.zone);
    for (block, keys) in keys_by_block(stores, &sheet.event.date_key, reservation) {
        stores.redis.show_seats(&block, &keys, event, &showing, stores.timing.bucket_grace_ms).await?;
    }
    Ok(())
}

/// An id that is no reservation's is an event's, whose jobs may not be queued, or a hold's that never committed.
async fn push_jobs_of_events(stores: &Stores, ids: &[ReservationId]) -> Result<(), ShowReservationError> {
    if ids.is_empty() {
        return Ok(());
    }
    let events: Vec<EventId> = ids.iter().map(|id| EventId(id.0)).collect();
    let jobs: Vec<_> = stores.pg.outbox_of_events(&events).await?.iter().map(OutboxRow::job).collect();
    stores.jobs.enqueue(&jobs).await?;
    Ok(())
}

/// A crash between a payment's commit and the push of its job is repaired here.
async fn push_open_payment(stores: &Stores, reservation: &Reservation) -> Result<(), ShowReservationError> {
    let open: Vec<_> = reservation.payments.iter().filter(|payment| payment.status.is_open()).collect();
    for payment in open {
        stores.jobs.enqueue(&[finalize_job(payment).job()]).await?;
    }
    Ok(())
}
