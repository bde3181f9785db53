//! Without Redis everything goes on from Postgres alone, slower; when it is back, warm-up shows what was missed.

use std::time::{Duration, Instant};

use domain::flow::place_hold::PlaceHoldError;
use domain::flow::unhold::cancel_reservation;
use domain::flow::{Access, Stores};
use domain::reservation::CancelReason;
use domain::seat::SeatStatus;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::audit::assert_sound;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::{finalize, run_jobs, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;

/// Every kind of change, each within two seconds: nobody waits for a Redis that is not there more than once.
async fn business_goes_on(test: &TestStores, stores: &Stores, sale: &Sale, provider: &ScriptedProvider) {
    let began = Instant::now();
    let paid = sale.hold(stores, "u1", &["B-1", "B-2"]).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "a hold took {:?}", began.elapsed());
    assert!(matches!(sale.hold(stores, "u2", &["B-2"]).await, Err(PlaceHoldError::Unavailable(_))));
    let left = sale.hold(stores, "u2", &["B-3"]).await.unwrap();
    cancel_reservation(stores, &Access::Any, left.id, CancelReason::User).await.unwrap();
    let payment = pay(stores, paid.id, "tok_ok").await.unwrap();
    finalize(stores, provider, payment.id).await.expect("it ends");
    assert_eq!(sale.status(stores, "B-1").await, SeatStatus::Sold, "read from Postgres");
    assert_eq!(sale.status(stores, "B-3").await, SeatStatus::Available);
    assert!(stores.take_redis_missed(), "a warm-up is due");
    assert_sound(test).await;
}

async fn back(test: &TestStores, stores: &Stores) {
    until("Redis to be used again", async || stores.redis.epoch().await.ok()).await;
    let mut redis = test.redis().await;
    let _: String = redis::cmd("PING").query_async(&mut redis).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_and_payments_go_on_while_redis_is_dead_and_show_when_it_is_back() {
    let mut server = RedisServer::start(RedisConfig::test()).unwrap();
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(60_000)).await;
    sale.hold(&test.stores, "u0", &["A-1"]).await.unwrap();
    server.kill().unwrap();
    business_goes_on(&test, &test.stores, &sale, &provider).await;
    server.restart().unwrap();
    back(&test, &test.stores).await;
    domain::flow::warm_up::warm_up(&test.stores).await.unwrap();
    run_jobs(&test.stores, &provider).await;
    settle(&test, &test.stores, &provider).await;
    sale.hold(&test.stores, "u3", &["A-2"]).await.unwrap();
    settle(&test, &test.stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_costs_a_request_a_second_at_most() {
    let mut server = RedisServer::start(RedisConfig::test()).unwrap();
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(60_000)).await;
    server.pause().unwrap();
    business_goes_on(&test, &test.stores, &sale, &provider).await;
    server.resume().unwrap();
    back(&test, &test.stores).await;
    domain::flow::warm_up::warm_up(&test.stores).await.unwrap();
    settle(&test, &test.stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_dies_between_two_steps_of_a_hold_does_not_fail_it() {
    let mut server = RedisServer::start(RedisConfig::test()).unwrap();
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(60_000)).await;
    let holds: Vec<_> = (1..=10)
        .flat_map(|column| ["A", "B", "C"].map(|row| format!("{row}-{column}")))
        .map(|seat| {
            let (stores, sale) = (test.stores.clone(), sale.clone());
            tokio::spawn(async move { sale.hold(&stores, "u1", &[&seat]).await })
        })
        .collect();
    server.kill().unwrap();
    for held in holds {
        held.await.unwrap().expect("each is held, with Redis or without it");
    }
    assert_eq!(test.count("SELECT count(*) FROM seat_claims WHERE state = 'held'").await, 30);
    assert_sound(&test).await;
    server.restart().unwrap();
    back(&test, &test.stores).await;
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}
