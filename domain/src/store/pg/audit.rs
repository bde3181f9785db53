//! What the audit asks Postgres: pages by key, one snapshot for each page, nothing written.

mod reservations;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use crate::id::{Buyer, EventId, OutboxId, PaymentId, ReservationId, SeatId};
use crate::seat::ClaimState;
use crate::time::Instant;

use super::{Pg, PgError};
use reservations::{misclaimed, miscounted, mispaid};

/// A claim as the audit compares it with a bucket.
#[derive(Debug, Clone)]
pub struct AuditedClaim {
    /// The seat.
    pub seat: SeatId,
    /// What it is.
    pub state: ClaimState,
    /// When it dies, if it is held.
    pub expires_at: Option<Instant>,
    /// Grows with every change.
    pub generation: i32,
    /// Whose.
    pub reservation: Option<ReservationId>,
    /// The buyer of the reservation.
    pub buyer: Option<Buyer>,
}

/// A seat of a reservation that is alive, and the claim on it, where the two do not fit.
#[derive(Debug, Clone)]
pub struct MisclaimedSeat {
    /// The reservation.
    pub reservation: ReservationId,
    /// Its status in words.
    pub status: String,
    /// Whether its seats are committed to a payment.
    pub is_committed: bool,
    /// Its deadline.
    pub expires_at: Instant,
    /// The seat.
    pub seat: SeatId,
    /// The claim's state; none where there is no claim.
    pub claim: Option<String>,
    /// Whose the claim is.
    pub owner: Option<ReservationId>,
    /// When the claim dies.
    pub claim_expires_at: Option<Instant>,
    /// Whether the claim's own reservation is alive.
    pub is_owner_alive: bool,
}

/// A reservation that can expire.
#[derive(Debug, Clone, Copy)]
pub struct AuditedDeadline {
    /// Its event.
    pub event: EventId,
    /// Its id.
    pub reservation: ReservationId,
    /// Its deadline.
    pub expires_at: Instant,
    /// Grows with every change.
    pub generation: i32,
    /// The database's clock.
    pub read_at: Instant,
}

/// A reservation whose seats or prices do not add up to its row.
#[derive(Debug, Clone)]
pub struct MiscountedReservation {
    /// The reservation.
    pub reservation: ReservationId,
    /// What its row says: seats and sum.
    pub row: (i64, i64),
    /// What its seats say.
    pub seats: (i64, i64),
}

/// A reservation whose money is not what it should be.
#[derive(Debug, Clone)]
pub struct MispaidReservation {
    /// The reservation.
    pub reservation: ReservationId,
    /// Its status in words.
    pub status: String,
    /// The price of its seats.
    pub amount: i64,
    /// Captured and not given back.
    pub kept: i64,
    /// Whether a refund of it is asked for, and not done.
    pub has_refund: bool,
    /// Whether a row of the outbox is bringing one of its payments on.
    pub has_row: bool,
    /// The last of its payments that took money.
    pub payment: Option<PaymentId>,
    /// Its currency.
    pub currency: String,
}

/// A page of an event's reservations: its last key, and what is wrong in it.
#[derive(Debug, Default)]
pub struct ReservationsPage {
    /// The last reservation; none after the last page.
    pub last: Option<ReservationId>,
    /// How many.
    pub count: u64,
    /// Seats that the claims do not agree with.
    pub misclaimed: Vec<MisclaimedSeat>,
    /// Reservations that do not add up.
    pub miscounted: Vec<MiscountedReservation>,
    /// Reservations whose money is not right.
    pub mispaid: Vec<MispaidReservation>,
    /// Those that can expire.
    pub deadlines: Vec<AuditedDeadline>,
}

/// A claim that no reservation stands behind.
#[derive(Debug, Clone)]
pub struct StrayClaim {
    /// The seat.
    pub seat: SeatId,
    /// The claim's state in words.
    pub state: String,
    /// Whose it says it is.
    pub reservation: Option<ReservationId>,
    /// That reservation's status; none where there is none.
    pub status: Option<String>,
}

