//! Hearing of expired keys. What is heard is a hint: it may be late, doubled, or lost while nobody listens.

use futures::{FutureExt as _, StreamExt as _};

use super::{Redis, RedisUnavailable};
use crate::id::ReservationId;

/// Expired keys in one batch.
const BATCH_MAX: usize = 500;

/// A subscription to the keys that expire in the database of the seats.
pub struct ExpiryListener {
    stream: ::redis::aio::PubSub,
    redis: Redis,
}

impl Redis {
    /// Subscribes, on a connection of its own.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn listen_for_expiries(&self) -> Result<ExpiryListener, RedisUnavailable> {
        let mut stream = self.client().get_async_pubsub().await?;
        stream.subscribe(format!("__keyevent@{}__:expired", self.database())).await?;
        Ok(ExpiryListener { stream, redis: self.clone() })
    }
}

impl ExpiryListener {
    /// The reservations whose keys expired: waits for the first, takes with it what has already arrived. Keys of other
    /// features and installations are counted and dropped. None when the connection is lost.
    pub async fn next_batch(&mut self) -> Option<Vec<ReservationId>> {
        let mut heard = Vec::new();
        let mut messages = self.stream.on_message();
        loop {
            let message = if heard.is_empty() {
                messages.next().await?
            } else {
                match messages.next().now_or_never() {
                    Some(Some(message)) => message,
                    _ => return Some(heard),
                }
            };
            match self.redis.keys().parse_expired(message.get_payload_bytes()) {
                Some(reservation) => heard.push(reservation),
                None => metrics::counter!("holdfast_foreign_expiries_total").increment(1),
            }
            if heard.len() >= BATCH_MAX {
                return Some(heard);
            }
        }
    }
}
