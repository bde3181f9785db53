//! Rate limits per caller, in this process.
//!
//! API keys, buyers and client addresses each have their own quota. Memory is bounded: beyond 200,000 callers,
//! new ones share buckets.

mod address;

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Args;
use domain::id::ApiKeyId;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

pub use address::{Peer, TrustedProxies, TrustedProxiesError};

use crate::problem::{Problem, ProblemCode};

/// The most callers of one kind that have a bucket of their own.
const TENANTS_MAX: usize = 200_000;

/// So many buckets are shared by the callers beyond those.
const SHARED_BUCKETS: u64 = 1 << 16;

/// After so many requests the buckets that are full again are dropped.
const SWEEP_EVERY: u64 = 4_096;

/// How much each kind of caller may send; 0 means without limit.
#[derive(Debug, Clone, Args)]
pub struct RateSettings {
    /// Requests per second of one API key; 0 = no limit
    #[arg(long = "rate-key-per-second", env = "HOLDFAST_RATE_KEY_PER_SECOND", default_value_t = 0)]
    pub key_per_second: u32,
    /// Requests that one API key may send at once
    #[arg(long = "rate-key-burst", env = "HOLDFAST_RATE_KEY_BURST", default_value_t = 1_000)]
    pub key_burst: u32,
    /// Requests per second of one buyer; 0 = no limit
    #[arg(long = "rate-buyer-per-second", env = "HOLDFAST_RATE_BUYER_PER_SECOND", default_value_t = 20)]
    pub buyer_per_second: u32,
    /// Requests that one buyer may send at once
    #[arg(long = "rate-buyer-burst", env = "HOLDFAST_RATE_BUYER_BURST", default_value_t = 60)]
    pub buyer_burst: u32,
    /// Requests per second of one client address without other credentials; 0 = no limit
    #[arg(long = "rate-address-per-second", env = "HOLDFAST_RATE_ADDRESS_PER_SECOND", default_value_t = 100)]
    pub address_per_second: u32,
    /// Requests that one client address may send at once
    #[arg(long = "rate-address-burst", env = "HOLDFAST_RATE_ADDRESS_BURST", default_value_t = 400)]
    pub address_burst: u32,
}

impl RateSettings {
    /// No limits at all.
    pub fn unlimited() -> Self {
        Self {
            key_per_second: 0,
            key_burst: 1,
            buyer_per_second: 0,
            buyer_burst: 1,
            address_per_second: 0,
            address_burst: 1,
        }
    }
}

/// Whose quota a request is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant<'a> {
    /// An API key's.
    Key(ApiKeyId),
    /// A buyer's.
    Buyer(&'a str),
    /// A client address's; an IPv6 client counts as its /64.
    Address(IpAddr),
}

/// The buckets of all callers.
#[derive(Debug)]
pub struct RateLimits {
    keys: Option<Buckets>,
    buyers: Option<Buckets>,
    addresses: Option<Buckets>,
}

impl RateLimits {
    /// Limits as the settings say.
    pub fn new(settings: &RateSettings) -> Self {
        Self {
            keys: Buckets::new(settings.key_per_second, settings.key_burst),
            buyers: Buckets::new(settings.buyer_per_second, settings.buyer_burst),
            addresses: Buckets::new(settings.address_per_second, settings.address_burst),
        }
    }

    /// Charges one request.
    ///
    /// # Errors
    /// `rate_limited`, with the whole seconds after which the next request passes.
    pub fn charge(&self, tenant: &Tenant<'_>) -> Result<(), Problem> {
        let (buckets, kind) = match tenant {
            Tenant::Key(_) => (&self.keys, "key"),
            Tenant::Buyer(_) => (&self.buyers, "buyer"),
            Tenant::Address(_) => (&self.addresses, "address"),
        };
        let Some(buckets) = buckets else { return Ok(()) };
        let charged = match tenant {
            Tenant::Key(id) => buckets.charge(&id.0),
            Tenant::Buyer(buyer) => buckets.charge(buyer),
            Tenant::Address(address) => buckets.charge(&address::network_of(*address)),
        };
        charged.map_err(|wait_s| {
            metrics::counter!("holdfast_rate_limited_total", "kind" => kind).increment(1);
            Problem::new(ProblemCode::RateLimited).retry_after_s(wait_s)
        })
    }
}

