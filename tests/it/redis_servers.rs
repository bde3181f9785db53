//! The workers on Redis servers as they are found in the world: without announcements, without CONFIG, restarted, shared
//! with others, full of foreign keys.

use std::time::Duration;

use domain::reservation::ReservationStatus;
use domain::seat::SeatStatus;
use domain::time::to_ms;
use futures::StreamExt as _;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::audit::settles_within;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use holdfast_tests::web::{Ask, Web};
use holdfast_tests::worker::RunningWorker;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

const SETTLED: Duration = Duration::from_secs(15);
/// From the deadline to another buyer's success, with a margin for a busy machine (A-E1: 3 s).
const FREE: Duration = Duration::from_secs(3);

fn redis_with(settings: &[(&str, &str)]) -> RedisServer {
    let mut config = RedisConfig::test();
    config.settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    RedisServer::start(config).expect("a Redis of the test's own starts")
}

async fn connect(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
    client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
}

fn seats(from: usize, to: usize) -> Vec<String> {
    (from..=to).map(|column| format!("A-{column}")).collect()
}

/// Holds each seat alone; returns when the last one dies, ms.
async fn hold_each(test: &TestStores, sale: &Sale, buyer: &str, seats: &[String]) -> i64 {
    let mut last = 0;
    for seat in seats {
        last = last.max(to_ms(sale.hold(&test.stores, buyer, &[seat]).await.unwrap().expires_at));
    }
    last
}

/// Every bucket is free, as Redis itself shows it, within the limit after the last deadline.
async fn all_free_in_time(test: &TestStores, sale: &Sale, seats: &[String], deadline_ms: i64) {
    until("the last deadline", async || (to_ms(test.stores.pg.now().await.unwrap()) >= deadline_ms).then_some(()))
        .await;
    until_within(FREE, "all of them to be free", async || {
        for seat in seats {
            if sale.bucket_status(test, seat).await.as_deref() != Some("available") {
                return None;
            }
        }
        Some(())
    })
    .await;
}

/// Hold, expire, pay: the whole job, through a worker.
async fn everything_works(test: &TestStores) {
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 60)]).ttl_ms(2_000)).await;
    let mine = seats(1, 50);
    let deadline_ms = hold_each(test, &sale, "u1", &mine).await;
    let paid = sale.hold(&test.stores, "u2", &["A-60"]).await.unwrap();
    pay(&test.stores, paid.id, "tok_ok").await.unwrap();
    all_free_in_time(test, &sale, &mine, deadline_ms).await;
    for seat in &mine {
        sale.hold(&test.stores, "u3", &[seat]).await.expect("another buyer's now");
    }
    until("the payment", async || (sale.status(&test.stores, "A-60").await == SeatStatus::Sold).then_some(())).await;
    settles_within(test, SETTLED).await;
}

// A-E1
#[tokio::test(flavor = "multi_thread")]
async fn without_announcements_the_sweep_alone_expires_in_time() {
    let server = redis_with(&[("notify-keyspace-events", "")]);
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let check = test.stores.redis.check_server(false).await.unwrap();
    assert!(!check.announces_expiries);
    assert!(check.warnings.iter().any(|warning| warning.contains("notifications off")), "{:?}", check.warnings);
    let web = Web::start(&test.stores).await;
    let _worker = RunningWorker::start(&test);
    let health = Ask::new("GET", "/readyz?verbose").send(&web.ops).await;
    assert_eq!(health.status, 200, "a warning, not a failure");
    assert!(health.text.contains("expiry bridge: notifications off"), "{}", health.text);
    everything_works(&test).await;
    let metrics = Ask::new("GET", "/metrics").send(&web.ops).await.text;
    assert!(metrics.contains("holdfast_bridge_notifications 0"), "{metrics}");
    let setting: Vec<String> = redis::cmd("CONFIG")
        .arg("GET")
        .arg("notify-keyspace-events")
        .query_async(&mut connect(server.url()).await)
        .await
        .unwrap();
    assert_eq!(setting[1], "", "not set where it may not be");
}

async fn config_is_forbidden(test: &TestStores) {
    let check = test.stores.redis.check_server(true).await.expect("a warning, never a failure");
    assert_eq!(check.warnings.len(), 1, "one clear warning: {:?}", check.warnings);
    assert!(check.warnings[0].contains("CONFIG is forbidden"));
    let _worker = RunningWorker::start(test);
    everything_works(test).await;
}

// A-E2
#[tokio::test(flavor = "multi_thread")]
async fn where_config_does_not_exist_everything_works() {
    let server = redis_with(&[("rename-command", "CONFIG \"\""), ("notify-keyspace-events", "")]);
    let test = TestStores::start_with(|settings| {
        settings.redis_url = server.url().to_owned();
        settings.redis_configure = true;
    })
    .await;
    config_is_forbidden(&test).await;
}

