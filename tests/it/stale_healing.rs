//! Whoever heals a bucket must not wait for what cannot come.

use domain::flow::place_hold::PlaceHoldError;
use domain::flow::warm_up::warm_up;
use domain::flow::{FaultPoint, Faults};
use futures::StreamExt as _;
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

/// The seats that were said to be available, until a hold of `until` is said.
async fn said_available(changes: redis::aio::PubSub, until: &str) -> Vec<String> {
    let mut messages = changes.into_on_message();
    let mut available = Vec::new();
    while let Some(message) = messages.next().await {
        let change: serde_json::Value = serde_json::from_slice(message.get_payload_bytes()).unwrap();
        let seats = change["seats"].as_array().cloned().unwrap_or_default();
        let mut seats = seats.into_iter().map(|seat| seat.as_str().unwrap().to_owned());
        match change["status"].as_str() {
            Some("available") => available.extend(seats),
            Some("held") if seats.any(|seat| seat.ends_with(until)) => return available,
            _ => {}
        }
    }
    panic!("the channel ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_hold_never_shows_a_taken_seat_as_available() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(&test.stores, held.id, "tok_ok").await.unwrap();
    finalize(&test.stores, &provider, payment.id).await;
    sale.hold(&test.stores, "u1", &["A-2"]).await.unwrap();
    test.lose_redis().await;
    let client = redis::Client::open(test.settings.redis_url.as_str()).unwrap();
    let mut changes = client.get_async_pubsub().await.unwrap();
    changes.subscribe(test.key(&format!("seatChanges:{}:B1", sale.sheet.event.date_key))).await.unwrap();
    let refused = sale.hold(&test.stores, "u2", &["A-1", "A-2", "A-3"]).await;
    assert!(matches!(&refused, Err(PlaceHoldError::Unavailable(taken)) if taken.len() == 2), "{refused:?}");
    assert_eq!(sale.bucket_status(&test, "A-1").await.as_deref(), Some("sold"));
    assert_eq!(sale.bucket_status(&test, "A-2").await.as_deref(), Some("held"));
    // What nobody took is given back: another buyer gets it at once.
    sale.hold(&test.stores, "u3", &["A-3"]).await.unwrap();
    sale.hold(&test.stores, "u3", &["B-5"]).await.unwrap();
    let available = said_available(changes, ":5:B").await;
    assert_eq!(available, [test.key(&format!("seat:{}:B1:3:A", sale.sheet.event.date_key))]);
    settle(&test, &test.stores, &provider).await;
}
