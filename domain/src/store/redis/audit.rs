//! What the audit asks Redis: short calls, nothing written.

use ::redis::{cmd, pipe};

use super::keys::BlockKey;
use super::{Redis, RedisUnavailable};
use crate::id::ReservationId;

/// How a reservation stands in the deadline index, and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredDeadline {
    /// Its score, ms; none where it is not in the index.
    pub score_ms: Option<i64>,
    /// How long its key lives, ms: -1 for ever, -2 it is not there.
    pub key_ms: i64,
}

/// A page of the deadline index: each member with its score.
pub type IndexPage = Vec<(String, i64)>;

impl Redis {
    /// A piece of a block's list, from its `from`-th entry.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn list_piece(
        &self,
        block: &BlockKey,
        from: usize,
        most: usize,
    ) -> Result<Vec<String>, RedisUnavailable> {
        let list = self.keys().seat_list(block);
        let last = (from + most).saturating_sub(1);
        self.call(async |redis| cmd("LRANGE").arg(&list).arg(from).arg(last).query_async(redis).await).await
    }

    /// How long a block's list is, and how long it lives, ms: -1 for ever, -2 it is not there.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn list_facts(&self, block: &BlockKey) -> Result<(usize, i64), RedisUnavailable> {
        let list = self.keys().seat_list(block);
        let mut read = pipe();
        read.cmd("LLEN").arg(&list).cmd("PTTL").arg(&list);
        self.call(async |redis| read.query_async(redis).await).await
    }

    /// How reservations, or events, stand in the deadline index; with Redis's clock.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn registered_deadlines(
        &self,
        ids: &[ReservationId],
    ) -> Result<(i64, Vec<RegisteredDeadline>), RedisUnavailable> {
        let index = self.keys().deadlines();
        let mut read = pipe();
        for id in ids {
            read.cmd("ZSCORE").arg(&index).arg(id.to_string());
            read.cmd("PTTL").arg(self.keys().expired(*id));
        }
        let (now, answers) = self
            .call(async |redis| {
                let (seconds, micros): (i64, i64) = cmd("TIME").query_async(redis).await?;
                let answers: Vec<Option<f64>> =
                    if ids.is_empty() { Vec::new() } else { read.query_async(redis).await? };
                Ok((seconds * 1_000 + micros / 1_000, answers))
            })
            .await?;
        let registered = answers
            .chunks_exact(2)
            .map(|pair| RegisteredDeadline { score_ms: pair[0].map(whole_ms), key_ms: pair[1].map_or(-2, whole_ms) });
        Ok((now + self.clock().offset_ms(), registered.collect()))
    }

    /// A page of the deadline index in no order; the cursor of the next one, 0 after the last. A member may come twice.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn index_page(&self, cursor: u64, about: usize) -> Result<(u64, IndexPage), RedisUnavailable> {
        let index = self.keys().deadlines();
        let (next, flat): (u64, Vec<String>) = self
            .call(async |redis| cmd("ZSCAN").arg(&index).arg(cursor).arg("COUNT").arg(about).query_async(redis).await)
            .await?;
        let members = flat.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].parse().map_or(0, whole_ms)));
        Ok((next, members.collect()))
    }

    /// Whether a warm-up is under way.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn is_warming_up(&self) -> Result<bool, RedisUnavailable> {
        let lease = self.keys().warm_up_lease();
        self.call(async |redis| cmd("EXISTS").arg(&lease).query_async(redis).await).await
    }
}

#[expect(clippy::cast_possible_truncation, reason = "whole milliseconds, far below 2^53")]
fn whole_ms(number: f64) -> i64 {
    number as i64
}
