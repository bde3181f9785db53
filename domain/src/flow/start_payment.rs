//! Starting a payment: one transaction allows at most one open payment for a reservation, stretches the deadline once to
//! the payment window, and writes the job that brings the payment to its end.
//!
//! Crash window: after the commit the job is not queued. Redis was told before the commit to look at the reservation
//! again; the sweep then queues it. Where Redis was away, the warm-up queues every open outbox row.

use crate::decide::reservation::{self as decide, Paying};
use crate::event::Event;
use crate::id::{PaymentId, ReservationId};
use crate::payment::{Payment, PaymentStatus, Provider};
use crate::runtime::clock::new_uuid;
use crate::store::pg::idempotency::{KnownKey, NewAnswer, keep_answers};
use crate::store::pg::payments::{find_standing_payment, insert_payment};
use crate::store::pg::reservations::{lock_reservation, move_deadline};
use crate::store::pg::{PgError, Tx, commit};

use super::show_reservation::show_after_change;
use super::unhold::ChangeReservationError;
use super::{Access, Answered, FaultPoint, Idempotent, Stores};

/// What a buyer's client asks for.
pub struct PaymentOrder {
    /// What is paid for.
    pub reservation: ReservationId,
    /// Through which provider.
    pub provider: Provider,
    /// What the client got from the provider.
    pub token: Option<String>,
    /// Where the provider sends the buyer back to.
    pub return_url: Option<String>,
    /// How it is made repeatable.
    pub idempotency: Option<Idempotent<Payment>>,
}

/// Why a payment cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartPaymentError {
    /// The reservation cannot be paid for.
    #[error(transparent)]
    Reservation(#[from] ChangeReservationError),
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
}

impl From<PgError> for StartPaymentError {
    fn from(error: PgError) -> Self {
        Self::Reservation(error.into())
    }
}

/// Starts a payment; a payment that is open already, or has paid for the reservation, is answered instead.
///
/// # Errors
/// [`StartPaymentError`].
pub async fn start_payment(
    stores: &Stores,
    access: &Access,
    order: PaymentOrder,
) -> Result<Answered<Payment>, StartPaymentError> {
    if let Some(answer) = known_answer(stores, order.idempotency.as_ref()).await? {
        return Ok(answer);
    }
    // What can be known without a lock is asked before the transaction: nobody waits for two connections at once.
    let known = stores.pg.find_reservation_head(order.reservation).await?.filter(|head| access.covers(&head.buyer));
    let known = known.ok_or(ChangeReservationError::NotFound)?;
    let sheet = stores.book.sheet(known.event).await?.ok_or(ChangeReservationError::NotFound)?;
    if stores.redis.mark_unsettled(order.reservation.0).await.is_err() {
        stores.note_redis_missed();
    }
    stores.faults.pass(FaultPoint::PaymentMarked).await;
    let mut tx = stores.pg.begin().await?;
    let payment = match standing_or_new(stores, &mut tx, &sheet.event, &order).await {
        Ok(payment) => payment,
        Err(error) => {
            drop(tx);
            // The index entry goes back to what the reservation's deadline says.
            show_after_change(stores, order.reservation).await;
            return Err(error);
        }
    };
    if let Some(repeat) = &order.idempotency {
        let (status, body) = (repeat.respond)(&payment);
        let answer = NewAnswer {
            key: &repeat.key,
            status,
            body: &body,
            event: Some(payment.event),
            resource: Some(payment.reservation.0),
        };
        if keep_answers(&mut tx, &[answer]).await? == [false] {
            drop(tx);
            return known_answer(stores, Some(repeat)).await?.ok_or(StartPaymentError::KeyReused);
        }
    }
    commit(tx).await?;
    stores.faults.pass(FaultPoint::PaymentCommitted).await;
    // Shows the stretched deadline, and queues the job.
    show_after_change(stores, order.reservation).await;
    Ok(Answered::New(payment))
}

async fn known_answer(
    stores: &Stores,
    repeat: Option<&Idempotent<Payment>>,
) -> Result<Option<Answered<Payment>>, StartPaymentError> {
    let Some(repeat) = repeat else { return Ok(None) };
    match stores.pg.known_key(&repeat.key).await? {
        KnownKey::New => Ok(None),
        KnownKey::Answered(answer) => Ok(Some(Answered::Replayed(answer))),
        KnownKey::Reused => Err(StartPaymentError::KeyReused),
    }
}

async fn standing_or_new(
    stores: &Stores,
    tx: &mut Tx,
    event: &Event,
    order: &PaymentOrder,
) -> Result<Payment, StartPaymentError> {
    let head = lock_reservation(tx, order.reservation, stores.pg.clock().offset_ms()).await?;
    let head = head.ok_or(ChangeReservationError::NotFound)?;
    let standing = find_standing_payment(tx, head.event, head.id).await?;
    match decide::start_payment(head.state(), standing.as_ref().map(|standing| standing.status)) {
        Paying::Refuse(settled) => return Err(ChangeReservationError::from(settled).into()),
        Paying::Standing => {
            if let Some(standing) = standing {
                return Ok(standing);
            }
        }
        Paying::New => {}
    }
    let so_far = (head.expires_at, head.payment_stretched);
    let stretched = decide::payment_deadline(so_far, head.read_at, event.rules.payment_window_ms);
    if let Some(deadline) = stretched {
        move_deadline(tx, &head, (deadline, true)).await?;
    }
    let deadline = stretched.unwrap_or(head.expires_at);
    let payment = Payment {
        id: PaymentId(new_uuid()),
        event: head.event,
        reservation: head.id,
        provider: order.provider,
        token: order.token.clone(),
        status: PaymentStatus::Requested,
        amount: head.amount,
        failure: None,
        deadline,
        created_at: head.read_at,
    };
    insert_payment(tx, &payment, order.return_url.as_deref()).await?;
    Ok(payment)
}