/// A payment with what the audit compares it with.
#[derive(Debug, Clone)]
pub struct AuditedPayment {
    /// Its id.
    pub id: PaymentId,
    /// Its status in words.
    pub status: String,
    /// How much is asked for.
    pub amount: i64,
    /// How much of it is given back.
    pub refunded: i64,
    /// How much of it its refunds say is given back.
    pub refunds_done: i64,
    /// A refund that is asked for and not done.
    pub has_refund: bool,
    /// Whether a row of the outbox brings it on.
    pub has_row: bool,
    /// Whether its reservation exists.
    pub has_reservation: bool,
    /// Its reservation.
    pub reservation: ReservationId,
    /// Whether it is unfinished long after its window.
    pub is_late: bool,
    /// Whether it changed within the span that was asked for.
    pub is_recent: bool,
    /// When it last changed.
    pub updated_at: Instant,
}

/// An answer that was kept, and whose effect is not there.
#[derive(Debug, Clone)]
pub struct StrayAnswer {
    /// The event.
    pub event: EventId,
    /// What it was about.
    pub resource: Uuid,
    /// When.
    pub created_at: Instant,
}

impl Pg {
    /// One snapshot for all statements of a page; it cannot write.
    pub(crate) async fn begin_snapshot(&self) -> Result<Transaction<'static, Postgres>, PgError> {
        Ok(self.pool().begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?)
    }

    /// The claims on some seats of an event, with the database's clock.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audited_claims(
        &self,
        event: EventId,
        seats: &[SeatId],
    ) -> Result<(Instant, Vec<AuditedClaim>), PgError> {
        let seats: Vec<i64> = seats.iter().map(|seat| seat.0).collect();
        let mut tx = self.begin_snapshot().await?;
        let read_at =
            sqlx::query_scalar!(r#"SELECT hf_now($1) AS "now!""#, self.offset_ms()).fetch_one(&mut *tx).await?;
        let rows = sqlx::query!(
            r#"SELECT c.seat_id, c.state, c.expires_at, c.generation, c.reservation_id, r.buyer AS "buyer?"
               FROM seat_claims c LEFT JOIN reservations r ON r.event_id = c.event_id AND r.id = c.reservation_id
               WHERE c.event_id = $1 AND c.seat_id = ANY ($2)"#,
            event.0,
            &seats
        )
        .fetch_all(&mut *tx)
        .await?;
        let claims = rows.into_iter().map(|row| {
            Ok(AuditedClaim {
                seat: SeatId(row.seat_id),
                state: ClaimState::from_word(&row.state)
                    .ok_or_else(|| PgError::unreadable("seat_claims", "state", row.seat_id))?,
                expires_at: row.expires_at,
                generation: row.generation,
                reservation: row.reservation_id.map(ReservationId),
                buyer: row.buyer.as_deref().and_then(|buyer| Buyer::parse(buyer).ok()),
            })
        });
        Ok((read_at, claims.collect::<Result<_, PgError>>()?))
    }

    /// A page of an event's reservations, after `after`.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audit_reservations(
        &self,
        event: EventId,
        after: Option<ReservationId>,
        most: i64,
    ) -> Result<ReservationsPage, PgError> {
        let after = after.map_or(Uuid::nil(), |after| after.0);
        let mut tx = self.begin_snapshot().await?;
        let page = sqlx::query!(
            r#"SELECT count(*) AS "count!", (array_agg(id ORDER BY id DESC))[1] AS last
               FROM (SELECT id FROM reservations WHERE event_id = $1 AND id > $2 ORDER BY id LIMIT $3) AS page"#,
            event.0,
            after,
            most
        )
        .fetch_one(&mut *tx)
        .await?;
        let Some(last) = page.last else { return Ok(ReservationsPage::default()) };
        let range = (event.0, after, last);
        Ok(ReservationsPage {
            last: Some(ReservationId(last)),
            count: u64::try_from(page.count).unwrap_or(0),
            misclaimed: misclaimed(&mut tx, range).await?,
            miscounted: miscounted(&mut tx, range).await?,
            mispaid: mispaid(&mut tx, range).await?,
            deadlines: self.deadlines_between(&mut tx, range).await?,
        })
    }

    async fn deadlines_between(
        &self,
        tx: &mut Transaction<'static, Postgres>,
        (event, after, last): (Uuid, Uuid, Uuid),
    ) -> Result<Vec<AuditedDeadline>, PgError> {
        let rows = sqlx::query!(
            r#"SELECT id, expires_at, generation, hf_now($4) AS "read_at!" FROM reservations
               WHERE event_id = $1 AND id > $2 AND id <= $3 AND status = 'PENDING' AND committed_at IS NULL"#,
            event,
            after,
            last,
            self.offset_ms()
        )
        .fetch_all(&mut **tx)
        .await?;
        let deadlines = rows.into_iter().map(|row| AuditedDeadline {
            event: EventId(event),
            reservation: ReservationId(row.id),
            expires_at: row.expires_at,
            generation: row.generation,
            read_at: row.read_at,
        });
        Ok(deadlines.collect())
    }

    /// Those of the reservations that can expire.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audited_deadlines(&self, ids: &[ReservationId]) -> Result<Vec<AuditedDeadline>, PgError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let mut tx = self.begin_snapshot().await?;
        let rows = sqlx::query!(
            r#"SELECT event_id, id, expires_at, generation, hf_now($2) AS "read_at!" FROM reservations
               WHERE id = ANY ($1) AND status = 'PENDING' AND committed_at IS NULL"#,
            &ids,
            self.offset_ms()
        )
        .fetch_all(&mut *tx)
        .await?;
        let deadlines = rows.into_iter().map(|row| AuditedDeadline {
            event: EventId(row.event_id),
            reservation: ReservationId(row.id),
            expires_at: row.expires_at,
            generation: row.generation,
            read_at: row.read_at,
        });
        Ok(deadlines.collect())
    }

    /// A page of an event's claims, after `after`: the last seat, how many, and those that nobody stands behind.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audit_claims(
        &self,
        event: EventId,
        after: Option<SeatId>,
        most: i64,
    ) -> Result<(Option<SeatId>, u64, Vec<StrayClaim>), PgError> {
        let after = after.map_or(i64::MIN, |after| after.0);
        let mut tx = self.begin_snapshot().await?;
        let page = sqlx::query!(
            r#"SELECT count(*) AS "count!", max(seat_id) AS last
               FROM (SELECT seat_id FROM seat_claims WHERE event_id = $1 AND seat_id > $2 ORDER BY seat_id LIMIT $3) AS page"#,
            event.0,
            after,
            most
        )
        .fetch_one(&mut *tx)
        .await?;
        let Some(last) = page.last else { return Ok((None, 0, Vec::new())) };
        let rows = sqlx::query!(
            r#"SELECT c.seat_id, c.state, c.reservation_id, r.status AS "status?"
               FROM seat_claims c
               LEFT JOIN reservations r ON r.event_id = c.event_id AND r.id = c.reservation_id
               LEFT JOIN reservation_seats rs ON rs.event_id = c.event_id AND rs.reservation_id = c.reservation_id
                    AND rs.seat_id = c.seat_id
               WHERE c.event_id = $1 AND c.seat_id > $2 AND c.seat_id <= $3 AND c.state <> 'blocked'
                 AND (rs.seat_id IS NULL OR r.id IS NULL OR r.status = 'CANCELLED')"#,
            event.0,
            after,
            last
        )
        .fetch_all(&mut *tx)
        .await?;
        let stray = rows.into_iter().map(|row| StrayClaim {
            seat: SeatId(row.seat_id),
            state: row.state,
            reservation: row.reservation_id.map(ReservationId),
            status: row.status,
        });
        Ok((Some(SeatId(last)), u64::try_from(page.count).unwrap_or(0), stray.collect()))
    }

    /// A page of an event's payments, after `after`. Recent = changed within `recent_ms`; late = unfinished for longer
    /// than `late_ms` after its window.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audit_payments(
        &self,
        event: EventId,
        after: Option<PaymentId>,
        (recent_ms, late_ms): (i64, i64),
        most: i64,
    ) -> Result<Vec<AuditedPayment>, PgError> {
        let mut tx = self.begin_snapshot().await?;
        let rows = sqlx::query!(
            r#"SELECT p.id, p.reservation_id, p.status, p.amount, p.refunded_amount, p.updated_at,
                      (SELECT coalesce(sum(f.amount), 0)::bigint FROM refunds f WHERE f.event_id = p.event_id
                         AND f.reservation_id = p.reservation_id AND f.payment_id = p.id AND f.status = 'done') AS "refunds_done!",
                      EXISTS (SELECT 1 FROM refunds f WHERE f.event_id = p.event_id
                         AND f.reservation_id = p.reservation_id AND f.payment_id = p.id AND f.status = 'requested')
                         AS "has_refund!",
                      EXISTS (SELECT 1 FROM outbox o WHERE o.event_id = p.event_id AND o.id = p.id) AS "has_row!",
                      EXISTS (SELECT 1 FROM reservations r WHERE r.event_id = p.event_id AND r.id = p.reservation_id)
                         AS "has_reservation!",
                      p.deadline + $5 * interval '1 millisecond' < hf_now($3) AS "is_late!",
                      p.updated_at > hf_now($3) - $4 * interval '1 millisecond' AS "is_recent!"
               FROM payments p WHERE p.event_id = $1 AND p.id > $2 ORDER BY p.id LIMIT $6"#,
            event.0,
            after.map_or(Uuid::nil(), |after| after.0),
            self.offset_ms(),
            recent_ms as f64,
            late_ms as f64,
            most
        )
        .fetch_all(&mut *tx)
        .await?;
        let payments = rows.into_iter().map(|row| AuditedPayment {
            id: PaymentId(row.id),
            status: row.status,
            amount: row.amount,
            refunded: row.refunded_amount,
            refunds_done: row.refunds_done,
            has_refund: row.has_refund,
            has_row: row.has_row,
            has_reservation: row.has_reservation,
            reservation: ReservationId(row.reservation_id),
            is_late: row.is_late,
            is_recent: row.is_recent,
            updated_at: row.updated_at,
        });
        Ok(payments.collect())
    }

    /// A page of kept answers that are about an event, by caller and key: the last key, and those whose effect is not
    /// there.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audit_answers(
        &self,
        event: Option<EventId>,
        after: (&str, &str),
        most: i64,
    ) -> Result<(Option<(String, String)>, Vec<StrayAnswer>), PgError> {
        let mut tx = self.begin_snapshot().await?;
        let page = sqlx::query!(
            "SELECT caller, key FROM (
                 SELECT caller, key FROM idempotency_keys WHERE (caller, key) > ($1, $2) ORDER BY caller, key LIMIT $3) AS page
             ORDER BY caller DESC, key DESC LIMIT 1",
            after.0,
            after.1,
            most
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(page) = page else { return Ok((None, Vec::new())) };
        let rows = sqlx::query!(
            r#"SELECT k.event_id AS "event!", k.resource_id AS "resource!", k.created_at FROM idempotency_keys k
               WHERE (k.caller, k.key) > ($1, $2) AND (k.caller, k.key) <= ($3, $4) AND k.status < 300
                 AND k.event_id IS NOT NULL AND k.resource_id IS NOT NULL AND ($5::uuid IS NULL OR k.event_id = $5)
                 AND k.resource_id <> k.event_id
                 AND NOT EXISTS (SELECT 1 FROM reservations r WHERE r.event_id = k.event_id AND r.id = k.resource_id)"#,
            after.0,
            after.1,
            page.caller,
            page.key,
            event.map(|event| event.0)
        )
        .fetch_all(&mut *tx)
        .await?;
        let stray = rows.into_iter().map(|row| StrayAnswer {
            event: EventId(row.event),
            resource: row.resource,
            created_at: row.created_at,
        });
        Ok((Some((page.caller, page.key)), stray.collect()))
    }

    /// Which of the reservations and events exist, of ids that may be either: what the deadline index may hold.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audit_index_ids(&self, ids: &[Uuid]) -> Result<Vec<Uuid>, PgError> {
        let known = sqlx::query_scalar!(
            r#"SELECT id AS "id!" FROM reservations
               WHERE id = ANY ($1) AND status = 'PENDING' AND committed_at IS NULL
               UNION ALL SELECT event_id FROM outbox WHERE event_id = ANY ($1)"#,
            ids
        )
        .fetch_all(self.pool())
        .await?;
        Ok(known)
    }

    /// Which of the outbox rows are open.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn audit_open_rows(&self, ids: &[OutboxId]) -> Result<Vec<OutboxId>, PgError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let open =
            sqlx::query_scalar!("SELECT id FROM outbox WHERE id = ANY ($1)", &ids).fetch_all(self.pool()).await?;
        Ok(open.into_iter().map(OutboxId).collect())
    }
}
