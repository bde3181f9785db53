//! Whoever heals a bucket must not wait for what cannot come.

use domain::flow::warm_up::warm_up;
use domain::flow::{FaultPoint, Faults};
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use std::sync::Arc;
use tokio::sync::Notify;

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_shows_a_sold_seat_through_the_gate_of_a_hold_that_died() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(&test.stores, held.id, "tok_ok").await.unwrap();
    finalize(&test.stores, &provider, payment.id).await;
    test.lose_redis().await;
    let (mut doomed, reached) = (test.another_process(), Arc::new(Notify::new()));
    let at = Arc::clone(&reached);
    doomed.faults = Faults::crash_where(move |point| {
        let dies = point == FaultPoint::HoldGateTaken;
        if dies {
            at.notify_one();
        }
        dies
    });
    tokio::select! {
        () = reached.notified() => {}
        answer = sale.hold(&doomed, "u2", &["A-1"]) => panic!("it dies at its gate: {answer:?}"),
    }
    assert_eq!(sale.bucket_status(&test, "A-1").await.as_deref(), Some("held"), "the gate of the dead stands");
    warm_up(&test.stores).await.unwrap();
    // Without this the gate would open in seconds, and the sold seat look available until somebody tried to hold it.
    assert_eq!(sale.bucket_status(&test, "A-1").await.as_deref(), Some("sold"));
    settle(&test, &test.stores, &provider).await;
}
