//! Settings of the stores, shared by every command. Every flag is also an environment variable.

use clap::Args;

use crate::limits::Timing;

/// Where the stores are and how they are used.
#[derive(Debug, Clone, Args)]
pub struct StoreSettings {
    /// Postgres, as postgres://user:password@host:port/database
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// Redis, as redis://host:port/number
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: String,
    /// A Redis of their own for the queues [default: the same as --redis-url]
    #[arg(long, env = "HOLDFAST_QUEUE_REDIS_URL", hide_env_values = true)]
    pub queue_redis_url: Option<String>,
    /// Put before every key, so that installations can share a Redis
    #[arg(long, env = "HOLDFAST_REDIS_PREFIX", default_value = "")]
    pub redis_prefix: String,
    /// Put a hash tag round date:block, so that a block is one slot of a Redis cluster
    #[arg(long, env = "HOLDFAST_REDIS_CLUSTER_TAGS", default_value_t = false, action = clap::ArgAction::Set)]
    pub redis_cluster_tags: bool,
    /// Set notify-keyspace-events, maxmemory-policy and hz at start where Redis allows it
    #[arg(long, env = "HOLDFAST_REDIS_CONFIGURE", default_value_t = true, action = clap::ArgAction::Set)]
    pub redis_configure: bool,
    /// The most connections to Postgres from this process
    #[arg(long, env = "HOLDFAST_PG_CONNECTIONS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=500))]
    pub pg_connections: u32,
    /// Hold transactions that run at once in this process; holds that wait meanwhile share the next one's commit
    #[arg(long, env = "HOLDFAST_HOLD_LANES", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub hold_lanes: u32,
    /// The longest that one statement may run in Postgres, ms
    #[arg(long, env = "HOLDFAST_PG_STATEMENT_MS", default_value_t = 4_000, value_parser = clap::value_parser!(i64).range(100..=60_000))]
    pub pg_statement_ms: i64,
}

impl StoreSettings {
    /// The spans that follow from these settings.
    #[must_use]
    pub fn timing(&self) -> Timing {
        let defaults = Timing::default();
        let margin = self.pg_statement_ms + 1_000;
        Timing {
            statement_ms: self.pg_statement_ms,
            gate_ms: defaults.gate_ms.max(margin),
            lease_ms: defaults.lease_ms.max(margin),
            bucket_grace_ms: defaults.bucket_grace_ms.max(10 * margin),
            ..defaults
        }
    }
}
