//! Redis: the gate, the timer and the picture. It may be lost at any moment; nothing here decides who owns a seat.

pub mod audit;
pub mod buckets;
pub mod changes;
pub mod deadlines;
pub mod expiries;
pub mod keys;
pub mod releases;
pub mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use ::redis::{Client, RedisError};

use crate::runtime::clock::{Clock, monotonic_ms};
use keys::KeyScheme;

/// A script's answer may take this long before Redis counts as lost for the call.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1_000);
/// After a failure the calls of this process leave Redis alone for so long: a buyer never waits twice for it.
const BREAK_MS: i64 = 500;

/// Redis did not serve a call: it is down, too slow, or refused a command. The work goes on from Postgres alone.
#[derive(Debug, thiserror::Error)]
pub enum RedisUnavailable {
    /// A call failed.
    #[error("Redis did not answer")]
    Failed(#[from] RedisError),
    /// A call failed a moment ago.
    #[error("Redis failed a moment ago and is left alone for now")]
    Broken,
}

/// A handle on the seats' Redis: cheap to clone.
#[derive(Clone)]
pub struct Redis {
    client: Client,
    connection: ConnectionManager,
    keys: KeyScheme,
    clock: Clock,
    /// By the monotonic clock: after a step of the machine's, Redis would be left alone for as long as the step.
    broken_until_ms: Arc<AtomicI64>,
}

impl Redis {
    /// Prepares a connection; Redis need not be there yet.
    ///
    /// # Errors
    /// The URL is not a Redis URL.
    pub fn connect(url: &str, keys: KeyScheme, clock: Clock) -> Result<Self, RedisError> {
        let client = Client::open(url)?;
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(RESPONSE_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_number_of_retries(0)
            .set_max_delay(Duration::from_millis(250));
        let connection = ConnectionManager::new_lazy_with_config(client.clone(), config)?;
        Ok(Self { client, connection, keys, clock, broken_until_ms: Arc::new(AtomicI64::new(i64::MIN)) })
    }

    /// The key scheme in use.
    #[must_use]
    pub fn keys(&self) -> &KeyScheme {
        &self.keys
    }

    /// The clock seam.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The client, for connections of one's own (subscriptions).
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the last call failed a moment ago.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken_until_ms.load(Ordering::Relaxed) > self.elapsed_ms()
    }

    /// Runs one call against Redis, unless it failed a moment ago.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn call<T, F>(&self, work: F) -> Result<T, RedisUnavailable>
    where
        F: AsyncFnOnce(&mut ConnectionManager) -> Result<T, RedisError>,
    {
        if self.is_broken() {
            return Err(RedisUnavailable::Broken);
        }
        let mut connection = self.connection.clone();
        match work(&mut connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.note(&error);
                Err(error.into())
            }
        }
    }

    /// Asks whether Redis answers and runs scripts: the real path, since a server can answer PING and yet do nothing.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn probe(&self) -> Result<(), RedisUnavailable> {
        let mut connection = self.connection.clone();
        let script = ::redis::Script::new("return redis.call('TIME')[1]");
        let _seconds: String = script.prepare_invoke().invoke_async(&mut connection).await?;
        Ok(())
    }

    /// Redis's clock, ms, moved by the offset.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn now_ms(&self) -> Result<i64, RedisUnavailable> {
        let time = ::redis::cmd("TIME");
        let (seconds, micros): (i64, i64) = self.call(async |redis| time.query_async(redis).await).await?;
        Ok(seconds * 1_000 + micros / 1_000 + self.clock.offset_ms())
    }

    fn note(&self, error: &RedisError) {
        // A refusal of one command (wrong type, out of memory) says nothing about the next.
        let lost = error.is_io_error() || error.is_timeout() || error.is_connection_dropped();
        if lost {
            let now = self.elapsed_ms();
            let was = self.broken_until_ms.swap(now + BREAK_MS, Ordering::Relaxed);
            if was <= now {
                tracing::warn!(%error, "Redis did not answer; going on without it");
            }
        }
    }

    /// How long this process has run, moved with the tests' clock. No step of the machine's clock keeps Redis left out.
    fn elapsed_ms(&self) -> i64 {
        monotonic_ms() + self.clock.offset_ms()
    }

    /// The database number that the URL names.
    #[must_use]
    pub fn database(&self) -> i64 {
        self.connection.get_db()
    }
}
