//! What a buyer does to a hold: cancels it, or extends it.
//!
//! Crash window of both: Redis is told to look again before the commit, so that a crash after it, which leaves the seats
//! looking held, or held until the old deadline only, is repaired by the sweep within seconds.

use crate::decide::reservation::{self as decide, Cancelling, Extensions, Settled};
use crate::event::Event;
use crate::id::ReservationId;
use crate::reservation::{CancelReason, Reservation, ReservationState};
use crate::store::pg::payments::find_standing_payment;
use crate::store::pg::reservations::{ReservationHead, cancel_locked, lock_reservation, move_deadline};
use crate::store::pg::{PgError, Tx, commit};
use crate::time::Instant;

use super::repeat::{RepeatError, first_answer, keep_answer};
use super::show_reservation::show_after_change;
use super::{Access, Answered, FaultPoint, Idempotent, Stores};

/// Why a reservation cannot be cancelled or extended.
#[derive(Debug, thiserror::Error)]
pub enum ChangeReservationError {
    /// There is none, or it is somebody else's.
    #[error("there is no such reservation")]
    NotFound,
    /// It is over.
    #[error("the reservation is over")]
    Gone(CancelReason),
    /// It is confirmed.
    #[error("the reservation is confirmed")]
    Confirmed,
    /// It is being paid for.
    #[error("the reservation is being paid for")]
    PaymentInFlight,
    /// The event does not allow (further) extensions, or the cap is reached.
    #[error("no further extension is allowed")]
    NoFurtherExtension,
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

impl From<Settled> for ChangeReservationError {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::PaymentInFlight => Self::PaymentInFlight,
            Settled::Confirmed => Self::Confirmed,
            Settled::Gone(reason) => Self::Gone(reason),
        }
    }
}

impl From<RepeatError> for ChangeReservationError {
    fn from(error: RepeatError) -> Self {
        match error {
            RepeatError::KeyReused => Self::KeyReused,
            RepeatError::Pg(error) => Self::Pg(error),
        }
    }
}

/// Cancels a PENDING reservation for its buyer, or for an operator. A reservation that is cancelled by the same reason
/// already is answered as it is.
///
/// # Errors
/// [`ChangeReservationError`].
pub async fn cancel_reservation(
    stores: &Stores,
    access: &Access,
    id: ReservationId,
    reason: CancelReason,
) -> Result<Reservation, ChangeReservationError> {
    let known = stores.pg.find_reservation_head(id).await?.filter(|head| access.covers(&head.buyer));
    let known = known.ok_or(ChangeReservationError::NotFound)?;
    if matches!(known.state(), ReservationState::Pending) && stores.redis.mark_unsettled(id.0).await.is_err() {
        stores.note_redis_missed();
    }
    stores.faults.pass(FaultPoint::CancelMarked).await;
    let offset = stores.pg.clock().offset_ms();
    let mut tx = stores.pg.begin().await?;
    let head = lock_reservation(&mut tx, id, offset).await?.ok_or(ChangeReservationError::NotFound)?;
    let payment = find_standing_payment(&mut tx, head.event, id).await?;
    match decide::cancel(head.state(), payment.map(|payment| payment.status), reason) {
        Cancelling::Cancel => {
            let actor = match access {
                Access::Any => "shop",
                Access::Own(_) => "buyer",
            };
            cancel_locked(&mut tx, &[(head.event, id)], (reason, actor), offset).await?;
            commit(tx).await?;
        }
        Cancelling::Already => drop(tx),
        Cancelling::Refuse(settled) => return Err(settled.into()),
    }
    stores.faults.pass(FaultPoint::CancelCommitted).await;
    show_after_change(stores, id).await;
    read_changed(stores, id).await
}

/// Extends a PENDING reservation by another TTL from now, never past its cap.
///
/// # Errors
/// [`ChangeReservationError`].
pub async fn extend_reservation(
    stores: &Stores,
    access: &Access,
    id: ReservationId,
) -> Result<Reservation, ChangeReservationError> {
    let (tx, extended) = extend(stores, access, id).await?;
    commit(tx).await?;
    stores.faults.pass(FaultPoint::ExtendCommitted).await;
    show_after_change(stores, id).await;
    Ok(extended)
}

/// Extends a reservation once for each key, however often it is asked for.
///
/// # Errors
/// [`ChangeReservationError`].
pub async fn extend_reservation_once(
    stores: &Stores,
    access: &Access,
    id: ReservationId,
    repeat: Idempotent<Reservation>,
) -> Result<Answered<Reservation>, ChangeReservationError> {
    let repeat = Some(&repeat);
    if let Some(answer) = first_answer(stores, repeat).await? {
        return Ok(answer);
    }
    let (mut tx, extended) = match extend(stores, access, id).await {
        Ok(done) => done,
        // The same request, sent twice at once: the other one was faster, and has used up what was allowed.
        Err(error) => return first_answer(stores, repeat).await?.ok_or(error),
    };
    if !keep_answer(&mut tx, repeat, &extended, (extended.event, id.0)).await? {
        drop(tx);
        return first_answer(stores, repeat).await?.ok_or(ChangeReservationError::KeyReused);
    }
    commit(tx).await?;
    stores.faults.pass(FaultPoint::ExtendCommitted).await;
    show_after_change(stores, id).await;
    Ok(Answered::New(extended))
}

/// Extends it in a transaction that is still to be committed.
async fn extend(
    stores: &Stores,
    access: &Access,
    id: ReservationId,
) -> Result<(Tx, Reservation), ChangeReservationError> {
    // Seats and payments cannot change while it is PENDING without a payment, which is all that is extended.
    let known = super::read_reservation(stores, access, id).await?.ok_or(ChangeReservationError::NotFound)?;
    let sheet = stores.book.sheet(known.event).await?.ok_or(ChangeReservationError::NotFound)?;
    if matches!(known.state, ReservationState::Pending) && stores.redis.mark_unsettled(id.0).await.is_err() {
        stores.note_redis_missed();
    }
    match extend_marked(stores, known, &sheet.event).await {
        Ok(extended) => Ok(extended),
        Err(error) => {
            // The index entry goes back to what the reservation's deadline says.
            show_after_change(stores, id).await;
            Err(error)
        }
    }
}

async fn extend_marked(
    stores: &Stores,
    known: Reservation,
    event: &Event,
) -> Result<(Tx, Reservation), ChangeReservationError> {
    let id = known.id;
    let mut tx = stores.pg.begin().await?;
    let head = lock_reservation(&mut tx, id, stores.pg.clock().offset_ms()).await?;
    let head = head.ok_or(ChangeReservationError::NotFound)?;
    decide::check_pending(head.state())?;
    if find_standing_payment(&mut tx, head.event, id).await?.is_some() {
        return Err(ChangeReservationError::PaymentInFlight);
    }
    let deadline = extended_deadline(event, &head).ok_or(ChangeReservationError::NoFurtherExtension)?;
    move_deadline(&mut tx, &head, (deadline, false)).await?;
    let generation = head.generation + 1;
    Ok((tx, Reservation { expires_at: deadline, generation, read_at: head.read_at, ..known }))
}

fn extended_deadline(event: &Event, head: &ReservationHead) -> Option<Instant> {
    let extensions = Extensions { done: head.extensions, max: event.rules.extensions_max, until: head.extends_until };
    decide::extended_deadline(head.expires_at, event.hold_deadline(head.read_at), extensions)
}

async fn read_changed(stores: &Stores, id: ReservationId) -> Result<Reservation, ChangeReservationError> {
    stores.pg.find_reservation(id).await?.ok_or(ChangeReservationError::NotFound)
}
