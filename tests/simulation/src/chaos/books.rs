//! What Postgres, the fake provider and Redis say.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use redis::aio::MultiplexedConnection;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::picture::compare_redis;

/// Both stores, reached directly.
#[derive(Debug)]
pub struct Stores {
    pub(super) pg: PgPool,
    redis: redis::Client,
}

/// What both say at one moment.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// The reservations, by id.
    pub reservations: HashMap<String, Reservation>,
    /// The claims.
    pub claims: Vec<Claim>,
    /// The payments.
    pub payments: Vec<Payment>,
    /// What the fake provider knows, by its key: the payment's id.
    pub ledger: Vec<LedgerEntry>,
    /// Open outbox rows, as `kind of id`.
    pub open_jobs: Vec<String>,
    /// Refunds that are not done.
    pub open_refunds: Vec<String>,
    /// Where Redis shows another picture than Postgres.
    pub differences: Vec<String>,
    /// How many seats were compared.
    pub seats_compared: usize,
    /// Postgres's clock.
    pub now_ms: i64,
}

/// A row of `reservations` with its seats.
#[derive(Debug, Clone, Default, sqlx::FromRow)]
pub struct Reservation {
    /// Its id.
    pub id: String,
    /// Its event.
    pub event: String,
    /// Its buyer.
    pub buyer: String,
    /// `PENDING`, `CONFIRMED` or `CANCELLED`.
    pub status: String,
    /// Why it is cancelled.
    pub cancel_reason: Option<String>,
    /// Its price.
    pub amount: i64,
    /// When it was made.
    pub created_ms: i64,
    /// Its deadline.
    pub expires_ms: i64,
    /// Since when its seats are committed to a payment.
    pub committed_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// Its seats.
    pub seats: Vec<i64>,
}

/// A row of `seat_claims`.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Claim {
    /// The event.
    pub event: String,
    /// The seat.
    pub seat: i64,
    /// Whose.
    pub reservation: Option<String>,
    /// `held`, `committed`, `sold` or `blocked`.
    pub state: String,
}

/// A row of `payments`.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Payment {
    /// Its id.
    pub id: String,
    /// Its reservation.
    pub reservation: String,
    /// Where it stands.
    pub status: String,
    /// How much.
    pub amount: i64,
    /// How much was given back.
    pub refunded: i64,
}

/// A row of the fake provider's ledger.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct LedgerEntry {
    /// The payment's id.
    pub key: String,
    /// How much was asked for.
    pub amount: i64,
    /// How often it was taken.
    pub captures: i32,
    /// How much was given back.
    pub refunded: i64,
}

const RESERVATIONS: &str = "
    SELECT r.id::text, r.event_id::text AS event, r.buyer, r.status, r.cancel_reason, r.amount,
           (extract(epoch FROM r.created_at) * 1000)::bigint AS created_ms,
           (extract(epoch FROM r.expires_at) * 1000)::bigint AS expires_ms,
           (extract(epoch FROM r.committed_at) * 1000)::bigint AS committed_ms,
           (extract(epoch FROM r.ended_at) * 1000)::bigint AS ended_ms,
           ARRAY(SELECT s.seat_id FROM reservation_seats s
                 WHERE s.event_id = r.event_id AND s.reservation_id = r.id ORDER BY s.seat_id) AS seats
    FROM reservations r";
const CLAIMS: &str = "
    SELECT event_id::text AS event, seat_id AS seat, reservation_id::text AS reservation, state FROM seat_claims";
const PAYMENTS: &str = "
    SELECT id::text, reservation_id::text AS reservation, status, amount, refunded_amount AS refunded FROM payments";
const LEDGER: &str = "SELECT key, amount, captures, refunded FROM fake_provider_ledger";

impl Stores {
    /// Connects to both.
    ///
    /// # Errors
    /// A URL cannot be used, or Postgres does not answer.
    pub async fn connect(database_url: &str, redis_url: &str) -> Result<Self> {
        let pg = PgPoolOptions::new().max_connections(2).connect(database_url).await.context("Postgres")?;
        Ok(Self { pg, redis: redis::Client::open(redis_url)? })
    }

    pub(super) async fn redis(&self) -> Result<MultiplexedConnection> {
        self.redis.get_multiplexed_async_connection().await.context("Redis")
    }

    /// Which Postgres and which Redis answer.
    ///
    /// # Errors
    /// One does not.
    pub async fn versions(&self) -> Result<(String, String)> {
        let postgres: String = sqlx::query_scalar("SHOW server_version").fetch_one(&self.pg).await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut self.redis().await?).await?;
        let redis = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("unknown");
        Ok((postgres, redis.trim().to_owned()))
    }

    /// Empties Redis.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn flush_redis(&self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").query_async(&mut self.redis().await?).await?)
    }

    /// Reads both.
    ///
    /// # Errors
    /// One does not answer.
    pub async fn read(&self) -> Result<Books> {
        let reservations: Vec<Reservation> = sqlx::query_as(RESERVATIONS).fetch_all(&self.pg).await?;
        let (differences, seats_compared) = compare_redis(self).await?;
        Ok(Books {
            reservations: reservations.into_iter().map(|row| (row.id.clone(), row)).collect(),
            claims: sqlx::query_as(CLAIMS).fetch_all(&self.pg).await?,
            payments: sqlx::query_as(PAYMENTS).fetch_all(&self.pg).await?,
            ledger: sqlx::query_as(LEDGER).fetch_all(&self.pg).await?,
            open_jobs: sqlx::query_scalar("SELECT kind || ' of ' || id FROM outbox").fetch_all(&self.pg).await?,
            open_refunds: sqlx::query_scalar(
                "SELECT 'refund ' || id || ' of payment ' || payment_id || ' is ' || status FROM refunds
                 WHERE status <> 'done'",
            )
            .fetch_all(&self.pg)
            .await?,
            differences,
            seats_compared,
            now_ms: sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
                .fetch_one(&self.pg)
                .await?,
        })
    }
}
