//! Reservations: reading them, and each way in which they end or change.

use std::collections::HashMap;

use uuid::Uuid;

use crate::id::{Buyer, EventId, PaymentId, RefundId, ReservationId, SeatId};
use crate::label::Label;
use crate::money::Money;
use crate::payment::{Payment, PaymentStatus, Provider, Refund};
use crate::reservation::{CancelReason, Reservation, ReservationState, ReservationStatus, ReservedSeat, state_at};
use crate::time::Instant;

use super::{Pg, PgError, Tx};

/// A reservation's own row, without seats and payments.
#[derive(Debug, Clone)]
pub struct ReservationHead {
    /// Its id.
    pub id: ReservationId,
    /// Its event.
    pub event: EventId,
    /// Whose it is.
    pub buyer: Buyer,
    /// As stored: a deadline that has passed does not show here.
    pub stored: ReservationState,
    /// The sum of its seats' prices.
    pub amount: Money,
    /// When it was made.
    pub created_at: Instant,
    /// Its deadline.
    pub expires_at: Instant,
    /// No extension goes past this.
    pub extends_until: Instant,
    /// How often it was extended.
    pub extensions: i32,
    /// Whether a payment has stretched its deadline.
    pub payment_stretched: bool,
    /// Grows with every change.
    pub generation: i32,
    /// The database's clock at the reading.
    pub read_at: Instant,
}

impl ReservationHead {
    /// Where it stands at the reading: a deadline that has passed is an end (I3).
    #[must_use]
    pub fn state(&self) -> ReservationState {
        state_at(self.stored, self.expires_at, self.read_at)
    }
}

struct HeadRow {
    event_id: Uuid,
    id: Uuid,
    buyer: String,
    status: String,
    cancel_reason: Option<String>,
    amount: i64,
    currency: String,
    created_at: Instant,
    expires_at: Instant,
    extends_until: Instant,
    extensions: i32,
    payment_stretched: bool,
    committed_at: Option<Instant>,
    ended_at: Option<Instant>,
    generation: i32,
    read_at: Instant,
}

impl TryFrom<HeadRow> for ReservationHead {
    type Error = PgError;
    fn try_from(row: HeadRow) -> Result<Self, PgError> {
        let unreadable = |column| PgError::unreadable("reservations", column, row.id);
        let status = ReservationStatus::from_word(&row.status).ok_or_else(|| unreadable("status"))?;
        let stored = match (status, row.ended_at, row.committed_at) {
            (ReservationStatus::Pending, _, None) => ReservationState::Pending,
            (ReservationStatus::Pending, _, Some(at)) => ReservationState::Committed { at },
            (ReservationStatus::Confirmed, Some(at), _) => ReservationState::Confirmed { at },
            (ReservationStatus::Cancelled, Some(at), _) => {
                let reason = row.cancel_reason.as_deref().and_then(CancelReason::from_word);
                ReservationState::Cancelled { at, reason: reason.ok_or_else(|| unreadable("cancel_reason"))? }
            }
            (ReservationStatus::Confirmed | ReservationStatus::Cancelled, None, _) => {
                return Err(unreadable("ended_at"));
            }
        };
        Ok(Self {
            id: ReservationId(row.id),
            event: EventId(row.event_id),
            buyer: Buyer::parse(&row.buyer).map_err(|_| unreadable("buyer"))?,
            stored,
            amount: Money { amount: row.amount, currency: row.currency.parse().map_err(|_| unreadable("currency"))? },
            created_at: row.created_at,
            expires_at: row.expires_at,
            extends_until: row.extends_until,
            extensions: row.extensions,
            payment_stretched: row.payment_stretched,
            generation: row.generation,
            read_at: row.read_at,
        })
    }
}

/// The columns of [`HeadRow`], in one place; `$1` is the clock's offset.
macro_rules! select_heads {
    ($rest:literal, $($argument:expr),*) => {
        sqlx::query_as!(
            HeadRow,
            r#"SELECT event_id, id, buyer, status, cancel_reason, amount, currency, created_at, expires_at, extends_until,
                      extensions, payment_stretched, committed_at, ended_at, generation, hf_now($1) AS "read_at!"
               FROM reservations "# + $rest,
            $($argument),*
        )
    };
}

/// Which reservations a list shows.
#[derive(Debug, Clone, Default)]
pub struct ReservationFilter {
    /// Of this event only.
    pub event: Option<EventId>,
    /// Of this buyer only.
    pub buyer: Option<Buyer>,
    /// In this status only, as it is at the reading.
    pub status: Option<ReservationStatus>,
    /// After this one: lists go from the oldest to the newest.
    pub after: Option<ReservationId>,
}

