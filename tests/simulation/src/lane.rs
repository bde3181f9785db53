//! Where histories run, one after another: a database and a Redis prefix of their own, two processes of the engine that
//! reach them through networks that break, and clocks that are moved.

use std::collections::HashMap;
use std::sync::Arc;

use domain::flow::event_book::EventBook;
use domain::flow::{ConnectStoresError, Stores};
use domain::runtime::clock::{Clock, new_uuid, system_ms};
use domain::runtime::settings::StoreSettings;
use domain::store::pg::Pg;
use domain::store::redis::Redis;
use domain::store::redis::keys::KeyScheme;
use redis::aio::MultiplexedConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use crate::audit::{AuditError, Installation, keys_of};
use crate::provider::ScriptedProvider;
use crate::proxy::{Link, Proxy};

/// Processes of the engine.
pub const PROCESSES: usize = 2;
/// More than any two clocks differ, ms.
const BETWEEN_HISTORIES_MS: i64 = 1_000_000;
/// All that a history writes. Venues stay.
const FORGET: &str = "TRUNCATE events, prices, seat_claims, reservations, reservation_seats, seat_log, idempotency_keys, \
                      payments, refunds, outbox";

/// The simulation itself cannot go on: this says nothing about the engine.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// A URL names no server.
    #[error("{0} is not the URL of a server on a TCP port")]
    Url(String),
    /// Postgres.
    #[error("the simulation's own Postgres connection failed")]
    Postgres(#[from] sqlx::Error),
    /// Redis.
    #[error("the simulation's own Redis connection failed")]
    Redis(#[from] redis::RedisError),
    /// The schema.
    #[error("the simulation's database cannot be migrated")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A proxy.
    #[error("a proxy cannot be started")]
    Proxy(#[from] std::io::Error),
    /// The engine's settings.
    #[error(transparent)]
    Connect(#[from] ConnectStoresError),
    /// The auditor.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// An event could not be made.
    #[error("an event cannot be made: {0}")]
    SetUp(String),
    /// A thread of its own ended early.
    #[error("a lane ended early")]
    Lane,
}

/// Keys, when they expire, and what they held.
pub type OldCopy = Vec<(String, i64, Vec<u8>)>;

/// The servers that all lanes share.
#[derive(Debug, Clone)]
pub struct Servers {
    /// Of a role that may create databases.
    pub database_url: String,
    /// Where a prefix is enough.
    pub redis_url: String,
}

/// A process of the engine and its networks.
pub struct Process {
    /// What its flows run on. Clones share what the process knows.
    pub stores: Stores,
    /// Before Postgres.
    pub pg: Arc<Proxy>,
    /// Before Redis.
    pub redis: Arc<Proxy>,
}

/// One lane.
pub struct Lane {
    /// The simulation's own way into the database.
    pub sql: PgPool,
    /// The simulation's own way into Redis.
    pub redis: MultiplexedConnection,
    /// The prefix of the lane's keys.
    pub prefix: String,
    /// The engine.
    pub processes: Vec<Process>,
    /// The payment provider, which outlives all crashes.
    pub provider: ScriptedProvider,
    /// Venues that were imported already.
    pub venues: HashMap<usize, domain::id::VenueId>,
    /// The older copy of Redis that a failover would bring back.
    copy: Arc<OldCopy>,
    pg_clock: Clock,
    redis_clock: Clock,
    servers: Servers,
    database: String,
}

impl Lane {
    /// Makes a database, and two processes on it.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub async fn start(servers: &Servers, number: usize) -> Result<Self, SimulationError> {
        let nonce = new_uuid().simple().to_string();
        let nonce = nonce.get(20..).unwrap_or_default();
        let (database, prefix) = (format!("holdfast_sim_{nonce}_{number}"), format!("sim-{nonce}-{number}z:"));
        let server: PgConnectOptions =
            servers.database_url.parse().map_err(|_| SimulationError::Url("DATABASE_URL".to_owned()))?;
        let mut admin = server.connect().await?;
        admin.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {database}"))).await?;
        admin.close().await?;
        let own = server.clone().database(&database);
        let migrator = Pg::connect(own.to_url_lossy().as_str(), 1, 60_000, Clock::default())?;
        migrator.migrate().await?;
        migrator.pool().close().await;
        let sql = PgPoolOptions::new().max_connections(2).connect_lazy_with(own.clone().application_name("oracle"));
        let redis = redis::Client::open(servers.redis_url.as_str())?.get_multiplexed_async_connection().await?;
        let (pg_clock, redis_clock) = (Clock::default(), Clock::default());
        let mut processes = Vec::with_capacity(PROCESSES);
        for _ in 0..PROCESSES {
            processes.push(Process::start(servers, &own, &prefix, (&pg_clock, &redis_clock)).await?);
        }
        let (provider, venues, copy) = (ScriptedProvider::default(), HashMap::new(), Arc::default());
        let servers = servers.clone();
        Ok(Self { sql, redis, prefix, processes, provider, venues, copy, pg_clock, redis_clock, servers, database })
    }

    /// Forgets everything but the venues; `skew_ms` is how far Redis's clock is ahead of Postgres's from now on.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub async fn start_afresh(&mut self, skew_ms: i64) -> Result<(), SimulationError> {
        self.heal_links();
        self.provider.start_afresh();
        self.copy = Arc::default();
        self.sql.execute(FORGET).await?;
        self.lose_redis().await?;
        // Never back: a process leaves a Redis that failed alone until a time that is to come.
        self.pg_clock.advance(BETWEEN_HISTORIES_MS);
        self.redis_clock.advance(self.pg_clock.offset_ms() + skew_ms - self.redis_clock.offset_ms());
        for process in &mut self.processes {
            process.forget();
        }
        Ok(())
    }

    /// Postgres's clock, ms.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        system_ms() + self.pg_clock.offset_ms()
    }

    /// Redis's clock, ms.
    #[must_use]
    pub fn redis_now_ms(&self) -> i64 {
        system_ms() + self.redis_clock.offset_ms()
    }

    /// Moves time for both stores.
    pub fn advance(&self, by_ms: i64) {
        self.pg_clock.advance(by_ms);
        self.redis_clock.advance(by_ms);
    }

    /// All networks are whole again.
    pub fn heal_links(&self) {
        for process in &self.processes {
            process.pg.set(Link::Whole);
            process.redis.set(Link::Whole);
        }
    }

    /// What the auditor needs.
    #[must_use]
    pub fn installation(&self) -> Installation<'_> {
        Installation {
            sql: &self.sql,
            redis: self.redis.clone(),
            prefix: &self.prefix,
            cluster_tags: false,
            offset_ms: self.pg_clock.offset_ms(),
            redis_offset_ms: self.redis_clock.offset_ms(),
        }
    }

    /// Loses all that Redis has, as FLUSHALL would.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn lose_redis(&self) -> Result<(), SimulationError> {
        lose_keys(&mut self.redis.clone(), &self.prefix).await
    }

    /// Takes a copy of Redis, as a replica would have it that hears no more from now on.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn copy_redis(&mut self) -> Result<(), SimulationError> {
        let keys = keys_of(&mut self.redis, &self.prefix).await?;
        self.copy = Arc::default();
        if keys.is_empty() {
            return Ok(());
        }
        let mut read = redis::pipe();
        for key in &keys {
            read.cmd("PEXPIRETIME").arg(key).cmd("DUMP").arg(key);
        }
        let values: Vec<redis::Value> = read.query_async(&mut self.redis).await?;
        let mut copy = Vec::with_capacity(keys.len());
        for (key, pair) in keys.into_iter().zip(values.chunks_exact(2)) {
            let expires: i64 = redis::from_redis_value_ref(&pair[0]).unwrap_or(-1);
            let dump: Option<Vec<u8>> = redis::from_redis_value_ref(&pair[1]).unwrap_or(None);
            if let Some(dump) = dump {
                copy.push((key, expires.max(0), dump));
            }
        }
        self.copy = Arc::new(copy);
        Ok(())
    }

    /// The older copy to fail over to; empty where there is none.
    #[must_use]
    pub fn copy(&self) -> Arc<OldCopy> {
        Arc::clone(&self.copy)
    }

    /// Ends marks and leases that live by the server's own clock, which is not moved: so much time has passed.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn end_leases(&mut self) -> Result<(), SimulationError> {
        let lease = format!("{}holdfast:warm-up", self.prefix);
        let mark = format!("{}holdfast:in-progress:", self.prefix);
        let mut over: Vec<String> = keys_of(&mut self.redis, &mark).await?;
        over.push(lease);
        let _: i64 = redis::cmd("DEL").arg(over).query_async(&mut self.redis).await?;
        Ok(())
    }

    /// Ends the processes and removes database and keys.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub async fn end(self) -> Result<(), SimulationError> {
        self.lose_redis().await?;
        drop(self.processes);
        self.sql.close().await;
        let server: PgConnectOptions =
            self.servers.database_url.parse().map_err(|_| SimulationError::Url("DATABASE_URL".to_owned()))?;
        let mut admin = server.connect().await?;
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database);
        admin.execute(sqlx::AssertSqlSafe(drop)).await?;
        Ok(admin.close().await?)
    }
}

