//! What Redis must show once everything has come to rest: lists, buckets, the deadline index and its keys.

use std::collections::{BTreeMap, BTreeSet};

use redis::aio::MultiplexedConnection;
use serde_json::{Map, Value};

use super::{AuditError, Installation};

/// The words of the source layout and ours: no bucket has another field.
const FIELDS: [&str; 8] =
    ["status", "userId", "matchId", "createdAt", "expiredAt", "reservationId", "deadlineMs", "version"];

#[derive(sqlx::FromRow)]
struct SeatRow {
    event_id: uuid::Uuid,
    date_key: String,
    block: String,
    row_label: String,
    column_label: String,
    state: Option<String>,
    expires_ms: Option<i64>,
    reservation_id: Option<uuid::Uuid>,
    buyer: Option<String>,
}

/// What Redis shows that Postgres does not say, for every event on sale.
///
/// # Errors
/// A store cannot be asked.
pub async fn audit_redis(of: &Installation<'_>) -> Result<Vec<String>, AuditError> {
    let mut redis = of.redis.clone();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut redis).await?;
    let now_ms = seconds * 1_000 + micros / 1_000 + of.redis_offset_ms;
    let rows: Vec<SeatRow> = sqlx::query_as(
        "SELECT e.id AS event_id, e.date_key, b.block, s.row_label, s.column_label, c.state, c.reservation_id, r.buyer,
                (extract(epoch FROM c.expires_at) * 1000)::bigint AS expires_ms
         FROM events e JOIN blocks b ON b.venue_id = e.venue_id JOIN seats s ON s.block_id = b.id
         LEFT JOIN seat_claims c ON c.event_id = e.id AND c.seat_id = s.id
         LEFT JOIN reservations r ON r.event_id = e.id AND r.id = c.reservation_id
         WHERE e.status = 'on_sale' ORDER BY e.id, b.ordinal, s.ordinal",
    )
    .fetch_all(of.sql)
    .await?;
    let mut blocks: BTreeMap<(String, String), Vec<SeatRow>> = BTreeMap::new();
    for row in rows {
        blocks.entry((row.date_key.clone(), row.block.clone())).or_default().push(row);
    }
    let mut findings = Vec::new();
    for ((date, block), seats) in &blocks {
        audit_block(of, &mut redis, (date, block, seats, now_ms), &mut findings).await?;
    }
    audit_deadlines(of, &mut redis, &mut findings).await?;
    Ok(findings)
}

async fn audit_block(
    of: &Installation<'_>,
    redis: &mut MultiplexedConnection,
    (date, block, seats, now_ms): (&str, &str, &[SeatRow], i64),
    findings: &mut Vec<String>,
) -> Result<(), AuditError> {
    let place =
        if of.cluster_tags { format!("{{{date}:{}}}", escaped(block)) } else { format!("{date}:{}", escaped(block)) };
    let keys: Vec<String> = seats
        .iter()
        .map(|seat| of.key(&format!("seat:{place}:{}:{}", escaped(&seat.column_label), escaped(&seat.row_label))))
        .collect();
    let list = of.key(&format!("seatKeys:{place}"));
    let listed: Vec<String> = redis::cmd("LRANGE").arg(&list).arg(0).arg(-1).query_async(redis).await?;
    if listed != keys {
        findings.push(format!("{list} has {} keys, not the block's {} in seat order", listed.len(), keys.len()));
    }
    let lifetime: i64 = redis::cmd("PTTL").arg(&list).query_async(redis).await?;
    if lifetime != -1 {
        findings.push(format!("{list} would vanish in {lifetime} ms"));
    }
    let version: Option<u64> =
        redis::cmd("GET").arg(of.key(&format!("seatVersion:{place}"))).query_async(redis).await?;
    for (seats, keys) in seats.chunks(500).zip(keys.chunks(500)) {
        let values: Vec<Option<String>> = redis::cmd("MGET").arg(keys).query_async(redis).await?;
        for ((seat, key), value) in seats.iter().zip(keys).zip(values) {
            audit_bucket(seat, key, value.as_deref(), (now_ms, version.unwrap_or(0)), findings);
        }
    }
    Ok(())
}