impl Pg {
    /// A reservation's own row.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn find_reservation_head(&self, id: ReservationId) -> Result<Option<ReservationHead>, PgError> {
        let row = select_heads!("WHERE id = $2", self.offset_ms(), id.0).fetch_optional(self.pool()).await?;
        row.map(ReservationHead::try_from).transpose()
    }

    /// A reservation with its seats, payments and refunds.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn find_reservation(&self, id: ReservationId) -> Result<Option<Reservation>, PgError> {
        let Some(head) = self.find_reservation_head(id).await? else { return Ok(None) };
        Ok(self.fill_reservations(vec![head]).await?.pop())
    }

    /// Reservations with their seats, payments and refunds, oldest first.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn find_reservations(&self, ids: &[ReservationId]) -> Result<Vec<Reservation>, PgError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let rows =
            select_heads!("WHERE id = ANY ($2) ORDER BY id", self.offset_ms(), &ids).fetch_all(self.pool()).await?;
        let heads = rows.into_iter().map(ReservationHead::try_from).collect::<Result<Vec<_>, _>>()?;
        self.fill_reservations(heads).await
    }

    /// A page of reservations, oldest first.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn list_reservations(&self, filter: &ReservationFilter, most: i64) -> Result<Vec<Reservation>, PgError> {
        let rows = select_heads!(
            "WHERE ($2::uuid IS NULL OR event_id = $2) AND ($3::text IS NULL OR buyer = $3)
               AND ($4::uuid IS NULL OR id > $4)
               AND ($5::text IS NULL OR $5 = CASE
                   WHEN status = 'PENDING' AND committed_at IS NULL AND expires_at <= hf_now($1) THEN 'CANCELLED'
                   ELSE status END)
             ORDER BY id LIMIT $6",
            self.offset_ms(),
            filter.event.map(|event| event.0),
            filter.buyer.as_ref().map(Buyer::as_str),
            filter.after.map(|after| after.0),
            filter.status.map(ReservationStatus::as_str),
            most
        )
        .fetch_all(self.pool())
        .await?;
        let heads = rows.into_iter().map(ReservationHead::try_from).collect::<Result<Vec<_>, _>>()?;
        self.fill_reservations(heads).await
    }

    async fn fill_reservations(&self, heads: Vec<ReservationHead>) -> Result<Vec<Reservation>, PgError> {
        let events: Vec<Uuid> = heads.iter().map(|head| head.event.0).collect();
        let ids: Vec<Uuid> = heads.iter().map(|head| head.id.0).collect();
        let mut seats = self.reserved_seats(&events, &ids).await?;
        let mut payments = self.payments_of(&events, &ids).await?;
        let mut refunds = self.refunds_of(&events, &ids).await?;
        Ok(heads
            .into_iter()
            .map(|head| Reservation {
                id: head.id,
                event: head.event,
                state: head.state(),
                is_tidy: head.state() == head.stored,
                buyer: head.buyer,
                seats: seats.remove(&head.id).unwrap_or_default(),
                amount: head.amount,
                created_at: head.created_at,
                expires_at: head.expires_at,
                extends_until: head.extends_until,
                generation: head.generation,
                payments: payments.remove(&head.id).unwrap_or_default(),
                refunds: refunds.remove(&head.id).unwrap_or_default(),
                read_at: head.read_at,
            })
            .collect())
    }

    async fn reserved_seats(
        &self,
        events: &[Uuid],
        ids: &[Uuid],
    ) -> Result<HashMap<ReservationId, Vec<ReservedSeat>>, PgError> {
        let rows = sqlx::query!(
            r#"SELECT rs.reservation_id, rs.seat_id, rs.price, b.block, s.row_label, s.column_label, s.label, s.category
               FROM unnest($1::uuid[], $2::uuid[]) AS asked (event_id, id)
               JOIN reservation_seats rs ON rs.event_id = asked.event_id AND rs.reservation_id = asked.id
               JOIN seats s ON s.id = rs.seat_id
               JOIN blocks b ON b.id = s.block_id
               ORDER BY rs.reservation_id, b.ordinal, s.ordinal"#,
            events,
            ids
        )
        .fetch_all(self.pool())
        .await?;
        let mut seats: HashMap<ReservationId, Vec<ReservedSeat>> = HashMap::new();
        for row in rows {
            let label =
                |text: &str, column| Label::parse(text).map_err(|_| PgError::unreadable("seats", column, row.seat_id));
            seats.entry(ReservationId(row.reservation_id)).or_default().push(ReservedSeat {
                id: SeatId(row.seat_id),
                block: label(&row.block, "block")?,
                row: label(&row.row_label, "row_label")?,
                column: label(&row.column_label, "column_label")?,
                label: row.label,
                category: row.category,
                price: row.price,
            });
        }
        Ok(seats)
    }

    async fn payments_of(
        &self,
        events: &[Uuid],
        ids: &[Uuid],
    ) -> Result<HashMap<ReservationId, Vec<Payment>>, PgError> {
        let rows = sqlx::query!(
            r#"SELECT p.event_id, p.id, p.reservation_id, p.provider, p.token, p.status, p.amount, p.currency, p.failure,
                      p.deadline, p.created_at
               FROM unnest($1::uuid[], $2::uuid[]) AS asked (event_id, id)
               JOIN payments p ON p.event_id = asked.event_id AND p.reservation_id = asked.id
               ORDER BY p.id"#,
            events,
            ids
        )
        .fetch_all(self.pool())
        .await?;
        let mut payments: HashMap<ReservationId, Vec<Payment>> = HashMap::new();
        for row in rows {
            let unreadable = |column| PgError::unreadable("payments", column, row.id);
            payments.entry(ReservationId(row.reservation_id)).or_default().push(Payment {
                id: PaymentId(row.id),
                event: EventId(row.event_id),
                reservation: ReservationId(row.reservation_id),
                provider: Provider::from_word(&row.provider).ok_or_else(|| unreadable("provider"))?,
                token: row.token,
                status: PaymentStatus::from_word(&row.status).ok_or_else(|| unreadable("status"))?,
                amount: Money {
                    amount: row.amount,
                    currency: row.currency.parse().map_err(|_| unreadable("currency"))?,
                },
                failure: row.failure,
                deadline: row.deadline,
                created_at: row.created_at,
            });
        }
        Ok(payments)
    }

    async fn refunds_of(&self, events: &[Uuid], ids: &[Uuid]) -> Result<HashMap<ReservationId, Vec<Refund>>, PgError> {
        let rows = sqlx::query!(
            r#"SELECT r.id, r.reservation_id, r.payment_id, r.amount, r.currency, r.reason, r.status, r.created_at
               FROM unnest($1::uuid[], $2::uuid[]) AS asked (event_id, id)
               JOIN refunds r ON r.event_id = asked.event_id AND r.reservation_id = asked.id
               ORDER BY r.id"#,
            events,
            ids
        )
        .fetch_all(self.pool())
        .await?;
        let mut refunds: HashMap<ReservationId, Vec<Refund>> = HashMap::new();
        for row in rows {
            let currency = row.currency.parse().map_err(|_| PgError::unreadable("refunds", "currency", row.id))?;
            refunds.entry(ReservationId(row.reservation_id)).or_default().push(Refund {
                id: RefundId(row.id),
                payment: PaymentId(row.payment_id),
                amount: Money { amount: row.amount, currency },
                reason: row.reason,
                status: row.status,
                created_at: row.created_at,
            });
        }
        Ok(refunds)
    }
}

