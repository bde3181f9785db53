//! What the workers do, done at once by the same flows: warm-up, open jobs, and a look at what is due in the deadline
//! index. After a crash anywhere this is what sets things right, once the crashed process's gates have opened.

use domain::flow::Stores;
use domain::flow::expire_reservations::{RESERVATIONS_PER_JOB_MAX, expire_reservations};
use domain::flow::finalize_payment::{PaymentProgress, finalize_payment};
use domain::flow::open_event::open_event;
use domain::flow::warm_up::warm_up;
use domain::id::{EventId, PaymentId, ReservationId};
use domain::payment::PaymentStatus;
use domain::store::pg::outbox::JobKind;
use domain::store::redis::deadlines::SweepSpans;

use crate::audit::{audit_redis, audit_settled};
use crate::provider::ScriptedProvider;
use crate::stores::TestStores;

/// How often a payment without a definite answer is asked about again.
const ASKED_AGAIN: usize = 5;

/// Brings everything to rest through `stores`, and then audits it.
///
/// # Panics
/// Where a flow fails, or the auditor finds something.
pub async fn settle(test: &TestStores, stores: &Stores, provider: &ScriptedProvider) {
    if stores.redis.epoch().await.expect("Redis answers").is_none() || stores.take_redis_missed() {
        warm_up(stores).await.expect("Redis is rebuilt");
    }
    run_jobs(stores, provider).await;
    sweep_deadlines(stores).await;
    let mut findings = audit_settled(test, provider).await;
    findings.extend(audit_redis(test).await);
    assert!(findings.is_empty(), "not sound once settled:\n{}", findings.join("\n"));
}

/// Runs the job of every open outbox row, as far as it goes.
pub async fn run_jobs(stores: &Stores, provider: &ScriptedProvider) {
    let id = |payload: &serde_json::Value, field: &str| payload[field].as_str().expect("jobs carry ids").to_owned();
    for row in stores.pg.outbox_page(None, 1_000).await.unwrap() {
        match row.kind {
            JobKind::FinalizePayment => {
                finalize(stores, provider, id(&row.payload, "payment").parse().unwrap()).await;
            }
            JobKind::OpenEvent => {
                let event: EventId = id(&row.payload, "event").parse().unwrap();
                open_event(stores, event).await.expect("the event opens");
            }
            JobKind::ExpireReservations | JobKind::WarmUp => panic!("these have no row"),
        }
    }
}

/// Brings a payment to its end, asking again where the provider gives no definite answer. None while the provider waits
/// for the buyer.
pub async fn finalize(stores: &Stores, provider: &ScriptedProvider, payment: PaymentId) -> Option<PaymentStatus> {
    for _ in 0..ASKED_AGAIN {
        match finalize_payment(stores, &provider.gateways(), payment).await.expect("the stores answer") {
            PaymentProgress::Ended(status) => return Some(status),
            PaymentProgress::Waiting { .. } => return None,
            PaymentProgress::Unknown { .. } => {}
        }
    }
    panic!("the payment {payment} has no end after {ASKED_AGAIN} tries");
}

/// What the sweep does, all its grace aside: expires what is due, or shows it as it is.
pub async fn sweep_deadlines(stores: &Stores) {
    let spans = SweepSpans { since_ms: 0, grace_ms: 0, lease_ms: 5_000, most: 1_000 };
    loop {
        let claimed = stores.redis.sweep(spans).await.expect("Redis answers").claimed;
        if claimed.is_empty() {
            return;
        }
        let ids: Vec<ReservationId> = claimed.into_iter().map(|(id, _)| id).collect();
        for chunk in ids.chunks(RESERVATIONS_PER_JOB_MAX) {
            expire_reservations(stores, chunk).await.expect("what is due expires");
        }
    }
}

/// Expires, or shows as they are, all reservations in the deadline index, due or not: what is not due stays.
pub async fn look_at_deadlines(test: &TestStores, stores: &Stores) {
    let entries: Vec<String> = redis::cmd("ZRANGE")
        .arg(test.deadlines_key())
        .arg(0)
        .arg(-1)
        .query_async(&mut test.redis().await)
        .await
        .unwrap();
    let ids: Vec<ReservationId> = entries.iter().map(|id| id.parse().expect("the index holds ids")).collect();
    for chunk in ids.chunks(RESERVATIONS_PER_JOB_MAX) {
        expire_reservations(stores, chunk).await.expect("what is due expires");
    }
}
