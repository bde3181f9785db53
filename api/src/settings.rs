//! Settings of the API process. Every flag is also an environment variable.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use crate::auth::{BuyerTokensError, ShopKey};
use crate::rate::{RateSettings, TrustedProxies, TrustedProxiesError};
use crate::stream::StreamSettings;

/// Where the API listens and whom it believes.
#[derive(Debug, Clone, Args)]
pub struct ApiSettings {
    /// Where the public API listens
    #[arg(long, env = "HOLDFAST_ADDR", default_value = "127.0.0.1:8080")]
    pub addr: SocketAddr,
    #[command(flatten)]
    /// The operators' listener.
    pub ops: OpsSettings,
    /// The secret that the shop signs its buyers' tokens with (HS256, at least 32 bytes)
    #[arg(
        long,
        env = "HOLDFAST_BUYER_TOKEN_SECRET",
        hide_env_values = true,
        conflicts_with = "buyer_token_public_key"
    )]
    pub buyer_token_secret: Option<String>,
    /// The public key of the shop's signature of its buyers' tokens (EdDSA; PEM, or 32 bytes in base64url)
    #[arg(long, env = "HOLDFAST_BUYER_TOKEN_PUBLIC_KEY")]
    pub buyer_token_public_key: Option<String>,
    /// Whether POST /v1/buyers gives tokens to anybody
    #[arg(long, env = "HOLDFAST_ANONYMOUS_BUYERS", default_value_t = true, action = clap::ArgAction::Set)]
    pub anonymous_buyers: bool,
    /// How long an anonymous buyer's token lasts, seconds
    #[arg(long, env = "HOLDFAST_ANONYMOUS_BUYER_TTL_SECONDS", default_value_t = 2_592_000, value_parser = clap::value_parser!(i64).range(60..=31_536_000))]
    pub anonymous_buyer_ttl_seconds: i64,
    /// Whether payments may name the fake provider: for tests and demonstrations only
    #[arg(long, env = "HOLDFAST_FAKE_PROVIDER", default_value_t = false, action = clap::ArgAction::Set)]
    pub fake_provider: bool,
    /// Origins whose pages may call the API, comma-separated; * for any
    #[arg(long, env = "HOLDFAST_CORS_ORIGINS", value_delimiter = ',')]
    pub cors_origins: Vec<String>,
    /// Proxies whose X-Forwarded-For is believed, as addresses or networks, comma-separated
    #[arg(long, env = "HOLDFAST_TRUSTED_PROXIES", value_delimiter = ',')]
    pub trusted_proxies: Vec<String>,
    /// How long a request may take before it is answered 503, ms
    #[arg(long, env = "HOLDFAST_REQUEST_TIMEOUT_MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=300_000))]
    pub request_timeout_ms: u64,
    /// Requests under way at once before further ones are answered 503
    #[arg(long, env = "HOLDFAST_REQUESTS_MAX", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests_max: u32,
    /// Connections open at once
    #[arg(long, env = "HOLDFAST_CONNECTIONS_MAX", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections_max: u32,
    #[command(flatten)]
    /// How many may watch at once.
    pub streams: StreamSettings,
    #[command(flatten)]
    /// How much each caller may send.
    pub rates: RateSettings,
}

/// The operators' listener, of whichever process, and the end of that process.
#[derive(Debug, Clone, Args)]
pub struct OpsSettings {
    /// Where the operators' listener listens: the board, metrics, health
    #[arg(id = "ops_addr", long = "ops-addr", env = "HOLDFAST_OPS_ADDR", default_value = "127.0.0.1:8081")]
    pub addr: SocketAddr,
    /// Ask for an API key of scope ops on a loopback address too; elsewhere it is always asked for
    #[arg(id = "ops_key", long = "ops-key", env = "HOLDFAST_OPS_KEY", default_value_t = false, action = clap::ArgAction::Set)]
    pub key: bool,
    /// How long /readyz says draining before the listeners close, ms
    #[arg(long, env = "HOLDFAST_DRAIN_MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=120_000))]
    pub drain_ms: u64,
    /// How long requests under way may take to end when the process stops, ms
    #[arg(long, env = "HOLDFAST_STOP_MS", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(0..=600_000))]
    pub stop_ms: u64,
}

impl ApiSettings {
    /// How the shop signs its buyers' tokens, if it does.
    pub fn shop_key(&self) -> Option<ShopKey> {
        let secret = self.buyer_token_secret.clone().filter(|secret| !secret.is_empty()).map(ShopKey::Hs256);
        secret.or_else(|| self.buyer_token_public_key.clone().filter(|key| !key.is_empty()).map(ShopKey::EdDsa))
    }

    /// The proxies that are believed.
    ///
    /// # Errors
    /// Names the network that cannot be read.
    pub fn proxies(&self) -> Result<TrustedProxies, TrustedProxiesError> {
        TrustedProxies::parse(&self.trusted_proxies)
    }

    /// How long a request may take.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }
}

/// Why the API cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {addr} (set {setting})")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The setting that names another.
        setting: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A setting cannot be used.
    #[error("HOLDFAST_TRUSTED_PROXIES")]
    Proxies(#[from] TrustedProxiesError),
    /// A setting cannot be used.
    #[error("HOLDFAST_CORS_ORIGINS: {0:?} is not an origin such as https://shop.example")]
    Origin(String),
    /// A setting cannot be used.
    #[error("HOLDFAST_BUYER_TOKEN_SECRET or HOLDFAST_BUYER_TOKEN_PUBLIC_KEY")]
    Tokens(#[from] BuyerTokensError),
    /// The installation's own secret cannot be read.
    #[error("Postgres cannot tell the secret of anonymous buyers")]
    Secret(#[source] domain::store::pg::PgError),
    /// Metrics cannot be recorded.
    #[error("metrics cannot be recorded")]
    Metrics(#[source] crate::ops::metrics::MetricsError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        api: ApiSettings,
    }

    #[test]
    fn every_setting_has_a_safe_default() {
        let settings = Line::try_parse_from(["api"]).unwrap().api;
        assert!(settings.addr.ip().is_loopback() && settings.ops.addr.ip().is_loopback());
        assert!(!settings.fake_provider, "money is never pretended unless asked for");
        assert!(settings.cors_origins.is_empty() && settings.trusted_proxies.is_empty());
        assert!(settings.shop_key().is_none());
    }

    #[test]
    fn a_shop_signs_in_one_way_only() {
        let both = ["api", "--buyer-token-secret", "s", "--buyer-token-public-key", "k"];
        assert!(Line::try_parse_from(both).is_err());
    }
}
