//! The simulation's auditor, on a test's stores.

use std::time::{Duration, Instant};

use simulation::audit::{self, Installation};

use crate::provider::ScriptedProvider;
use crate::stores::TestStores;

async fn installation(test: &TestStores) -> Installation<'_> {
    Installation {
        sql: &test.sql,
        redis: test.redis().await,
        prefix: &test.settings.redis_prefix,
        cluster_tags: test.settings.redis_cluster_tags,
        offset_ms: test.clock.offset_ms(),
        redis_offset_ms: test.clock.offset_ms(),
    }
}

/// What breaks an invariant in Postgres right now.
pub async fn audit_postgres(test: &TestStores) -> Vec<String> {
    audit::audit_postgres(&test.sql, test.clock.offset_ms()).await.expect("Postgres answers the auditor")
}

/// What breaks an invariant in Postgres or in the provider's books, now that everything should have come to rest.
pub async fn audit_settled(test: &TestStores, provider: &ScriptedProvider) -> Vec<String> {
    audit::audit_settled(&installation(test).await, provider).await.expect("Postgres answers the auditor")
}

/// What Redis shows that Postgres does not say, for every event on sale.
pub async fn audit_redis(test: &TestStores) -> Vec<String> {
    audit::audit_redis(&installation(test).await).await.expect("the stores answer the auditor")
}

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
