//! Postgres: the truth about ownership. One transaction for each flow, no call to anything else inside it.
//!
//! Locks are taken in one order everywhere: buyers' limits, then new claims in the order of (event, seat), then
//! reservations in the order of their ids and with each the claims that are its own, then payments, then idempotency
//! keys. A takeover claims once more after it has expired the dead: Postgres breaks the one deadlock that this allows (a
//! third transaction expired one of the dead in between), and the batch is tried again.

pub mod api_keys;
pub mod audit;
pub mod claims;
pub mod events;
pub mod fake_ledger;
pub mod holds;
pub mod idempotency;
pub mod installation;
pub mod outbox;
pub mod payments;
pub mod reservations;
pub mod venues;

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgPool, Postgres, Transaction};

use crate::runtime::clock::Clock;

/// How long a connection may rest and be used again unasked.
const TRUSTED_REST: Duration = Duration::from_millis(500);
/// How long a request may wait for a connection before it is told to come back.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// The migrations, built in.
pub static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

/// A transaction.
pub type Tx = Transaction<'static, Postgres>;

/// What went wrong in Postgres.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// It is down, full, too slow or overloaded: nothing was changed, come back later.
    #[error("Postgres cannot serve this now")]
    Unavailable(#[source] sqlx::Error),
    /// The connection was lost while a commit was under way: it may or may not have happened.
    #[error("Postgres did not say whether it committed")]
    CommitUnknown(#[source] sqlx::Error),
    /// Somebody else's transaction came in between: the same again may well succeed.
    #[error("a concurrent transaction came in between")]
    Contended(#[source] sqlx::Error),
    /// A row holds what this version cannot read.
    #[error("{table}.{column} of {row} cannot be read")]
    Unreadable {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row's id.
        row: String,
    },
    /// Anything else: a fault of ours.
    #[error("Postgres refused a statement")]
    Refused(#[source] sqlx::Error),
}

impl PgError {
    pub(crate) fn unreadable(table: &'static str, column: &'static str, row: impl ToString) -> Self {
        Self::Unreadable { table, column, row: row.to_string() }
    }

    /// Whether the caller should come back later rather than change anything.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::CommitUnknown(_) | Self::Contended(_) => true,
            Self::Unreadable { .. } | Self::Refused(_) => false,
        }
    }

    /// Whether a statement waited for somebody else's lock until its limit. Says nothing about other rows.
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Unavailable(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55P03"))
    }

    /// The constraint that a statement violated, if that was it.
    #[must_use]
    pub fn constraint(&self) -> Option<&str> {
        match self {
            Self::Refused(sqlx::Error::Database(error)) => error.constraint(),
            _ => None,
        }
    }
}

impl From<sqlx::Error> for PgError {
    fn from(error: sqlx::Error) -> Self {
        let code = match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => return Self::Unavailable(error),
            sqlx::Error::Database(database) => database.code().unwrap_or_default().into_owned(),
            _ => return Self::Refused(error),
        };
        match code.as_str() {
            "40001" | "40P01" => Self::Contended(error),
            // Classes: connection (08), resources (53: disk full, out of memory, too many connections), operator (57:
            // shutdown, statement cancelled by its time limit), system (58); and read-only, a standby's answer.
            code if ["08", "53", "57", "58"].iter().any(|class| code.starts_with(class)) => Self::Unavailable(error),
            "25006" | "55P03" => Self::Unavailable(error),
            _ => Self::Refused(error),
        }
    }
}

/// A handle on Postgres: cheap to clone.
#[derive(Debug, Clone)]
pub struct Pg {
    pool: PgPool,
    clock: Clock,
}

impl Pg {
    /// Prepares a pool; Postgres need not be there yet.
    ///
    /// # Errors
    /// The URL is not a Postgres URL.
    pub fn connect(url: &str, connections: u32, statement_ms: i64, clock: Clock) -> Result<Self, sqlx::Error> {
        let options = PgConnectOptions::from_str(url)?.application_name("holdfast").options([
            ("statement_timeout", statement_ms.to_string()),
            // Well under the statement's: a hold that waits for a lock of a stopped process must not take along, past
            // their gates, all that share its transaction.
            ("lock_timeout", (statement_ms / 4).to_string()),
            ("idle_in_transaction_session_timeout", (2 * statement_ms).to_string()),
            ("timezone", "UTC".to_owned()),
        ]);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .idle_timeout(Duration::from_secs(600))
            // Asking before each use would cost a round trip. One that has rested may have been cut by a restart or a
            // firewall, and each such connection would fail somebody's request.
            .test_before_acquire(false)
            .before_acquire(|connection, rested| {
                Box::pin(async move {
                    if rested.idle_for >= TRUSTED_REST {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(options);
        Ok(Self { pool, clock })
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The clock seam.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn offset_ms(&self) -> i64 {
        self.clock.offset_ms()
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn begin(&self) -> Result<Tx, PgError> {
        Ok(self.pool.begin().await?)
    }

    /// Brings the schema up to date; safe to run twice, by two at once.
    ///
    /// # Errors
    /// A migration failed, or the database is ahead of this program.
    pub async fn migrate(&self) -> Result<(), sqlx::migrate::MigrateError> {
        let mut connection = self.pool.acquire().await?.detach();
        // A migration takes its time, and so does another process's that is waited for.
        sqlx::raw_sql("SET statement_timeout = 0; SET lock_timeout = 0").execute(&mut connection).await?;
        MIGRATOR.run(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Whether every migration of this program has been applied.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn is_migrated(&self) -> Result<bool, PgError> {
        let newest = MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0);
        let applied = sqlx::query_scalar::<_, Option<i64>>("SELECT max(version) FROM _sqlx_migrations WHERE success")
            .fetch_one(&self.pool)
            .await;
        match applied {
            Ok(applied) => Ok(applied.unwrap_or(0) >= newest),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42P01") => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The database's clock, to the millisecond.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn now(&self) -> Result<crate::time::Instant, PgError> {
        let offset_ms = self.offset_ms();
        let now = sqlx::query_scalar!(r#"SELECT hf_now($1) AS "now!""#, offset_ms).fetch_one(&self.pool).await?;
        self.clock.hear(now, offset_ms);
        Ok(now)
    }
}

/// Commits. A connection lost here leaves the outcome unknown.
pub(crate) async fn commit(tx: Tx) -> Result<(), PgError> {
    tx.commit().await.map_err(|error| match PgError::from(error) {
        PgError::Unavailable(error) => PgError::CommitUnknown(error),
        other => other,
    })
}
