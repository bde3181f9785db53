//! What the rows must say at the end, of what callers were told.

use sqlx::PgPool;
use uuid::Uuid;

use super::{Oracle, Violation};
use crate::op::buyer_name;

/// Looks for every reservation that a caller was told of, by SQL of its own.
///
/// # Errors
/// Postgres does not answer.
pub async fn check_rows(oracle: &Oracle, sql: &PgPool) -> Result<Vec<Violation>, sqlx::Error> {
    let rows: Vec<(Uuid, String, String, Option<String>, i64, i64)> = sqlx::query_as(
        "SELECT r.id, r.buyer, r.status, r.cancel_reason, r.amount, count(rs.seat_id)
         FROM reservations r JOIN reservation_seats rs ON rs.event_id = r.event_id AND rs.reservation_id = r.id
         GROUP BY r.event_id, r.id",
    )
    .fetch_all(sql)
    .await?;
    let mut found = Vec::new();
    for (id, known) in oracle.known() {
        let Some((_, buyer, status, reason, amount, seats)) = rows.iter().find(|row| row.0 == id.0) else {
            found.push(Violation::new("lost", format!("{id} was acknowledged, and there is no such row")));
            continue;
        };
        let is_same = *buyer == buyer_name(known.buyer)
            && *amount == known.amount
            && usize::try_from(*seats).ok() == Some(known.seats.len());
        if !is_same {
            let what = format!("{id} was acknowledged to buyer {} for {}, and is {buyer}'s", known.buyer, known.amount);
            found.push(Violation::new("lost", what));
        }
        if known.confirmed_from_ms.is_some() && status != "CONFIRMED" {
            found.push(Violation::new("I2", format!("{id} was said to be confirmed, and is {status}")));
        }
        if known.is_over && !known.is_payment_possible && status != "CANCELLED" {
            found.push(Violation::new("answer", format!("{id} was said to be cancelled, and is {status}")));
        }
        let is_by_somebody = matches!(reason.as_deref(), Some("user" | "operator"));
        if is_by_somebody && !known.is_cancel_asked {
            found.push(Violation::new("lost", format!("{id} is cancelled by {reason:?}, and nobody asked for it")));
        }
    }
    Ok(found)
}
