//! Many deadlines at once: each is touched when it can expire, all are looked at, no more is claimed than the workers
//! can do, and many reservations are given back in one step, each by compare-and-set.

use std::collections::HashSet;
use std::time::Duration;

use domain::flow::expire_reservations::expire_reservations;
use domain::flow::{FaultPoint, Faults, Stores};
use domain::id::ReservationId;
use domain::queue::{JobId, NewJob, Queue};
use domain::runtime::clock::{new_uuid, system_ms};
use domain::store::pg::outbox::JobKind;
use domain::store::redis::deadlines::SweepSpans;
use domain::store::redis::keys::BlockKey;
use domain::store::redis::releases::ExpiredSeats;
use domain::time::to_ms;
use futures::StreamExt as _;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::audit::assert_settled;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::settle;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;
use serde_json::json;
use tokio_util::sync::CancellationToken;

fn nobody() -> ReservationId {
    ReservationId(new_uuid())
}

fn spans(since_ms: i64, grace_ms: i64, most: usize) -> SweepSpans {
    SweepSpans { since_ms, grace_ms, lease_ms: 60_000, most }
}

/// In the millisecond of its deadline a key still lives, and touching it then would be the only touch it gets.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_touched_when_its_key_can_expire_and_not_before() {
    let mut config = RedisConfig::test();
    config.settings = vec![("notify-keyspace-events".to_owned(), "Ex".to_owned())];
    let server = RedisServer::start(config).unwrap();
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    let mut redis = test.redis().await;
    // Redis finds nothing by itself: what expires was touched.
    let _: String = redis::cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).query_async(&mut redis).await.unwrap();
    let from_ms = system_ms() + 200;
    let deadlines: Vec<(ReservationId, i64)> = (0..200).map(|n| (nobody(), from_ms + n)).collect();
    let client = redis::Client::open(server.url()).unwrap();
    let mut heard = client.get_async_pubsub().await.unwrap();
    heard.subscribe("__keyevent@0__:expired").await.unwrap();
    test.stores.redis.register_deadlines(&deadlines).await.unwrap();
    let mut since_ms = 0;
    let mut touched = 0;
    until("every deadline to be touched", async || {
        // As often as can be: the more looks, the more of them fall into the very millisecond.
        let seen = test.stores.redis.sweep(spans(since_ms, 3_600_000, 1_000)).await.unwrap();
        test.stores.redis.touch_expired(&seen.due).await.unwrap();
        since_ms = seen.looked_until_ms;
        touched += seen.due.len();
        (touched >= deadlines.len()).then_some(())
    })
    .await;
    let mut expired = HashSet::new();
    let mut messages = heard.into_on_message();
    while expired.len() < deadlines.len() {
        let message = tokio::time::timeout(Duration::from_secs(5), messages.next()).await;
        let message = message.unwrap_or_else(|_| panic!("{} of 200 were touched in vain", 200 - expired.len()));
        expired.insert(message.unwrap().get_payload::<String>().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_one_look_cannot_take_is_looked_at_to_its_end() {
    let test = TestStores::start().await;
    let from_ms = system_ms() - 1_000;
    let deadlines: Vec<(ReservationId, i64)> = (0..25).map(|n| (nobody(), from_ms + n)).collect();
    test.stores.redis.register_deadlines(&deadlines).await.unwrap();
    let mut since_ms = 0;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let look = test.stores.redis.sweep(spans(since_ms, 3_600_000, 10)).await.unwrap();
        since_ms = look.looked_until_ms;
        seen.extend(look.due);
    }
    let wanted: Vec<ReservationId> = deadlines.iter().map(|(id, _)| *id).collect();
    assert_eq!(seen, wanted, "each once, in the order of the deadlines");
    let none = test.stores.redis.sweep(spans(from_ms, 0, 0)).await.unwrap();
    assert_eq!((none.due.len(), none.claimed.len(), none.looked_until_ms), (0, 0, from_ms));
}

async fn claimed(test: &TestStores) -> i64 {
    let soon = system_ms() + 1_000;
    let count = redis::cmd("ZCOUNT").arg(test.deadlines_key()).arg(soon).arg("+inf").to_owned();
    count.query_async(&mut test.redis().await).await.unwrap()
}

/// What waits longer than its lease would be claimed and queued again and again.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_deadlines_are_claimed_than_the_workers_can_expire_in_time() {
    const DUE: i64 = 5_000;
    let test = TestStores::start().await;
    let from_ms = system_ms() - 10_000;
    let deadlines: Vec<(ReservationId, i64)> = (0..DUE).map(|n| (nobody(), from_ms + n % 1_000)).collect();
    test.stores.redis.register_deadlines(&deadlines).await.unwrap();
    // Nobody works: a hundred jobs wait.
    let waiting: Vec<NewJob> = (0..100)
        .map(|_| {
            let id = JobId::new("expire", new_uuid());
            NewJob::new(Queue::Expiries, id, JobKind::ExpireReservations.name(), json!({ "due": [] }))
        })
        .collect();
    test.stores.jobs.enqueue(&waiting).await.unwrap();
    let shutdown = CancellationToken::new();
    let sweeping = tokio::spawn(workers::sweep::run_sweep(test.another_process(), shutdown.clone()));
    until("the first look", async || (claimed(&test).await > 0).then_some(())).await;
    let first = claimed(&test).await;
    assert!(first < DUE / 2, "{first} of {DUE} are claimed at once");
    let mut redis = test.redis().await;
    let looks = async |redis: &mut redis::aio::MultiplexedConnection| {
        let line: String = redis::cmd("INFO").arg("stats").query_async(redis).await.unwrap();
        let commands = line.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap().to_owned();
        commands.trim().parse::<u64>().unwrap()
    };
    let before = looks(&mut redis).await;
    until("many more looks", async || (looks(&mut redis).await > before + 200).then_some(())).await;
    assert_eq!(claimed(&test).await, first, "nothing more is claimed while the jobs wait");
    let queue = test.key("").replace(':', "-") + "expiries:active";
    let _: i64 = redis::cmd("DEL").arg(&queue).query_async(&mut redis).await.unwrap();
    until("the rest to be claimed", async || {
        let _: i64 = redis::cmd("DEL").arg(&queue).query_async(&mut redis).await.unwrap();
        (claimed(&test).await == DUE).then_some(())
    })
    .await;
    shutdown.cancel();
    sweeping.await.unwrap();
}