fn audit_bucket(
    seat: &SeatRow,
    key: &str,
    value: Option<&str>,
    (now_ms, version): (i64, u64),
    findings: &mut Vec<String>,
) {
    let Some(value) = value else {
        findings.push(format!("{key} is absent"));
        return;
    };
    let Ok(bucket) = serde_json::from_str::<Map<String, Value>>(value) else {
        findings.push(format!("{key} is no JSON object: {value}"));
        return;
    };
    for (name, field) in &bucket {
        if !FIELDS.contains(&name.as_str()) || !field.is_string() {
            findings.push(format!("{key} has a field {name} = {field}: all are text, and all are known"));
        }
    }
    let field = |name: &str| bucket.get(name).and_then(Value::as_str);
    let number = |name: &str| field(name).and_then(|text| text.parse::<i64>().ok());
    if field("matchId") != Some(seat.event_id.to_string().as_str()) {
        findings.push(format!("{key} is of another event: {value}"));
    }
    if number("version").is_none_or(|seen| seen < 1 || seen.unsigned_abs() > version) {
        findings.push(format!("{key} has a version beyond its block's {version}: {value}"));
    }
    let is_dead = |deadline: Option<i64>| deadline.is_some_and(|deadline| deadline <= now_ms);
    let is_live = !is_dead(seat.expires_ms);
    let wanted = match seat.state.as_deref() {
        Some("held" | "committed") if is_live => "held",
        Some("sold") => "sold",
        Some("blocked") => "blocked",
        _ => "available",
    };
    let shown = match field("status") {
        Some("held") if is_dead(number("deadlineMs")) => Some("available"),
        shown => shown,
    };
    if shown != Some(wanted) {
        findings.push(format!("I6: {key} shows {shown:?}, Postgres says {wanted}: {value}"));
    } else if wanted == "held" || wanted == "sold" {
        let owner = seat.reservation_id.map(|id| id.to_string());
        if field("reservationId") != owner.as_deref() || field("userId") != seat.buyer.as_deref() {
            findings.push(format!("I6: {key} shows another owner than {owner:?}: {value}"));
        }
        if number("deadlineMs") != seat.expires_ms || field("deadlineMs").is_some() != field("expiredAt").is_some() {
            findings.push(format!("I6: {key} shows another deadline than {:?}: {value}", seat.expires_ms));
        }
        if field("createdAt").is_none_or(|text| text.len() != "20250410 12:00:00".len()) {
            findings.push(format!("{key} does not say when it was made: {value}"));
        }
    }
}

/// The index has exactly the reservations that can expire, with their deadlines; each has its key.
async fn audit_deadlines(
    of: &Installation<'_>,
    redis: &mut MultiplexedConnection,
    findings: &mut Vec<String>,
) -> Result<(), AuditError> {
    let rows: Vec<(uuid::Uuid, i64)> = sqlx::query_as(
        "SELECT id, (extract(epoch FROM expires_at) * 1000)::bigint FROM reservations
         WHERE status = 'PENDING' AND committed_at IS NULL",
    )
    .fetch_all(of.sql)
    .await?;
    let wanted: BTreeMap<String, i64> = rows.into_iter().map(|(id, at)| (id.to_string(), at)).collect();
    let index: Vec<(String, f64)> =
        redis::cmd("ZRANGE").arg(of.deadlines_key()).arg(0).arg(-1).arg("WITHSCORES").query_async(redis).await?;
    #[expect(clippy::cast_possible_truncation, reason = "a score is whole milliseconds, far below 2^53")]
    let index: BTreeMap<String, i64> = index.into_iter().map(|(id, score)| (id, score as i64)).collect();
    if index != wanted {
        findings.push(format!("the deadline index has {index:?}, Postgres says {wanted:?}"));
    }
    let stem = of.key("expired:reservation:");
    let keys: BTreeSet<String> =
        of.keys().await?.into_iter().filter_map(|key| key.strip_prefix(&stem).map(str::to_owned)).collect();
    if keys != wanted.keys().cloned().collect() {
        findings.push(format!("the keys that die at a deadline are {keys:?}, Postgres says {:?}", wanted.keys()));
    }
    Ok(())
}

/// The percent-encoding that design.md writes down, spelled out here once more so that a slip there is seen.
fn escaped(label: &str) -> String {
    let mut escaped = String::new();
    for character in label.chars() {
        if ":%{}".contains(character) || character.is_whitespace() || character.is_control() {
            for byte in character.to_string().bytes() {
                escaped.push_str(&format!("%{byte:02X}"));
            }
        } else {
            escaped.push(character);
        }
    }
    escaped
}