/// Locks a reservation for a change.
pub(crate) async fn lock_reservation(
    tx: &mut Tx,
    id: ReservationId,
    offset_ms: i64,
) -> Result<Option<ReservationHead>, PgError> {
    let row = select_heads!("WHERE id = $2 FOR UPDATE", offset_ms, id.0).fetch_optional(&mut **tx).await?;
    row.map(ReservationHead::try_from).transpose()
}

/// What expiring changed.
#[derive(Debug, Default)]
pub(crate) struct ExpiredRows {
    /// The reservations.
    pub(crate) reservations: Vec<ExpiredReservation>,
    /// Their seats.
    pub(crate) seats: Vec<FreedSeat>,
}

/// A reservation that was just expired.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpiredReservation {
    /// Its id.
    pub(crate) id: ReservationId,
    /// The deadline that had passed.
    pub(crate) deadline: Instant,
    /// Whether it has a payment: every payment stretches the deadline, once.
    pub(crate) has_payment: bool,
}

/// A seat that was just freed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreedSeat {
    /// Its event.
    pub(crate) event: EventId,
    /// The seat.
    pub(crate) seat: SeatId,
    /// Whose it was.
    pub(crate) reservation: ReservationId,
}

/// Cancels those of the reservations that are PENDING, past their deadline and not being captured; frees their seats
/// and logs it. Returns those it cancelled: for all others nothing changes, however often or late this is repeated.
pub(crate) async fn expire_reservations(
    tx: &mut Tx,
    ids: &[ReservationId],
    offset_ms: i64,
) -> Result<ExpiredRows, PgError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let due = sqlx::query!(
        "SELECT event_id, id, expires_at, payment_stretched FROM reservations
         WHERE id = ANY ($1) AND status = 'PENDING' AND committed_at IS NULL AND expires_at <= hf_now($2)
         ORDER BY id FOR UPDATE",
        &ids,
        offset_ms
    )
    .fetch_all(&mut **tx)
    .await?;
    let locked: Vec<(EventId, ReservationId)> =
        due.iter().map(|row| (EventId(row.event_id), ReservationId(row.id))).collect();
    let seats = cancel_locked(tx, &locked, (CancelReason::Expired, "deadline"), offset_ms).await?;
    let reservations = due.into_iter().map(|row| ExpiredReservation {
        id: ReservationId(row.id),
        deadline: row.expires_at,
        has_payment: row.payment_stretched,
    });
    Ok(ExpiredRows { reservations: reservations.collect(), seats })
}