impl Process {
    async fn start(
        servers: &Servers,
        database: &PgConnectOptions,
        prefix: &str,
        (pg_clock, redis_clock): (&Clock, &Clock),
    ) -> Result<Self, SimulationError> {
        let pg = Arc::new(Proxy::start(format!("{}:{}", database.get_host(), database.get_port())).await?);
        let (start, address, end) =
            authority(&servers.redis_url).ok_or_else(|| SimulationError::Url("REDIS_URL".to_owned()))?;
        let redis = Arc::new(Proxy::start(address).await?);
        let settings = StoreSettings {
            database_url: database.clone().host("127.0.0.1").port(pg.addr().port()).to_url_lossy().to_string(),
            redis_url: format!("{start}{}{end}", redis.addr()),
            // Directly: what becomes of a job is decided by the deliveries, and a call to the queues waits for 2 s.
            queue_redis_url: Some(servers.redis_url.clone()),
            redis_prefix: prefix.to_owned(),
            redis_cluster_tags: false,
            redis_configure: false,
            pg_connections: 6,
            hold_lanes: 1,
            pg_statement_ms: 4_000,
        };
        let mut stores = Stores::connect(&settings, pg_clock.clone())?;
        let keys = KeyScheme::new(prefix, false).map_err(ConnectStoresError::from)?;
        stores.redis = Redis::connect(&settings.redis_url, keys, redis_clock.clone())?;
        Ok(Self { stores, pg, redis })
    }

