//! Redis beside Postgres: every seat's bucket, every block's list, the deadline index and the keys that die.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use serde_json::{Map, Value};

use super::books::Stores;

/// Buckets in one MGET.
const CHUNK: usize = 500;

#[derive(Debug, sqlx::FromRow)]
struct SeatRow {
    event: String,
    date_key: String,
    block: String,
    row_label: String,
    column_label: String,
    state: Option<String>,
    expires_ms: Option<i64>,
    reservation: Option<String>,
    buyer: Option<String>,
}

const SEATS: &str = "
    SELECT e.id::text AS event, e.date_key, b.block, s.row_label, s.column_label, c.state, r.buyer,
           c.reservation_id::text AS reservation, (extract(epoch FROM c.expires_at) * 1000)::bigint AS expires_ms
    FROM events e JOIN blocks b ON b.venue_id = e.venue_id JOIN seats s ON s.block_id = b.id
    LEFT JOIN seat_claims c ON c.event_id = e.id AND c.seat_id = s.id
    LEFT JOIN reservations r ON r.event_id = e.id AND r.id = c.reservation_id
    WHERE e.status = 'on_sale' ORDER BY e.id, b.ordinal, s.ordinal";

/// What Redis shows that Postgres does not say, for every event on sale, and how many seats were compared. The labels
/// of a run's venue need no escaping.
pub(super) async fn compare_redis(stores: &Stores) -> Result<(Vec<String>, usize)> {
    let mut redis = stores.redis().await?;
    let rows: Vec<SeatRow> = sqlx::query_as(SEATS).fetch_all(&stores.pg).await?;
    let compared = rows.len();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut redis).await?;
    let now_ms = seconds * 1_000 + micros / 1_000;
    let mut blocks: BTreeMap<(String, String), Vec<SeatRow>> = BTreeMap::new();
    for row in rows {
        blocks.entry((row.date_key.clone(), row.block.clone())).or_default().push(row);
    }
    let mut found = Vec::new();
    for ((date, block), seats) in &blocks {
        let key = |seat: &SeatRow| format!("seat:{date}:{block}:{}:{}", seat.column_label, seat.row_label);
        let keys: Vec<String> = seats.iter().map(key).collect();
        let list = format!("seatKeys:{date}:{block}");
        let listed: Vec<String> = redis::cmd("LRANGE").arg(&list).arg(0).arg(-1).query_async(&mut redis).await?;
        if listed != keys {
            found.push(format!("{list} has {} keys, not the block's {} in seat order", listed.len(), keys.len()));
        }
        for (seats, keys) in seats.chunks(CHUNK).zip(keys.chunks(CHUNK)) {
            let values: Vec<Option<String>> = redis::cmd("MGET").arg(keys).query_async(&mut redis).await?;
            let each = seats.iter().zip(keys).zip(values);
            found.extend(each.filter_map(|((seat, key), value)| difference(seat, key, value.as_deref(), now_ms)));
        }
    }
    compare_deadlines(stores, &mut redis, &mut found).await?;
    let epoch: Option<String> = redis::cmd("GET").arg("holdfast:epoch").query_async(&mut redis).await?;
    if epoch.is_none() && !blocks.is_empty() {
        found.push("holdfast:epoch is absent: this Redis has not been warmed up".to_owned());
    }
    Ok((found, compared))
}

fn difference(seat: &SeatRow, key: &str, value: Option<&str>, now_ms: i64) -> Option<String> {
    let Some(value) = value else { return Some(format!("{key} is absent")) };
    let Ok(bucket) = serde_json::from_str::<Map<String, Value>>(value) else {
        return Some(format!("{key} is no JSON object: {value}"));
    };
    let field = |name: &str| bucket.get(name).and_then(Value::as_str);
    let deadline = field("deadlineMs").and_then(|text| text.parse::<i64>().ok());
    let is_dead = |deadline: Option<i64>| deadline.is_some_and(|deadline| deadline <= now_ms);
    let wanted = match seat.state.as_deref() {
        Some("held" | "committed") if !is_dead(seat.expires_ms) => "held",
        Some("sold") => "sold",
        Some("blocked") => "blocked",
        _ => "available",
    };
    let shown = match field("status") {
        Some("held") if is_dead(deadline) => Some("available"),
        shown => shown,
    };
    if shown != Some(wanted) {
        return Some(format!("{key} shows {}, Postgres says {wanted}: {value}", shown.unwrap_or("nothing")));
    }
    if field("matchId") != Some(seat.event.as_str()) {
        return Some(format!("{key} is of another event: {value}"));
    }
    let is_owned = matches!(wanted, "held" | "sold");
    let owner = (field("reservationId"), field("userId"), deadline);
    let says = (seat.reservation.as_deref(), seat.buyer.as_deref(), seat.expires_ms);
    (is_owned && owner != says).then(|| format!("{key} shows another owner or deadline than {says:?}: {value}"))
}

async fn compare_deadlines(stores: &Stores, redis: &mut MultiplexedConnection, found: &mut Vec<String>) -> Result<()> {
    let pending: Vec<String> =
        sqlx::query_scalar("SELECT id::text FROM reservations WHERE status = 'PENDING' AND committed_at IS NULL")
            .fetch_all(&stores.pg)
            .await?;
    let pending: BTreeSet<String> = pending.into_iter().collect();
    let index: Vec<String> = redis::cmd("ZRANGE").arg("holdfast:deadlines").arg(0).arg(-1).query_async(redis).await?;
    let index: BTreeSet<String> = index.into_iter().collect();
    found.extend(pending.difference(&index).map(|id| format!("{id} is PENDING, and not in the deadline index")));
    found.extend(index.difference(&pending).map(|id| format!("{id} is in the deadline index, and not PENDING")));
    let stem = "expired:reservation:";
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{stem}*")).query_async(redis).await?;
    let stale = keys.iter().filter_map(|key| key.strip_prefix(stem)).filter(|id| !pending.contains(*id));
    found.extend(stale.map(|id| format!("{stem}{id} is there, and the reservation is not PENDING")));
    Ok(())
}