// A-E2, the managed server's way: an ACL.
#[tokio::test(flavor = "multi_thread")]
async fn where_an_acl_forbids_config_everything_works() {
    let server = redis_with(&[]);
    let mut admin = connect(server.url()).await;
    let _: String = redis::cmd("ACL")
        .arg("SETUSER")
        .arg("app")
        .arg(&["on", ">secret", "~*", "&*", "+@all", "-@dangerous", "-@admin", "+info"])
        .query_async(&mut admin)
        .await
        .unwrap();
    let url = server.url().replace("redis://", "redis://app:secret@");
    let test = TestStores::start_with(|settings| {
        settings.redis_url = url;
        settings.redis_configure = true;
    })
    .await;
    config_is_forbidden(&test).await;
    let denied: Vec<std::collections::HashMap<String, redis::Value>> =
        redis::cmd("ACL").arg("LOG").query_async(&mut admin).await.unwrap();
    let count = |entry: &std::collections::HashMap<String, redis::Value>| {
        redis::from_redis_value_ref::<u32>(&entry["count"]).unwrap()
    };
    let asked: u32 = denied.iter().map(count).sum();
    assert!((1..20).contains(&asked), "it asks at start, not again and again: {denied:?}");
}

// A-E3
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_redis_setting_and_subscription_come_back() {
    let mut server = redis_with(&[("notify-keyspace-events", "")]);
    let test = TestStores::start_with(|settings| {
        settings.redis_url = server.url().to_owned();
        settings.redis_configure = true;
    })
    .await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 60)]).ttl_ms(2_000)).await;
    let (_worker, _api) = (RunningWorker::start(&test), test.repair_as_an_api());
    until("the bridge", async || (subscriptions(server.url()).await == 1).then_some(())).await;
    // These die while Redis is away; it forgets everything (no persistence), its run-time settings too.
    let lost = hold_each(&test, &sale, "u0", &seats(41, 60)).await;
    server.kill().unwrap();
    until("their deadline", async || (to_ms(test.stores.pg.now().await.unwrap()) >= lost).then_some(())).await;
    server.restart().unwrap();
    until_within(Duration::from_secs(10), "one subscription, and the setting", async || {
        let mut connection = connect(server.url()).await;
        let setting: Vec<String> =
            redis::cmd("CONFIG").arg("GET").arg("notify-keyspace-events").query_async(&mut connection).await.unwrap();
        let announces = setting[1].contains('E') && setting[1].contains('x');
        (announces && subscriptions(server.url()).await == 1).then_some(())
    })
    .await;
    settles_within(&test, SETTLED).await;
    let mine = seats(1, 20);
    let deadline_ms = hold_each(&test, &sale, "u1", &mine).await;
    all_free_in_time(&test, &sale, &mine, deadline_ms).await;
    settles_within(&test, SETTLED).await;
}

async fn subscriptions(url: &str) -> i64 {
    let channel = "__keyevent@0__:expired";
    let counts: (String, i64) =
        redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query_async(&mut connect(url).await).await.unwrap();
    counts.1
}

// A-J3: the queues come back too.
#[tokio::test(flavor = "multi_thread")]
async fn payments_asked_for_after_a_restart_of_redis_are_finished_without_one_of_the_workers() {
    let mut server = redis_with(&[]);
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let (_worker, _api) = (RunningWorker::start(&test), test.repair_as_an_api());
    settles_within(&test, SETTLED).await;
    server.restart().unwrap();
    let mut paid = Vec::new();
    for seat in seats(1, 10) {
        let held = sale.hold(&test.stores, "u1", &[&seat]).await.unwrap();
        pay(&test.stores, held.id, "tok_ok").await.unwrap();
        paid.push(held.id);
    }
    until_within(Duration::from_secs(20), "all ten to be confirmed", async || {
        let confirmed = test.stores.pg.find_reservations(&paid).await.unwrap();
        confirmed.iter().all(|reservation| reservation.status() == ReservationStatus::Confirmed).then_some(())
    })
    .await;
    settles_within(&test, SETTLED).await;
}

