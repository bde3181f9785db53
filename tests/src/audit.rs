//! The auditor: reads Postgres and Redis by SQL and keys of its own, shares no code with the flows, and says in words
//! what breaks an invariant.

mod buckets;
mod rows;

pub use buckets::audit_redis;
pub use rows::{audit_postgres, audit_settled};

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
