//! The auditor: reads Postgres and Redis by SQL and keys of its own, shares no code with the flows, and says in words
//! what breaks an invariant.

mod buckets;
mod rows;

pub use buckets::audit_redis;
pub use rows::{audit_postgres, audit_settled};

use redis::aio::MultiplexedConnection;
use sqlx::PgPool;

/// What is audited, and the auditor's own ways into it.
pub struct Installation<'a> {
    /// Into its database.
    pub sql: &'a PgPool,
    /// Into its Redis.
    pub redis: MultiplexedConnection,
    /// The prefix of its keys.
    pub prefix: &'a str,
    /// Whether its keys carry hash tags.
    pub cluster_tags: bool,
    /// What its processes add to Postgres's clock, ms.
    pub offset_ms: i64,
    /// What its processes add to Redis's clock, ms.
    pub redis_offset_ms: i64,
}

/// A store does not answer the auditor.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// Postgres.
    #[error("Postgres does not answer the auditor")]
    Postgres(#[from] sqlx::Error),
    /// Redis.
    #[error("Redis does not answer the auditor")]
    Redis(#[from] redis::RedisError),
}

impl Installation<'_> {
    /// A key of this installation.
    #[must_use]
    pub fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// The deadline index's key: what belongs to the installation shares one slot of a cluster.
    #[must_use]
    pub fn deadlines_key(&self) -> String {
        let word = if self.cluster_tags { "{holdfast}" } else { "holdfast" };
        self.key(&format!("{word}:deadlines"))
    }

    /// Every key of this installation, sorted; the queues' too.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn keys(&self) -> Result<Vec<String>, AuditError> {
        Ok(keys_of(&mut self.redis.clone(), self.prefix).await?)
    }
}

/// Every key that begins with a prefix, sorted. The queues' keys begin with the same characters, without the colon.
///
/// # Errors
/// Redis does not answer.
pub async fn keys_of(redis: &mut MultiplexedConnection, prefix: &str) -> Result<Vec<String>, redis::RedisError> {
    let stem = prefix.trim_end_matches(':');
    let pattern = format!("{}*", stem.replace(['*', '?', '[', ']', '\\'], "?"));
    let mut found = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let (next, keys): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(&pattern)
            .arg("COUNT")
            .arg(1_000)
            .query_async(redis)
            .await?;
        found.extend(keys.into_iter().filter(|key| key.starts_with(stem)));
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}
