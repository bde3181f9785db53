//! What is wrong in a page of reservations: one statement for each rule.

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use crate::id::{PaymentId, ReservationId, SeatId};
use crate::store::pg::PgError;

use super::{MisclaimedSeat, MiscountedReservation, MispaidReservation};

/// The event; after this reservation; up to this one.
pub(super) type Range = (Uuid, Uuid, Uuid);

pub(super) async fn misclaimed(
    tx: &mut Transaction<'static, Postgres>,
    (event, after, last): Range,
) -> Result<Vec<MisclaimedSeat>, PgError> {
    let rows = sqlx::query!(
        r#"SELECT r.id, r.status, r.committed_at IS NOT NULL AS "is_committed!", r.expires_at, rs.seat_id,
                  c.state AS "claim?", c.reservation_id AS "owner?", c.expires_at AS "claim_expires_at?",
                  EXISTS (SELECT 1 FROM reservations o WHERE o.event_id = c.event_id AND o.id = c.reservation_id
                          AND o.status <> 'CANCELLED') AS "is_owner_alive!"
           FROM reservations r
           JOIN reservation_seats rs ON rs.event_id = r.event_id AND rs.reservation_id = r.id
           LEFT JOIN seat_claims c ON c.event_id = rs.event_id AND c.seat_id = rs.seat_id
           WHERE r.event_id = $1 AND r.id > $2 AND r.id <= $3 AND r.status <> 'CANCELLED'
             AND (c.reservation_id IS DISTINCT FROM r.id
                  OR c.state <> CASE WHEN r.status = 'CONFIRMED' THEN 'sold' WHEN r.committed_at IS NULL THEN 'held'
                                     ELSE 'committed' END
                  OR (c.state = 'held' AND c.expires_at <> r.expires_at))"#,
        event,
        after,
        last
    )
    .fetch_all(&mut **tx)
    .await?;
    let seats = rows.into_iter().map(|row| MisclaimedSeat {
        reservation: ReservationId(row.id),
        status: row.status,
        is_committed: row.is_committed,
        expires_at: row.expires_at,
        seat: SeatId(row.seat_id),
        claim: row.claim,
        owner: row.owner.map(ReservationId),
        claim_expires_at: row.claim_expires_at,
        is_owner_alive: row.is_owner_alive,
    });
    Ok(seats.collect())
}

pub(super) async fn miscounted(
    tx: &mut Transaction<'static, Postgres>,
    (event, after, last): Range,
) -> Result<Vec<MiscountedReservation>, PgError> {
    let rows = sqlx::query!(
        r#"SELECT r.id, r.seat_count::bigint AS "seat_count!", r.amount, count(rs.seat_id) AS "seats!",
                  coalesce(sum(rs.price), 0)::bigint AS "sum!"
           FROM reservations r
           LEFT JOIN reservation_seats rs ON rs.event_id = r.event_id AND rs.reservation_id = r.id
           WHERE r.event_id = $1 AND r.id > $2 AND r.id <= $3
           GROUP BY r.event_id, r.id
           HAVING count(rs.seat_id) <> r.seat_count OR coalesce(sum(rs.price), 0) <> r.amount"#,
        event,
        after,
        last
    )
    .fetch_all(&mut **tx)
    .await?;
    let reservations = rows.into_iter().map(|row| MiscountedReservation {
        reservation: ReservationId(row.id),
        row: (row.seat_count, row.amount),
        seats: (row.seats, row.sum),
    });
    Ok(reservations.collect())
}

pub(super) async fn mispaid(
    tx: &mut Transaction<'static, Postgres>,
    (event, after, last): Range,
) -> Result<Vec<MispaidReservation>, PgError> {
    let rows = sqlx::query!(
        r#"SELECT r.id, r.status, r.amount, r.currency, paid.kept AS "kept!", paid.payment,
                  EXISTS (SELECT 1 FROM refunds f WHERE f.event_id = r.event_id AND f.reservation_id = r.id
                          AND f.status = 'requested') AS "has_refund!",
                  EXISTS (SELECT 1 FROM payments p JOIN outbox o ON o.event_id = p.event_id AND o.id = p.id
                          WHERE p.event_id = r.event_id AND p.reservation_id = r.id) AS "has_row!"
           FROM reservations r CROSS JOIN LATERAL (
                SELECT coalesce(sum(p.amount - p.refunded_amount), 0)::bigint AS kept,
                       (array_agg(p.id ORDER BY p.id DESC))[1] AS payment
                FROM payments p WHERE p.event_id = r.event_id AND p.reservation_id = r.id
                  AND p.status IN ('captured', 'partly_refunded', 'refunded')) AS paid
           WHERE r.event_id = $1 AND r.id > $2 AND r.id <= $3
             AND paid.kept <> CASE WHEN r.status = 'CONFIRMED' THEN r.amount ELSE 0 END"#,
        event,
        after,
        last
    )
    .fetch_all(&mut **tx)
    .await?;
    let reservations = rows.into_iter().map(|row| MispaidReservation {
        reservation: ReservationId(row.id),
        status: row.status,
        amount: row.amount,
        kept: row.kept,
        has_refund: row.has_refund,
        has_row: row.has_row,
        payment: row.payment.map(PaymentId),
        currency: row.currency,
    });
    Ok(reservations.collect())
}