/// One kind of caller's buckets, each found by a hash that callers cannot aim.
struct Buckets {
    limiter: DefaultKeyedRateLimiter<u64>,
    hasher: RandomState,
    charges: AtomicU64,
    crowded: AtomicBool,
    tenants_max: usize,
}

impl std::fmt::Debug for Buckets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buckets").field("callers", &self.limiter.len()).finish_non_exhaustive()
    }
}

impl Buckets {
    fn new(per_second: u32, burst: u32) -> Option<Self> {
        let quota = Quota::per_second(NonZeroU32::new(per_second)?)
            .allow_burst(NonZeroU32::new(burst.max(1)).unwrap_or(NonZeroU32::MIN));
        Some(Self {
            limiter: RateLimiter::keyed(quota),
            hasher: RandomState::new(),
            charges: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            tenants_max: TENANTS_MAX,
        })
    }

    /// # Errors
    /// The whole seconds to wait, rounded up.
    fn charge(&self, tenant: &impl std::hash::Hash) -> Result<(), u64> {
        if self.charges.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep();
        }
        let hash = self.hasher.hash_one(tenant);
        let bucket = if self.crowded.load(Ordering::Relaxed) { hash % SHARED_BUCKETS } else { hash };
        self.limiter.check_key(&bucket).map_err(|refusal| {
            let wait = refusal.wait_time_from(DefaultClock::default().now());
            wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
        })
    }

    /// A bucket that is full again says nothing, so it can go. Where too many are left, callers share from now on.
    fn sweep(&self) {
        self.limiter.retain_recent();
        self.limiter.shrink_to_fit();
        self.crowded.store(self.limiter.len() > self.tenants_max, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> RateLimits {
        RateLimits::new(&RateSettings { buyer_per_second: 1, buyer_burst: 3, ..RateSettings::unlimited() })
    }

    #[test]
    fn a_caller_over_its_rate_is_told_truthfully_when_to_come_back() {
        let limits = limits();
        for _ in 0..3 {
            limits.charge(&Tenant::Buyer("u1")).unwrap();
        }
        let problem = limits.charge(&Tenant::Buyer("u1")).unwrap_err();
        assert_eq!(problem.code(), ProblemCode::RateLimited);
        assert_eq!(problem.respond("x").headers()["retry-after"], "1");
        assert!(limits.charge(&Tenant::Buyer("u2")).is_ok(), "another caller has its own quota");
        assert!(limits.charge(&Tenant::Address([127, 0, 0, 1].into())).is_ok(), "without a limit there is none");
    }

    #[test]
    fn a_slow_quota_asks_for_more_than_a_second() {
        let mut buckets = Buckets::new(1, 1).unwrap();
        buckets.limiter = RateLimiter::keyed(Quota::with_period(std::time::Duration::from_secs(30)).unwrap());
        assert!(buckets.charge(&"u1").is_ok());
        assert_eq!(buckets.charge(&"u1"), Err(30));
    }

    #[test]
    fn memory_stays_bounded_however_many_callers_come() {
        let mut buckets = Buckets::new(1, 1_000).unwrap();
        buckets.tenants_max = 1_000;
        for caller in 0..100_000_u32 {
            buckets.charge(&caller).unwrap();
        }
        assert!(buckets.crowded.load(Ordering::Relaxed));
        let bound = 1_000 + SWEEP_EVERY + SHARED_BUCKETS;
        assert!((buckets.limiter.len() as u64) < bound, "{} buckets", buckets.limiter.len());
    }
}
