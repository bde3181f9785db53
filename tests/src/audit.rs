//! The auditor: reads Postgres and Redis by SQL and keys of its own, shares no code with the flows, and says in words
//! what breaks an invariant.

mod buckets;
mod rows;

pub use buckets::audit_redis;
pub use rows::{audit_postgres, audit_settled};

use std::time::{Duration, Instant};

use crate::provider::ScriptedProvider;
use crate::stores::TestStores;

/// What must be true of Postgres at any moment, in the middle of anything.
///
/// # Panics
/// Where something is not.
pub async fn assert_sound(test: &TestStores) {
    let findings = audit_postgres(test).await;
    assert!(findings.is_empty(), "not sound:\n{}", findings.join("\n"));
}

/// What must be true once everything has come to rest: of Postgres, of Redis, and of the provider's books.
///
/// # Panics
/// Where something is not.
pub async fn assert_settled(test: &TestStores, provider: &ScriptedProvider) {
    let mut findings = audit_settled(test, provider).await;
    findings.extend(audit_redis(test).await);
    assert!(findings.is_empty(), "not settled:\n{}", findings.join("\n"));
}

/// Waits until the workers have brought everything to rest.
///
/// # Panics
/// With what is still not sound after `limit`.
pub async fn settles_within(test: &TestStores, limit: Duration) {
    let provider = ScriptedProvider::default();
    let began = Instant::now();
    loop {
        let mut findings = audit_settled(test, &provider).await;
        findings.extend(audit_redis(test).await);
        if findings.is_empty() {
            return;
        }
        assert!(began.elapsed() < limit, "not settled within {limit:?}:\n{}", findings.join("\n"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