/// Redis finds few of very many keys by itself; nobody looks at the holds' keys. At their deadline some of the seats are
/// taken by other buyers at once, and the others are announced as available.
async fn holds_end_in_time_among(foreign: usize, holds: usize) {
    let server = redis_with(&[]);
    let mut connection = connect(server.url()).await;
    for chunk in 0..foreign / 10_000 {
        let mut fill = redis::pipe();
        for key in 0..10_000 {
            fill.cmd("SET").arg(format!("foreign:{chunk}:{key}")).arg("x").arg("EX").arg(3_600).ignore();
        }
        let () = fill.query_async(&mut connection).await.unwrap();
    }
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let web = Web::start(&test.stores).await;
    let _worker = RunningWorker::start(&test);
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", holds)]).ttl_ms(6_000)).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut changes = client.get_async_pubsub().await.unwrap();
    changes.subscribe(test.key(&format!("seatChanges:{}:B1", sale.sheet.event.date_key))).await.unwrap();
    let (mine, others) = (seats(1, holds), seats(1, holds / 5));
    let holding = mine.iter().map(|seat| async { sale.hold(&test.stores, "u1", &[seat.as_str()]).await });
    let held = futures::future::join_all(holding).await;
    let deadline_ms = held.into_iter().map(|held| to_ms(held.unwrap().expires_at)).max().unwrap();
    until("the last deadline", async || (to_ms(test.stores.pg.now().await.unwrap()) >= deadline_ms).then_some(()))
        .await;
    let reading = sale.read(&test.stores, "B1").await;
    let free = reading.seats.iter().filter(|seat| seat.status_at(reading.now_ms) == SeatStatus::Available).count();
    assert_eq!(free, holds, "the map shows all of them");
    let announced = tokio::spawn(announced_free(changes.into_on_message(), holds - others.len()));
    let holding = others.iter().map(|seat| async { sale.hold(&test.stores, "u2", &[seat.as_str()]).await });
    for held in futures::future::join_all(holding).await {
        held.expect("another buyer's now");
    }
    let announced = tokio::time::timeout(FREE, announced).await.expect("each is announced in time").unwrap();
    assert!(announced >= holds - others.len());
    all_free_in_time(&test, &sale, &seats(others.len() + 1, holds), deadline_ms).await;
    let metrics = Ask::new("GET", "/metrics").send(&web.ops).await.text;
    assert!(metrics.contains("holdfast_expiry_lag_seconds_count"), "how late expiries are is told: {metrics}");
    settles_within(&test, Duration::from_secs(30)).await;
}

/// Counts the seats that are announced as available, until there are enough of them.
async fn announced_free(mut messages: impl futures::Stream<Item = redis::Msg> + Unpin, enough: usize) -> usize {
    let mut free = std::collections::HashSet::new();
    while free.len() < enough {
        let message = messages.next().await.expect("the channel stays open");
        let change: serde_json::Value = serde_json::from_slice(message.get_payload_bytes()).unwrap();
        if change["status"] == "available" {
            free.extend(change["seats"].as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned()));
        }
    }
    free.len()
}

// A-E5
#[tokio::test(flavor = "multi_thread")]
async fn among_very_many_foreign_keys_holds_still_end_in_time() {
    holds_end_in_time_among(200_000, 200).await;
}

// A-E5, in full.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a million keys take a while to write"]
async fn among_a_million_foreign_keys_a_thousand_holds_still_end_in_time() {
    holds_end_in_time_among(1_000_000, 1_000).await;
}

// A-E11: another database number, a prefix, and other applications' keys that expire beside ours.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_expiries_are_dropped_and_ours_are_found_in_any_database() {
    let server = redis_with(&[]);
    let test = TestStores::start_with(|settings| {
        settings.redis_url = format!("{}/3", server.url());
        settings.redis_prefix = "qa:".to_owned();
    })
    .await;
    let _worker = RunningWorker::start(&test);
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 20)]).ttl_ms(2_000)).await;
    until("the bridge", async || {
        let mut connection = connect(server.url()).await;
        let channel = "__keyevent@3__:expired";
        let counts: (String, i64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query_async(&mut connection).await.unwrap();
        (counts.1 == 1).then_some(())
    })
    .await;
    let living = sale.hold(&test.stores, "u9", &["A-20"]).await.unwrap();
    pay(&test.stores, living.id, "tok_silence").await.unwrap();
    let mine = seats(1, 10);
    let deadline_ms = hold_each(&test, &sale, "u1", &mine).await;
    let junk: Vec<u8> = (0..1_024).map(|n| u8::try_from(n % 256).unwrap()).collect();
    let living_key = format!("expired:reservation:{}", living.id);
    for url in [server.url().to_owned(), format!("{}/3", server.url())] {
        let mut connection = connect(&url).await;
        for round in 0..250 {
            let mut fill = redis::pipe();
            let names = [&b"seat:B1:A-1"[..], b"qa:seat", b"qa:hold:%%%", junk.as_slice(), living_key.as_bytes()];
            for (index, name) in names.iter().enumerate() {
                let lifetime = 1 + (round + index) % 40;
                fill.cmd("SET").arg(*name).arg("x").arg("PX").arg(lifetime).ignore();
            }
            let () = fill.query_async(&mut connection).await.unwrap();
        }
    }
    all_free_in_time(&test, &sale, &mine, deadline_ms).await;
    assert_eq!(sale.status(&test.stores, "A-20").await, SeatStatus::Held, "a namesake without the prefix is not ours");
    let expired = "SELECT count(*) FROM reservations WHERE status = 'CANCELLED' AND cancel_reason = 'expired'";
    assert_eq!(test.count(expired).await, 10);
    settles_within(&test, SETTLED).await;
}
