//! Showing a reservation: makes Redis show what Postgres has of it, whatever happened before. Every flow ends here, and
//! the sweep comes here for whatever a crash left behind: one path for the first time and for every repair.
//!
//! It may run twice, late, or beside itself, and whoever is stopped between reading Postgres and writing Redis may write
//! what is long over: so a reservation writes over its own buckets only, and only forwards. Seats of its own that show
//! anything else are healed: read in Redis first and in Postgres then, and written only if unchanged since.

use std::collections::BTreeMap;

use crate::id::{EventId, ReservationId, SeatId};
use crate::label::Label;
use crate::payment::PaymentStatus;
use crate::reservation::{CancelReason, Reservation, ReservationState};
use crate::runtime::clock::monotonic_ms;
use crate::seat::SeatStatus;
use crate::store::pg::PgError;
use crate::store::pg::outbox::OutboxRow;
use crate::store::pg::payments::finalize_job;
use crate::store::redis::RedisUnavailable;
use crate::store::redis::buckets::{BucketOwner, Showing};
use crate::store::redis::deadlines::MovedDeadline;
use crate::store::redis::keys::BlockKey;
use crate::time::to_ms;

use super::event_book::EventSheet;
use super::read_block::{HealBlockError, heal_some};
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

impl From<HealBlockError> for ShowReservationError {
    fn from(error: HealBlockError) -> Self {
        match error {
            HealBlockError::Pg(error) => Self::Pg(error),
            HealBlockError::Redis(error) => Self::Redis(error),
        }
    }
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
    let began_ms = monotonic_ms();
    let found = stores.pg.find_reservations(ids).await?;
    stores.faults.pass(FaultPoint::ShowRead).await;
    let mut over: Vec<ReservationId> =
        ids.iter().copied().filter(|id| !found.iter().any(|reservation| reservation.id == *id)).collect();
    push_jobs_of_events(stores, &over).await?;
    let (mut alive, mut unsettled) = (Vec::new(), Vec::new());
    for reservation in &found {
        if !show(stores, reservation).await? {
            unsettled.push(reservation.id);
        }
        push_open_payment(stores, reservation).await?;
        match reservation.state {
            _ if !reservation.is_tidy => alive.push(moved_deadline(reservation, began_ms)),
            ReservationState::Pending => alive.push(moved_deadline(reservation, began_ms)),
            ReservationState::Committed { .. }
            | ReservationState::Confirmed { .. }
            | ReservationState::Cancelled { .. } => over.push(reservation.id),
        }
    }
    stores.faults.pass(FaultPoint::ExpiryShown).await;
    register_alive(stores, &alive).await?;
    stores.redis.forget_deadlines(&over).await?;
    for id in unsettled {
        stores.redis.mark_unsettled(id.0).await?;
    }
    Ok(())
}

/// The deadline of a reservation that was read no earlier than `began_ms` of the monotonic clock.
fn moved_deadline(reservation: &Reservation, began_ms: i64) -> MovedDeadline {
    let deadline_ms = to_ms(reservation.expires_at);
    let over_at_ms = began_ms + deadline_ms - to_ms(reservation.read_at);
    MovedDeadline { reservation: reservation.id, deadline_ms, over_at_ms }
}

/// Moves the deadlines of what is alive. Whoever ends a reservation takes it out of the index last, and may have done so
/// since Postgres was read: what is not there any more is read again, and registered only if Redis has lost it.
async fn register_alive(stores: &Stores, alive: &[MovedDeadline]) -> Result<(), ShowReservationError> {
    let missing = stores.redis.move_deadlines(alive).await?;
    if missing.is_empty() {
        return Ok(());
    }
    let found = stores.pg.find_reservations(&missing).await?;
    let lost = found
        .iter()
        .filter(|reservation| !reservation.is_tidy || matches!(reservation.state, ReservationState::Pending));
    let lost: Vec<_> = lost.map(|reservation| (reservation.id, to_ms(reservation.expires_at))).collect();
    let over: Vec<_> = missing.into_iter().filter(|id| !lost.iter().any(|(lost, _)| lost == id)).collect();
    stores.redis.register_deadlines(&lost).await?;
    stores.redis.forget_deadlines(&over).await?;
    Ok(())
}

/// The seats of a reservation in one block, and their keys.
#[derive(Default)]
struct BlockSeats {
    seats: Vec<SeatId>,
    keys: Vec<String>,
}

fn by_block<'a>(stores: &Stores, date: &str, reservation: &'a Reservation) -> BTreeMap<&'a Label, BlockSeats> {
    let mut blocks: BTreeMap<&Label, BlockSeats> = BTreeMap::new();
    for seat in &reservation.seats {
        let key = BlockKey { date: date.into(), block: seat.block.clone() };
        let block = blocks.entry(&seat.block).or_default();
        block.seats.push(seat.id);
        block.keys.push(stores.redis.keys().seat(&key, &seat.column, &seat.row));
    }
    blocks
}

/// False where something stands in the way that ends by itself: look again then.
async fn show(stores: &Stores, reservation: &Reservation) -> Result<bool, ShowReservationError> {
    let Some(sheet) = stores.book.sheet(reservation.event).await? else { return Ok(true) };
    let showing = showing_of(reservation);
    let event = (reservation.event, &sheet.event.zone);
    let mut is_settled = true;
    for (label, BlockSeats { seats, keys }) in by_block(stores, &sheet.event.date_key, reservation) {
        let key = BlockKey { date: sheet.event.date_key.as_str().into(), block: label.clone() };
        let shown = stores.redis.show_seats(&key, &keys, event, &showing, stores.timing.bucket_grace_ms).await?;
        if shown.foreign > 0 {
            is_settled &= heal(stores, &sheet, label, &seats).await?;
        }
    }
    Ok(is_settled)
}

async fn heal(
    stores: &Stores,
    sheet: &EventSheet,
    block: &Label,
    seats: &[SeatId],
) -> Result<bool, ShowReservationError> {
    let Some(block) = sheet.map.block(block) else { return Ok(true) };
    Ok(heal_some(stores, sheet, (block, seats)).await?)
}

fn showing_of(reservation: &Reservation) -> Showing {
    let owner = |deadline| BucketOwner {
        reservation: reservation.id,
        buyer: reservation.buyer.clone(),
        created_at: reservation.created_at,
        deadline,
    };
    match reservation.state {
        ReservationState::Pending => Showing::Owned(SeatStatus::Held, owner(Some(reservation.expires_at))),
        ReservationState::Committed { .. } => Showing::Owned(SeatStatus::Held, owner(None)),
        ReservationState::Confirmed { .. } => Showing::Owned(SeatStatus::Sold, owner(None)),
        ReservationState::Cancelled { reason: CancelReason::Expired, .. } => {
            Showing::Expired(reservation.id, reservation.expires_at)
        }
        ReservationState::Cancelled { .. } => Showing::Released(reservation.id),
    }
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
    // One that is under review is open, but has no job: it waits for an operator.
    let has_job = |status: PaymentStatus| status.is_open() && status != PaymentStatus::NeedsReview;
    let open: Vec<_> = reservation.payments.iter().filter(|payment| has_job(payment.status)).collect();
    for payment in open {
        stores.jobs.enqueue(&[finalize_job(payment).job()]).await?;
    }
    Ok(())
}