/// Cancels reservations that are locked and known to be PENDING: their claims go, by compare-and-set on the owner.
/// Returns the seats.
pub(crate) async fn cancel_locked(
    tx: &mut Tx,
    locked: &[(EventId, ReservationId)],
    (reason, actor): (CancelReason, &str),
    offset_ms: i64,
) -> Result<Vec<FreedSeat>, PgError> {
    if locked.is_empty() {
        return Ok(Vec::new());
    }
    let events: Vec<Uuid> = locked.iter().map(|(event, _)| event.0).collect();
    let ids: Vec<Uuid> = locked.iter().map(|(_, id)| id.0).collect();
    let freed = sqlx::query!(
        r#"WITH doomed AS (SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS doomed (event_id, id)),
         cancelled AS (
             UPDATE reservations r
             SET status = 'CANCELLED', cancel_reason = $3, committed_at = NULL, generation = generation + 1,
                 ended_at = CASE WHEN $3 = 'expired' THEN r.expires_at ELSE hf_now($5) END
             FROM doomed WHERE r.event_id = doomed.event_id AND r.id = doomed.id),
         freed AS (
             DELETE FROM seat_claims c USING doomed
             JOIN reservation_seats rs ON rs.event_id = doomed.event_id AND rs.reservation_id = doomed.id
             WHERE c.event_id = rs.event_id AND c.seat_id = rs.seat_id AND c.reservation_id = doomed.id
             RETURNING c.event_id, c.seat_id, c.reservation_id, c.state),
         logged AS (
             INSERT INTO seat_log (event_id, seat_id, reservation_id, actor, reason, before, after, at)
             SELECT event_id, seat_id, reservation_id, $4, $3, state, 'available', hf_now($5) FROM freed
             ORDER BY event_id, seat_id)
         SELECT event_id, seat_id, reservation_id AS "reservation_id!" FROM freed"#,
        &events,
        &ids,
        reason.as_str(),
        actor,
        offset_ms
    )
    .fetch_all(&mut **tx)
    .await?;
    let freed = freed.into_iter().map(|row| FreedSeat {
        event: EventId(row.event_id),
        seat: SeatId(row.seat_id),
        reservation: ReservationId(row.reservation_id),
    });
    Ok(freed.collect())
}

/// Moves the deadline of a locked PENDING reservation and of its claims.
pub(crate) async fn move_deadline(
    tx: &mut Tx,
    head: &ReservationHead,
    (expires_at, by_payment): (Instant, bool),
) -> Result<(), PgError> {
    sqlx::query!(
        "WITH moved AS (
             UPDATE reservations
             SET expires_at = $3, generation = generation + 1,
                 payment_stretched = payment_stretched OR $4, extensions = extensions + CASE WHEN $4 THEN 0 ELSE 1 END
             WHERE event_id = $1 AND id = $2)
         UPDATE seat_claims c SET expires_at = $3, generation = c.generation + 1
         FROM reservation_seats rs
         WHERE rs.event_id = $1 AND rs.reservation_id = $2 AND c.event_id = $1 AND c.seat_id = rs.seat_id
           AND c.reservation_id = $2 AND c.state = 'held'",
        head.event.0,
        head.id.0,
        expires_at,
        by_payment
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
