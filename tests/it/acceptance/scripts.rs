//! Redis forgets its scripts, or may not run them: nobody is told NOSCRIPT, and readiness knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use domain::flow::warm_up::warm_up;
use domain::reservation::ReservationStatus;
use domain::store::pg::api_keys::KeyScope;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::audit::settles_within;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;
use holdfast_tests::web::{Ask, Web, api_key};
use holdfast_tests::worker::RunningWorker;
use redis::aio::MultiplexedConnection;
use serde_json::json;

const SETTLED: Duration = Duration::from_secs(20);

async fn connect(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// Holds and gives back one seat again and again until told to stop. Returns how often; every answer must be a success.
async fn hold_and_release(
    (web, key, path): (Web, String, String),
    seat: serde_json::Value,
    (done, count): (Arc<AtomicBool>, Arc<AtomicU32>),
) {
    let body = json!({ "seats": [seat], "buyer": "u1" });
    while !done.load(Ordering::Relaxed) {
        let held = Ask::new("POST", path.clone()).json(&body).by(&key).send(&web.public).await;
        assert_eq!(held.status, 201, "{}", held.text);
        let over = Ask::new("DELETE", held.header("location")).by(&key).send(&web.public).await;
        assert_eq!(over.status, 200, "{}", over.text);
        count.fetch_add(1, Ordering::Relaxed);
    }
}

// A-C4: under load the scripts are flushed again and again, then Redis restarts with nothing. Every request succeeds (from
// Postgres alone where it must), and the jobs go on. A failover's replica has no scripts either: see `failover`.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_redis_forgot_are_loaded_again_and_no_caller_notices() {
    let mut server = RedisServer::start(RedisConfig::test()).unwrap();
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let (_worker, _api) = (RunningWorker::start(&test), test.repair_as_an_api());
    let key = api_key(&test.stores, KeyScope::Sales).await;
    let web = Web::start(&test.stores).await;
    let (done, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let path = format!("/v1/events/{}/reservations", sale.event);
    let load: Vec<_> = (1..=8)
        .map(|column| {
            let seat = json!({ "block": "B1", "row": "A", "column": column.to_string() });
            let caller = (web.clone(), key.clone(), path.clone());
            tokio::spawn(hold_and_release(caller, seat, (Arc::clone(&done), Arc::clone(&count))))
        })
        .collect();
    let mut admin = connect(server.url()).await;
    let mut paid = Vec::new();
    for round in 1..=10 {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut admin).await.unwrap();
        let held = sale.hold(&test.stores, "u2", &[&format!("B-{round}")]).await.unwrap();
        pay(&test.stores, held.id, "tok_ok").await.unwrap();
        paid.push(held.id);
        let before = count.load(Ordering::Relaxed);
        until("the load to go on", async || (count.load(Ordering::Relaxed) >= before + 8).then_some(())).await;
    }
    let errors: String = redis::cmd("INFO").arg("errorstats").query_async(&mut admin).await.unwrap();
    assert!(errors.contains("errorstat_NOSCRIPT"), "the flush was felt: {errors}");
    server.restart().unwrap();
    let before = count.load(Ordering::Relaxed);
    until("the load to go on", async || (count.load(Ordering::Relaxed) >= before + 40).then_some(())).await;
    done.store(true, Ordering::Relaxed);
    for client in load {
        client.await.unwrap();
    }
    until("all payments to be confirmed", async || {
        let found = test.stores.pg.find_reservations(&paid).await.unwrap();
        found.iter().all(|reservation| reservation.status() == ReservationStatus::Confirmed).then_some(())
    })
    .await;
    settles_within(&test, SETTLED).await;
}

async fn redis_is(web: &Web) -> String {
    let report = Ask::new("GET", "/readyz?verbose").send(&web.ops).await.json();
    let checks = report["checks"].as_array().unwrap();
    let redis = checks.iter().find(|check| check["name"] == "redis").unwrap();
    redis["state"].as_str().unwrap().to_owned()
}

// A-C4: a Redis that answers PING and runs no script is not well, and readiness says so; holds go on from Postgres.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_knows_that_scripts_do_not_run_though_redis_answers_ping() {
    let server = RedisServer::start(RedisConfig::test()).unwrap();
    let mut admin = connect(server.url()).await;
    let rights = async |rights: &[&str]| {
        let mut admin = admin.clone();
        let () = redis::cmd("ACL").arg("SETUSER").arg("app").arg(rights).query_async(&mut admin).await.unwrap();
    };
    rights(&["on", ">secret", "~*", "&*", "+@all"]).await;
    let url = server.url().replace("redis://", "redis://app:secret@");
    let test = TestStores::start_with(|settings| settings.redis_url = url.clone()).await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    warm_up(&test.stores).await.unwrap();
    let web = Web::start(&test.stores).await;
    until("readiness", async || (redis_is(&web).await == "ok").then_some(())).await;
    rights(&["-eval", "-evalsha"]).await;
    until("readiness to turn", async || (redis_is(&web).await == "degraded").then_some(())).await;
    let pong: String = redis::cmd("PING").query_async(&mut connect(&url).await).await.unwrap();
    assert_eq!(pong, "PONG");
    sale.hold(&test.stores, "u1", &["A-1"]).await.expect("Postgres alone decides");
    assert!(sale.hold(&test.stores, "u2", &["A-1"]).await.is_err());
    rights(&["+eval", "+evalsha"]).await;
    until("readiness to come back", async || (redis_is(&web).await == "ok").then_some(())).await;
    warm_up(&test.stores).await.unwrap();
    let _: String = redis::cmd("PING").query_async(&mut admin).await.unwrap();
    settles_within(&test, SETTLED).await;
}