    /// The process dies and another takes its place: what only it knew is gone.
    pub fn forget(&mut self) {
        self.stores.book = EventBook::new(self.stores.pg.clone());
        let _gone_with_it = self.stores.take_redis_missed();
    }
}

/// Removes every key of a prefix.
///
/// # Errors
/// Redis does not answer.
pub async fn lose_keys(redis: &mut MultiplexedConnection, prefix: &str) -> Result<(), SimulationError> {
    for chunk in keys_of(redis, prefix).await?.chunks(1_000) {
        let () = redis::cmd("UNLINK").arg(chunk).query_async(redis).await?;
    }
    Ok(())
}

/// Redis's primary is lost, and an older copy takes over.
///
/// # Errors
/// Redis does not answer.
pub async fn fail_over(redis: &mut MultiplexedConnection, prefix: &str, copy: &OldCopy) -> Result<(), SimulationError> {
    lose_keys(redis, prefix).await?;
    if copy.is_empty() {
        return Ok(());
    }
    let mut restore = redis::pipe();
    for (key, expires, dump) in copy {
        restore.cmd("RESTORE").arg(key).arg(*expires).arg(dump.as_slice()).arg("REPLACE").arg("ABSTTL").ignore();
    }
    let () = restore.query_async(redis).await?;
    Ok(())
}

/// A URL's parts before, of and after `host:port`.
fn authority(url: &str) -> Option<(String, String, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (place, end) = rest.split_at(at);
    let (user, host) = place.rsplit_once('@').map_or(("", place), |(user, host)| (user, host));
    let start = if user.is_empty() { format!("{scheme}://") } else { format!("{scheme}://{user}@") };
    let host = if host.rsplit_once(':').is_some() { host.to_owned() } else { format!("{host}:6379") };
    Some((start, host, end.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::authority;

    #[test]
    fn a_proxy_takes_the_place_of_host_and_port_only() {
        let parts = |start: &str, host: &str, end: &str| Some((start.to_owned(), host.to_owned(), end.to_owned()));
        assert_eq!(authority("redis://localhost"), parts("redis://", "localhost:6379", ""));
        assert_eq!(authority("redis://u:p@h:1/2"), parts("redis://u:p@", "h:1", "/2"));
        assert_eq!(authority("nothing"), None);
    }
}
