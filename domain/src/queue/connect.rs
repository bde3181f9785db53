//! The connection to the Redis that carries the queues. It may be another one than the seats' Redis.

use std::{future::Future, time::Duration};

use redis::{
    Client, ErrorKind, RedisError,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

use super::{Queue, QueueError, QueuePrefix, keys::Keys};

/// A slow Redis is not a dead one. apalis's own `connect()` gives an answer 500 ms, and one slow answer then ends the
/// worker; an unlimited wait would hang it on a half-open connection instead.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(50);
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);
const RECONNECTS_MAX: usize = 20;
/// How long an operator's look may take.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The queues' Redis and the installation's prefix. Cheap to clone: the clones share one connection, which reconnects.
#[derive(Clone)]
pub struct QueueRedis {
    client: Client,
    connection: ConnectionManager,
    prefix: QueuePrefix,
}

impl std::fmt::Debug for QueueRedis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client holds the password.
        f.debug_struct("QueueRedis").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// The URL of the queues' Redis cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the URL of the queues' Redis is not one: {0}")]
pub struct QueueRedisError(RedisError);

impl QueueRedis {
    /// Prepares a connection to `url` (`redis://[user:password@]host[:port][/database]`). Nothing is sent yet: it
    /// connects at the first call, so a process starts while Redis is away.
    ///
    /// # Errors
    /// `QueueRedisError` if the URL does not parse.
    pub fn new(url: &str, prefix: QueuePrefix) -> Result<Self, QueueRedisError> {
        let client = Client::open(url).map_err(QueueRedisError)?;
        let settings = ConnectionManagerConfig::new()
            .set_response_timeout(Some(RESPONSE_LIMIT))
            .set_connection_timeout(Some(CONNECT_LIMIT))
            .set_min_delay(RECONNECT_DELAY_MIN)
            .set_max_delay(RECONNECT_DELAY_MAX)
            .set_number_of_retries(RECONNECTS_MAX);
        let connection = ConnectionManager::new_lazy_with_config(client.clone(), settings).map_err(QueueRedisError)?;
        Ok(Self { client, connection, prefix })
    }

    /// The installation's prefix.
    #[must_use]
    pub fn prefix(&self) -> &QueuePrefix {
        &self.prefix
    }

    pub(crate) fn keys(&self, queue: Queue) -> Keys {
        self.prefix.keys(queue)
    }

    pub(crate) fn connection(&self) -> ConnectionManager {
        self.connection.clone()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

/// Ends a call that nobody may wait long for. A worker can; a request handler that pushes a job after its commit, or an
/// operator's page, cannot: while Redis is away a call waits for the connection to come back.
pub(crate) async fn answered_within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    let late = |_elapsed| QueueError::from(RedisError::from((ErrorKind::Io, "no answer within the limit")));
    tokio::time::timeout(limit, call).await.map_err(late)?
}
