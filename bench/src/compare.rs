//! Compares Redis with Postgres seat by seat, by queries of its own: the engine's healing is not asked.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use domain::label::Label;
use domain::runtime::clock::system_ms;
use domain::store::redis::keys::{BlockKey, KeyScheme};
use redis::aio::MultiplexedConnection;
use serde::Deserialize;
use sqlx::PgPool;
use uuid::Uuid;

/// One seat as Postgres has it.
#[derive(Debug, sqlx::FromRow)]
pub struct Truth {
    block: String,
    column_label: String,
    row_label: String,
    date_key: String,
    state: Option<String>,
    reservation: Option<Uuid>,
    deadline_ms: Option<i64>,
}

/// What a seat bucket says, as far as it is compared.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bucket {
    status: String,
    reservation_id: Option<String>,
    deadline_ms: Option<String>,
    created_at: Option<String>,
}

impl Bucket {
    fn is_gate(&self) -> bool {
        self.status == "held" && self.created_at.is_none()
    }

    /// Somebody is just taking the seat. A gate that has run out says that it is available.
    fn stands_as_gate(&self) -> bool {
        let deadline = self.deadline_ms.as_deref().and_then(|ms| ms.parse().ok());
        self.is_gate() && deadline.is_some_and(|deadline: i64| deadline > system_ms())
    }
}

/// What a comparison found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Seats that were compared.
    pub seats: u64,
    /// Seats without a bucket.
    pub absent: u64,
    /// Seats whose bucket says something else.
    pub wrong: u64,
    /// Seats with a gate before them: somebody is just taking them.
    pub gated: u64,
    /// Held seats whose reservation's deadline is not in the index, or is another there.
    pub index_wrong: u64,
    /// Held seats whose reservation has no key that dies at the deadline.
    pub keys_wrong: u64,
}

impl Comparison {
    /// Whether Redis shows what Postgres has.
    pub fn is_right(&self) -> bool {
        self.absent + self.wrong + self.index_wrong + self.keys_wrong == 0
    }

    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.seats += other.seats;
        self.absent += other.absent;
        self.wrong += other.wrong;
        self.gated += other.gated;
        self.index_wrong += other.index_wrong;
        self.keys_wrong += other.keys_wrong;
    }
}

/// How much is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The seat buckets.
    Picture,
    /// The deadline index and the keys as well.
    Deadlines,
}

/// The seats of an event, block by block. Claims that are past their deadline are none.
const SEATS: &str = "
    SELECT b.block, s.column_label, s.row_label, e.date_key, c.state, c.reservation_id AS reservation,
           (extract(epoch FROM c.expires_at) * 1000)::bigint AS deadline_ms
    FROM events e JOIN seats s ON s.venue_id = e.venue_id JOIN blocks b ON b.id = s.block_id
    LEFT JOIN seat_claims c ON c.event_id = e.id AND c.seat_id = s.id
        AND (c.expires_at IS NULL OR c.expires_at > date_trunc('milliseconds', now()))
    WHERE e.id = $1 AND b.ordinal = $2 ORDER BY s.ordinal";

/// Compares one block. What changes between the two readings looks wrong once, and not again.
pub async fn compare_block(
    pool: &PgPool,
    redis: &mut MultiplexedConnection,
    (event, block): (Uuid, i32),
    depth: Depth,
) -> Result<Comparison> {
    let seats: Vec<Truth> = sqlx::query_as(SEATS).bind(event).bind(block).fetch_all(pool).await?;
    let keys = keys_of(&seats)?;
    let mut found = Comparison { seats: u64::try_from(seats.len())?, ..Comparison::default() };
    let mut values: Vec<Option<String>> = Vec::with_capacity(keys.len());
    for chunk in keys.chunks(500) {
        let mut some: Vec<Option<String>> = redis::cmd("MGET").arg(chunk).query_async(redis).await?;
        values.append(&mut some);
    }
    for (seat, value) in seats.iter().zip(&values) {
        let bucket: Option<Bucket> = value.as_deref().and_then(|value| serde_json::from_str(value).ok());
        match bucket {
            None => found.absent += 1,
            Some(bucket) if bucket.stands_as_gate() => found.gated += 1,
            Some(bucket) => found.wrong += u64::from(!seat.is_shown_by(&bucket)),
        }
    }
    if depth == Depth::Deadlines {
        compare_deadlines(redis, &seats, &mut found).await?;
    }
    Ok(found)
}

