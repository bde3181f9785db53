//! PENDING reservations in numbers: written by SQL as holds would have left them, since a million requests would take
//! minutes and their deadlines would fall where they liked.

use anyhow::{Context as _, Result};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use uuid::Uuid;

/// Which seats of an event are held, and when their deadlines fall.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    /// The event.
    pub event: Uuid,
    /// The first seat, counted block by block.
    pub first: i64,
    /// How many seats, each by a reservation of its own.
    pub count: i64,
    /// The first deadline, ms since the epoch.
    pub from_ms: i64,
    /// The deadlines lie evenly in so many ms.
    pub span_ms: i64,
}

/// A held seat.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct PendingSeat {
    /// Its reservation.
    pub reservation: Uuid,
    /// Its block.
    pub block: String,
    /// Its column.
    pub column_label: String,
    /// Its row.
    pub row_label: String,
    /// Its place in the block, counted from 0, where all seats before it are held too.
    pub index: i64,
    /// The event's date key.
    pub date_key: String,
    /// The deadline, ms since the epoch.
    pub deadline_ms: i64,
}

/// A pool without limits on its statements.
pub async fn connect(url: &str) -> Result<PgPool> {
    PgPoolOptions::new().max_connections(4).connect(url).await.context("cannot reach Postgres")
}

/// Neighbours come due far apart: 7,919 is a prime. The ids are of version 7, as those of holds.
const MAKE: &str = "
    CREATE TEMP TABLE made ON COMMIT DROP AS
    SELECT n, seat_id, amount, currency,
           (lpad(to_hex($4 - 600000 + n / 100), 12, '0') || '7' || substr(random, 1, 3) || 'a' || substr(random, 4, 15))::uuid
               AS id,
           'epoch'::timestamptz + ($4 + (n * 7919 % $3) * $5 / $3) * interval '1 millisecond' AS deadline
    FROM (SELECT s.id AS seat_id, p.amount, e.currency,
                 row_number() OVER (ORDER BY b.ordinal, s.ordinal) - 1 - $2 AS n, md5(s.id::text || e.id) AS random
          FROM events e JOIN seats s ON s.venue_id = e.venue_id JOIN blocks b ON b.id = s.block_id
          JOIN prices p ON p.event_id = e.id AND p.category = s.category
          WHERE e.id = $1) AS seats
    WHERE n BETWEEN 0 AND $3 - 1";

const HOLD: [&str; 4] = [
    "INSERT INTO reservations (event_id, id, buyer, status, amount, currency, seat_count, created_at, expires_at, extends_until)
     SELECT $1, id, 'seed-' || n, 'PENDING', amount, currency, 1, deadline - interval '10 minutes', deadline, deadline
     FROM made ORDER BY id",
    "INSERT INTO seat_claims (event_id, seat_id, reservation_id, state, expires_at)
     SELECT $1, seat_id, id, 'held', deadline FROM made ORDER BY seat_id",
    "INSERT INTO reservation_seats (event_id, reservation_id, seat_id, price) SELECT $1, id, seat_id, amount FROM made ORDER BY id",
    "INSERT INTO seat_log (event_id, seat_id, reservation_id, actor, reason, before, after, at)
     SELECT $1, seat_id, id, 'buyer', 'held', 'available', 'held', deadline - interval '10 minutes' FROM made ORDER BY id",
];

/// Writes the reservations. Redis does not know them until a warm-up.
pub async fn hold_by_sql(pool: &PgPool, pending: Pending) -> Result<()> {
    let mut tx = pool.begin().await?;
    let Pending { event, first, count, from_ms, span_ms } = pending;
    sqlx::query(MAKE).bind(event).bind(first).bind(count).bind(from_ms).bind(span_ms).execute(&mut *tx).await?;
    for insert in HOLD {
        sqlx::query(insert).bind(event).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// The seats that are held in an event.
pub async fn pending_seats(pool: &PgPool, event: Uuid) -> Result<Vec<PendingSeat>> {
    let seats = sqlx::query_as(
        "SELECT c.reservation_id AS reservation, b.block, s.column_label, s.row_label, e.date_key,
                row_number() OVER (PARTITION BY b.id ORDER BY s.ordinal) - 1 AS index,
                (extract(epoch FROM c.expires_at) * 1000)::bigint AS deadline_ms
         FROM seat_claims c JOIN events e ON e.id = c.event_id JOIN seats s ON s.id = c.seat_id
         JOIN blocks b ON b.id = s.block_id
         WHERE c.event_id = $1 AND c.state = 'held' ORDER BY b.ordinal, s.ordinal",
    );
    Ok(seats.bind(event).fetch_all(pool).await?)
}

/// A seat by its place.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Place {
    /// Its block.
    pub block: String,
    /// Its column.
    pub column_label: String,
    /// Its row.
    pub row_label: String,
}

/// All seats of an event, block by block.
pub async fn places(pool: &PgPool, event: Uuid) -> Result<Vec<Place>> {
    let places = sqlx::query_as(
        "SELECT b.block, s.column_label, s.row_label FROM seats s JOIN blocks b ON b.id = s.block_id
         JOIN events e ON e.venue_id = s.venue_id WHERE e.id = $1 ORDER BY b.ordinal, s.ordinal",
    );
    Ok(places.bind(event).fetch_all(pool).await?)
}