/// A process that may crash at a point, and hangs there.
fn doomed(test: &TestStores, at: FaultPoint) -> Stores {
    let mut doomed = test.another_process();
    doomed.faults = Faults::crash_where(move |point| point == at);
    doomed
}

#[tokio::test(flavor = "multi_thread")]
async fn many_reservations_are_given_back_in_one_step_and_nobody_elses() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::of_rows(&[("B1", "A", 6), ("B2", "A", 6)]).ttl_ms(6_000)).await;
    let mut ids = Vec::new();
    for seats in [["B1/A-1", "B2/A-1"], ["B1/A-2", "B2/A-2"], ["B1/A-3", "B2/A-3"]] {
        ids.push(sale.hold(stores, "u1", &seats).await.unwrap().id);
    }
    test.advance(3_000);
    let alive = sale.hold(stores, "u2", &["B1/A-5"]).await.unwrap();
    ids.push(alive.id);
    test.advance(3_000);
    // The next buyer has one of them already, though nobody has tidied up.
    let taken = sale.hold(stores, "u3", &["B1/A-2"]).await.unwrap();
    let client = redis::Client::open(test.settings.redis_url.as_str()).unwrap();
    let mut changes = client.get_async_pubsub().await.unwrap();
    changes.subscribe(test.key(&format!("seatChanges:{}:B1", sale.sheet.event.date_key))).await.unwrap();
    assert_eq!(expire_reservations(stores, &ids).await.unwrap(), 2, "one went with the next buyer's hold");
    let message = changes.into_on_message().next().await.unwrap();
    let change: serde_json::Value = serde_json::from_slice(message.get_payload_bytes()).unwrap();
    assert_eq!((&change["status"], change["seats"].as_array().unwrap().len()), (&json!("available"), 2));
    for (seat, wanted) in [("B1/A-1", "available"), ("B1/A-2", "held"), ("B1/A-3", "available"), ("B1/A-5", "held")] {
        assert_eq!(sale.bucket_status(&test, seat).await.as_deref(), Some(wanted), "{seat}");
    }
    assert_eq!(stores.pg.find_reservation(taken.id).await.unwrap().unwrap().seats.len(), 1);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

/// A late release, written by a process that was stopped before it, changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_leaves_what_was_extended_paid_for_or_held_again() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    let (held, paid) =
        (sale.hold(stores, "u1", &["A-1"]).await.unwrap(), sale.hold(stores, "u1", &["A-2"]).await.unwrap());
    pay(stores, paid.id, "tok_ok").await.unwrap();
    let block = BlockKey { date: sale.sheet.event.date_key.as_str().into(), block: "B1".parse().unwrap() };
    let key = |seat: &str| test.key(&format!("seat:{}:B1:{seat}:A", sale.sheet.event.date_key));
    let late = ExpiredSeats {
        event: sale.sheet.event.id,
        block,
        seats: vec![
            // Another's; stretched by its payment; and its own, at a deadline before its last.
            (key("1"), paid.id, to_ms(held.expires_at)),
            (key("2"), paid.id, to_ms(paid.expires_at)),
            (key("1"), held.id, to_ms(held.expires_at) - 1),
        ],
    };
    assert_eq!(stores.redis.release_expired(std::slice::from_ref(&late)).await.unwrap(), 0);
    assert_settled(&test, &ScriptedProvider::default()).await;
    let mut redis = test.redis().await;
    let _: i64 = redis::cmd("DEL").arg(key("3")).query_async(&mut redis).await.unwrap();
    let absent = ExpiredSeats { seats: vec![(key("3"), nobody(), 1)], ..late };
    assert_eq!(stores.redis.release_expired(&[absent]).await.unwrap(), 1, "what is absent is written");
    assert_settled(&test, &ScriptedProvider::default()).await;
}

/// Its deadline passes before anybody has queued the job of its payment.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_queues_the_job_of_a_payment_that_a_crash_left() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(6_000)).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    let doomed = doomed(&test, FaultPoint::PaymentCommitted);
    tokio::select! {
        paid = pay(&doomed, held.id, "tok_ok") => panic!("{paid:?}"),
        () = async {
            let payments = async || test.count("SELECT count(*) FROM payments").await;
            until("the payment", async || (payments().await == 1).then_some(())).await;
        } => {}
    }
    test.advance(60_000);
    assert_eq!(stores.jobs.count_waiting(Queue::Payments).await.unwrap(), 0);
    assert_eq!(expire_reservations(stores, &[held.id]).await.unwrap(), 1);
    assert_eq!(stores.jobs.count_waiting(Queue::Payments).await.unwrap(), 1);
    settle(&test, stores, &provider).await;
}