/// A connection that is patient: flushing a million keys takes Redis more than the client's half second.
pub async fn connect(redis_url: &str) -> Result<MultiplexedConnection> {
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    Ok(redis::Client::open(redis_url)?.get_multiplexed_async_connection_with_config(&patient).await?)
}

/// Compares a whole event.
pub async fn compare_event(pool: &PgPool, redis_url: &str, event: Uuid, depth: Depth) -> Result<Comparison> {
    let mut redis = connect(redis_url).await?;
    let mut found = Comparison::default();
    for block in blocks(pool, event).await? {
        found.add(compare_block(pool, &mut redis, (event, block), depth).await?);
    }
    Ok(found)
}

/// The blocks of an event.
pub async fn blocks(pool: &PgPool, event: Uuid) -> Result<Vec<i32>> {
    let blocks = sqlx::query_scalar(
        "SELECT b.ordinal FROM blocks b JOIN events e ON e.venue_id = b.venue_id WHERE e.id = $1 ORDER BY 1",
    );
    Ok(blocks.bind(event).fetch_all(pool).await?)
}

fn keys_of(seats: &[Truth]) -> Result<Vec<String>> {
    let scheme = KeyScheme::new("", false)?;
    let mut labels: HashMap<&str, BlockKey> = HashMap::new();
    let mut keys = Vec::with_capacity(seats.len());
    for seat in seats {
        if !labels.contains_key(seat.block.as_str()) {
            let key = BlockKey { date: seat.date_key.as_str().into(), block: Label::parse(&seat.block)? };
            labels.insert(&seat.block, key);
        }
        keys.push(scheme.seat(
            &labels[seat.block.as_str()],
            &Label::parse(&seat.column_label)?,
            &Label::parse(&seat.row_label)?,
        ));
    }
    Ok(keys)
}

impl Truth {
    fn is_shown_by(&self, bucket: &Bucket) -> bool {
        if bucket.is_gate() {
            return self.state.is_none();
        }
        let status = match self.state.as_deref() {
            None => "available",
            Some("committed") => "held",
            Some(state) => state,
        };
        bucket.status == status
            && bucket.reservation_id == self.reservation.map(|id| id.to_string())
            && bucket.deadline_ms == self.deadline_ms.map(|ms| ms.to_string())
    }
}

async fn compare_deadlines(redis: &mut MultiplexedConnection, seats: &[Truth], found: &mut Comparison) -> Result<()> {
    let scheme = KeyScheme::new("", false)?;
    let held: Vec<(Uuid, i64)> = seats.iter().filter_map(|seat| Some((seat.reservation?, seat.deadline_ms?))).collect();
    let mut pipe = redis::pipe();
    for (id, _) in &held {
        pipe.cmd("ZSCORE").arg(scheme.deadlines()).arg(id.to_string());
        pipe.cmd("PEXPIRETIME").arg(scheme.expired(domain::id::ReservationId(*id)));
    }
    let answers: Vec<Option<f64>> = if held.is_empty() { Vec::new() } else { pipe.query_async(redis).await? };
    for ((_, deadline_ms), answer) in held.iter().zip(answers.chunks_exact(2)) {
        let wanted = Some(*deadline_ms as f64);
        found.index_wrong += u64::from(answer[0] != wanted);
        found.keys_wrong += u64::from(answer[1] != wanted);
    }
    Ok(())
}
