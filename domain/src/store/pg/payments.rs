//! Payments and refunds.

use serde_json::json;
use uuid::Uuid;

use crate::id::{EventId, OutboxId, PaymentId, RefundId, ReservationId};
use crate::money::Money;
use crate::payment::{Payment, PaymentStatus, Provider};
use crate::queue::Queue;
use crate::time::Instant;

use super::outbox::{JobKind, OutboxRow, insert_outbox};
use super::{Pg, PgError, Tx};

struct PaymentRow {
    event_id: Uuid,
    id: Uuid,
    reservation_id: Uuid,
    provider: String,
    token: Option<String>,
    status: String,
    amount: i64,
    currency: String,
    failure: Option<String>,
    deadline: Instant,
    created_at: Instant,
}

impl TryFrom<PaymentRow> for Payment {
    type Error = PgError;
    fn try_from(row: PaymentRow) -> Result<Self, PgError> {
        let unreadable = |column| PgError::unreadable("payments", column, row.id);
        Ok(Self {
            id: PaymentId(row.id),
            event: EventId(row.event_id),
            reservation: ReservationId(row.reservation_id),
            provider: Provider::from_word(&row.provider).ok_or_else(|| unreadable("provider"))?,
            token: row.token,
            status: PaymentStatus::from_word(&row.status).ok_or_else(|| unreadable("status"))?,
            amount: Money { amount: row.amount, currency: row.currency.parse().map_err(|_| unreadable("currency"))? },
            failure: row.failure,
            deadline: row.deadline,
            created_at: row.created_at,
        })
    }
}

macro_rules! select_payments {
    ($rest:literal, $($argument:expr),*) => {
        sqlx::query_as!(
            PaymentRow,
            "SELECT event_id, id, reservation_id, provider, token, status, amount, currency, failure, deadline, created_at
             FROM payments " + $rest,
            $($argument),*
        )
    };
}

impl Pg {
    /// The payment with that id.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn find_payment(&self, id: PaymentId) -> Result<Option<Payment>, PgError> {
        let row = select_payments!("WHERE id = $1", id.0).fetch_optional(self.pool()).await?;
        row.map(Payment::try_from).transpose()
    }
}

/// The payment of a reservation that may still take money, or has kept it.
pub(crate) async fn find_standing_payment(
    tx: &mut Tx,
    event: EventId,
    reservation: ReservationId,
) -> Result<Option<Payment>, PgError> {
    let row = select_payments!(
        "WHERE event_id = $1 AND reservation_id = $2
           AND status IN ('requested', 'authorized', 'capturing', 'captured', 'partly_refunded', 'needs_review')",
        event.0,
        reservation.0
    )
    .fetch_optional(&mut **tx)
    .await?;
    row.map(Payment::try_from).transpose()
}

/// Locks a payment. Its reservation is locked before it, always.
pub(crate) async fn lock_payment(tx: &mut Tx, event: EventId, id: PaymentId) -> Result<Option<Payment>, PgError> {
    let row =
        select_payments!("WHERE event_id = $1 AND id = $2 FOR UPDATE", event.0, id.0).fetch_optional(&mut **tx).await?;
    row.map(Payment::try_from).transpose()
}

/// Writes a new payment and the job that brings it to its end.
pub(crate) async fn insert_payment(
    tx: &mut Tx,
    payment: &Payment,
    return_url: Option<&str>,
) -> Result<OutboxRow, PgError> {
    sqlx::query!(
        "INSERT INTO payments (event_id, id, reservation_id, provider, token, return_url, status, amount, currency,
             deadline, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)",
        payment.event.0,
        payment.id.0,
        payment.reservation.0,
        payment.provider.as_str(),
        payment.token,
        return_url,
        payment.status.as_str(),
        payment.amount.amount,
        payment.amount.currency.code(),
        payment.deadline,
        payment.created_at
    )
    .execute(&mut **tx)
    .await?;
    let row = finalize_job(payment);
    insert_outbox(tx, &row).await?;
    Ok(row)
}

/// The job that brings a payment to its end: one for each payment.
#[must_use]
pub fn finalize_job(payment: &Payment) -> OutboxRow {
    OutboxRow {
        event: payment.event,
        id: OutboxId(payment.id.0),
        queue: Queue::Payments,
        kind: JobKind::FinalizePayment,
        payload: json!({ "payment": payment.id }),
    }
}

/// Moves a locked payment to a new status.
pub(crate) async fn set_payment_status(
    tx: &mut Tx,
    payment: &Payment,
    (status, failure): (PaymentStatus, Option<&str>),
    offset_ms: i64,
) -> Result<(), PgError> {
    sqlx::query!(
        "UPDATE payments SET status = $3, failure = coalesce($4, failure), updated_at = hf_now($5)
         WHERE event_id = $1 AND id = $2",
        payment.event.0,
        payment.id.0,
        status.as_str(),
        failure,
        offset_ms
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Keeps the provider's own name for a payment.
pub(crate) async fn set_provider_reference(tx: &mut Tx, payment: &Payment, reference: &str) -> Result<(), PgError> {
    sqlx::query!(
        "UPDATE payments SET provider_reference = $3 WHERE event_id = $1 AND id = $2",
        payment.event.0,
        payment.id.0,
        reference
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The refund of money that came too late: made once for each payment, before the provider is called.
pub(crate) async fn late_refund(
    tx: &mut Tx,
    payment: &Payment,
    new_id: RefundId,
    offset_ms: i64,
) -> Result<RefundId, PgError> {
    sqlx::query!(
        "INSERT INTO refunds (event_id, id, reservation_id, payment_id, amount, currency, reason, status, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, 'late_payment', 'requested', hf_now($7), hf_now($7))
         ON CONFLICT (event_id, payment_id) WHERE reason = 'late_payment' DO NOTHING",
        payment.event.0,
        new_id.0,
        payment.reservation.0,
        payment.id.0,
        payment.amount.amount,
        payment.amount.currency.code(),
        offset_ms
    )
    .execute(&mut **tx)
    .await?;
    let id = sqlx::query_scalar!(
        "SELECT id FROM refunds WHERE event_id = $1 AND payment_id = $2 AND reason = 'late_payment'",
        payment.event.0,
        payment.id.0
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(RefundId(id))
}

/// Notes that a refund is done and its payment given back, whole.
pub(crate) async fn finish_refund(
    tx: &mut Tx,
    payment: &Payment,
    refund: RefundId,
    offset_ms: i64,
) -> Result<(), PgError> {
    sqlx::query!(
        "UPDATE refunds SET status = 'done', updated_at = hf_now($3) WHERE event_id = $1 AND id = $2",
        payment.event.0,
        refund.0,
        offset_ms
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query!(
        "UPDATE payments SET status = 'refunded', refunded_amount = amount, updated_at = hf_now($3)
         WHERE event_id = $1 AND id = $2",
        payment.event.0,
        payment.id.0,
        offset_ms
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The refund of money that came too late, if there is one that is not done.
pub(crate) async fn find_late_refund(pg: &Pg, payment: &Payment) -> Result<Option<RefundId>, PgError> {
    let id = sqlx::query_scalar!(
        "SELECT id FROM refunds
         WHERE event_id = $1 AND payment_id = $2 AND reason = 'late_payment' AND status = 'requested'",
        payment.event.0,
        payment.id.0
    )
    .fetch_optional(pg.pool())
    .await?;
    Ok(id.map(RefundId))
}
