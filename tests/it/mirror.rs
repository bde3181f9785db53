//! The block mirror: a copy in the process that is never far from the stores, whatever happens to its connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::mirror::{BlockMirror, BlockView, Counts, MirrorLimits, ReadError};
use domain::flow::read_block::read_block;
use domain::flow::set_up_event::{EventChange, change_event};
use domain::flow::unhold::cancel_reservation;
use domain::flow::warm_up::warm_up;
use domain::flow::{Access, Stores};
use domain::id::EventId;
use domain::label::Label;
use domain::reservation::CancelReason;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use serde_json::Value;

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

async fn view(mirror: &BlockMirror, sale: &Sale) -> Arc<BlockView> {
    mirror.block(sale.event, &sale.sheet.map.blocks()[0].block).await.unwrap()
}

fn body(view: &BlockView) -> Value {
    serde_json::from_slice(&view.json).unwrap()
}

/// The status that a view shows of a seat named like `A-1`.
fn status(view: &BlockView, name: &str) -> String {
    let body = body(view);
    let (row, column) = name.rsplit_once('-').unwrap();
    let mut seats = body["seats"].as_array().unwrap().iter();
    let seat = seats.find(|seat| seat["row"] == row && seat["column"] == column).unwrap();
    seat["status"].as_str().unwrap().to_owned()
}

async fn until_shown(mirror: &BlockMirror, sale: &Sale, name: &str, wanted: &str) -> Arc<BlockView> {
    until(&format!("{name} to be shown {wanted}"), async || {
        let view = view(mirror, sale).await;
        (status(&view, name) == wanted).then_some(view)
    })
    .await
}

async fn cancel(stores: &Stores, reservation: domain::id::ReservationId) {
    cancel_reservation(stores, &Access::Any, reservation, CancelReason::User).await.unwrap();
}

/// What Redis has, by the flow that reads it afresh.
async fn fresh(stores: &Stores, sale: &Sale) -> (u64, Vec<String>) {
    let reading = read_block(stores, &sale.sheet, &sale.sheet.map.blocks()[0]).await.unwrap();
    let words = reading.seats.iter().map(|seat| seat.status_at(reading.now_ms).as_str().to_owned());
    (reading.version, words.collect())
}

fn shown(view: &BlockView) -> (u64, Vec<String>) {
    let body = body(view);
    let words = body["seats"].as_array().unwrap().iter().map(|seat| seat["status"].as_str().unwrap().to_owned());
    (body["version"].as_u64().unwrap(), words.collect())
}

async fn until_as_fresh(stores: &Stores, mirror: &BlockMirror, sale: &Sale) {
    until("the mirror to show what a fresh reading shows", async || {
        (shown(view(mirror, sale).await.as_ref()) == fresh(stores, sale).await).then_some(())
    })
    .await;
}

async fn a_server_of_its_own() -> (RedisServer, TestStores) {
    let server = RedisServer::start(RedisConfig::test()).unwrap();
    let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
    (server, test)
}

/// How often Redis has run a command.
async fn calls(test: &TestStores, command: &str) -> u64 {
    let mut redis = test.redis().await;
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(&mut redis).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Until the first block follows every change.
async fn until_followed(mirror: &BlockMirror, sale: &Sale) {
    until("the block to be followed", async || {
        view(mirror, sale).await;
        mirror.follows(sale.event, &sale.sheet.map.blocks()[0].block).then_some(())
    })
    .await;
}

async fn until_channels(test: &TestStores, channels: usize) {
    until("Redis to have so many subscriptions", async || {
        let mut redis = test.redis().await;
        let pattern = test.key("seatChanges*");
        let found: Vec<String> =
            redis::cmd("PUBSUB").arg("CHANNELS").arg(pattern).query_async(&mut redis).await.unwrap();
        (found.len() == channels).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_first_readers_cause_one_reading() {
    let (_server, test) = a_server_of_its_own().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 5), ("B2", "A", 5)])).await;
    let mirror = BlockMirror::new(test.stores.clone());
    // The connection stands once a first block is followed.
    until_followed(&mirror, &sale).await;
    let before = calls(&test, "lrange").await;
    let (event, readers) = (sale.event, 1_000);
    let reads: Vec<_> = (0..readers)
        .map(|_| {
            let mirror = mirror.clone();
            tokio::spawn(async move { mirror.block(event, &label("B2")).await.unwrap() })
        })
        .collect();
    let views = futures::future::join_all(reads).await;
    assert_eq!(calls(&test, "lrange").await - before, 1);
    let first = views[0].as_ref().unwrap();
    assert!(views.iter().all(|view| view.as_ref().unwrap().json.as_ptr() == first.json.as_ptr()), "shared bytes");
    assert_eq!(status(first, "A-5"), "available");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_shown_without_reading_again() {
    let (_server, test) = a_server_of_its_own().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mirror = BlockMirror::new(test.stores.clone());
    until_followed(&mirror, &sale).await;
    let before = view(&mirror, &sale).await;
    let unchanged = view(&mirror, &sale).await;
    assert_eq!((before.json.as_ptr(), &before.etag), (unchanged.json.as_ptr(), &unchanged.etag));
    assert_eq!(before.counts, Counts { available: 30, held: 0, sold: 0, blocked: 0, from: Some(50_000) });
    let readings = calls(&test, "lrange").await;
    let held = sale.hold(&test.stores, "u1", &["A-1", "C-10"]).await.unwrap();
    let after = until_shown(&mirror, &sale, "A-1", "held").await;
    assert_eq!((status(&after, "C-10"), after.counts.held), ("held".to_owned(), 2));
    assert!(after.version > before.version && after.etag != before.etag);
    cancel(&test.stores, held.id).await;
    until_shown(&mirror, &sale, "A-1", "available").await;
    assert_eq!(calls(&test, "lrange").await, readings, "only seat changes were used");
    until_as_fresh(&test.stores, &mirror, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_seat_is_shown_available_at_its_deadline_though_nobody_says_so() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(60_000)).await;
    let mirror = BlockMirror::new(test.stores.clone());
    view(&mirror, &sale).await;
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    // The gate is shown first; its deadline is seconds away, the hold's a minute.
    test.advance(10_000);
    let held = until_shown(&mirror, &sale, "A-1", "held").await;
    test.advance(50_000);
    let dead = view(&mirror, &sale).await;
    assert_eq!(status(&dead, "A-1"), "available", "at the instant, not some time after it");
    assert_eq!(dead.version, held.version, "no message told it");
    assert_ne!(dead.etag, held.etag);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seat_does_not_look_held_for_a_second_after_its_deadline() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(1_500)).await;
    let mirror = BlockMirror::new(test.stores.clone());
    let began = Instant::now();
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let asked = began.elapsed();
    until_shown(&mirror, &sale, "A-1", "held").await;
    until_shown(&mirror, &sale, "A-1", "available").await;
    let shown = began.elapsed();
    assert!(shown >= Duration::from_millis(1_490), "shown available after {shown:?}");
    assert!(shown < Duration::from_millis(2_500) + asked, "shown available after {shown:?} (I3)");
}

/// I6 with everything that can go wrong between: changes from many sides, a connection that breaks, refused holds.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_breaks_meanwhile_the_mirror_ends_as_a_fresh_reading() {
    let (_server, test) = a_server_of_its_own().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mirror = BlockMirror::new(test.stores.clone());
    until_followed(&mirror, &sale).await;
    for round in 0..5 {
        let buyers = (0..4).map(|buyer| {
            let (stores, sale) = (test.stores.clone(), sale.clone());
            async move {
                for step in 0..8 {
                    let seat = format!("{}-{}", ["A", "B", "C"][(step + buyer) % 3], (step * 3 + buyer) % 10 + 1);
                    if let Ok(held) = sale.hold(&stores, &format!("u{buyer}"), &[&seat]).await
                        && (step + round) % 2 == 0
                    {
                        cancel(&stores, held.id).await;
                    }
                }
            }
        });
        let breaks = async {
            for _ in 0..3 {
                let mut redis = test.redis().await;
                let _killed: u64 =
                    redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query_async(&mut redis).await.unwrap();
                for _ in 0..20 {
                    view(&mirror, &sale).await;
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::join!(futures::future::join_all(buyers), breaks);
        until_as_fresh(&test.stores, &mirror, &sale).await;
    }
    until_followed(&mirror, &sale).await;
    until_channels(&test, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_dead_blocks_are_read_from_postgres_a_few_times_a_second() {
    let (mut server, test) = a_server_of_its_own().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mirror = BlockMirror::new(test.stores.clone());
    view(&mirror, &sale).await;
    server.kill().unwrap();
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let view_ = until_shown(&mirror, &sale, "A-1", "held").await;
    assert_eq!(view_.version, 0, "Postgres has no version");
    let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    let (before, began, reads) = (test.count(commits).await, Instant::now(), AtomicUsize::new(0));
    let readers = (0..50).map(|_| async {
        while began.elapsed() < Duration::from_secs(2) {
            view(&mirror, &sale).await;
            reads.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    futures::future::join_all(readers).await;
    // Statistics are written a moment later.
    let asked = until("Postgres to count what it was asked", async || {
        let asked = test.count(commits).await - before;
        (asked > 10).then_some(asked)
    })
    .await;
    let reads = reads.into_inner();
    assert!(reads > 2_000 && asked < 200, "{reads} reads asked Postgres {asked} times");

    server.restart().unwrap();
    until("Redis to be used again", async || test.stores.redis.epoch().await.ok()).await;
    warm_up(&test.stores).await.unwrap();
    until_as_fresh(&test.stores, &mirror, &sale).await;
    assert!(view(&mirror, &sale).await.version > 0);
    sale.hold(&test.stores, "u2", &["A-2"]).await.unwrap();
    until_shown(&mirror, &sale, "A-2", "held").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_does_not_keep_readers_from_what_postgres_says() {
    let (mut server, test) = a_server_of_its_own().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mirror = BlockMirror::new(test.stores.clone());
    until_followed(&mirror, &sale).await;
    server.pause().unwrap();
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let limit = Duration::from_secs(10);
    until_within(limit, "the hold to be shown", async || {
        let view = view(&mirror, &sale).await;
        (status(&view, "A-1") == "held").then_some(())
    })
    .await;
    server.resume().unwrap();
    until("Redis to be used again", async || test.stores.redis.epoch().await.ok()).await;
    warm_up(&test.stores).await.unwrap();
    until_as_fresh(&test.stores, &mirror, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_lost_its_keys_is_followed_again_once_it_is_warm() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mirror = BlockMirror::new(test.stores.clone());
    view(&mirror, &sale).await;
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    until_shown(&mirror, &sale, "A-1", "held").await;
    test.lose_redis().await;
    warm_up(&test.stores).await.unwrap();
    until_as_fresh(&test.stores, &mirror, &sale).await;
    assert_eq!(status(view(&mirror, &sale).await.as_ref(), "A-1"), "held");
    sale.hold(&test.stores, "u2", &["B-1"]).await.unwrap();
    until_shown(&mirror, &sale, "B-1", "held").await;
    until_as_fresh(&test.stores, &mirror, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_reads_is_forgotten_and_no_longer_followed() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 5), ("B2", "A", 5)])).await;
    let limits = MirrorLimits { idle: Duration::from_secs(1), ..MirrorLimits::default() };
    let mirror = BlockMirror::with_limits(test.stores.clone(), limits);
    mirror.blocks(sale.event).await.unwrap();
    assert_eq!(mirror.mirrored_blocks(), 2);
    until_channels(&test, 2).await;
    until("one block to be forgotten while the other is read", async || {
        mirror.block(sale.event, &label("B1")).await.unwrap();
        (mirror.mirrored_blocks() == 1).then_some(())
    })
    .await;
    until_channels(&test, 1).await;
    until("both to be forgotten", async || (mirror.mirrored_blocks() == 0).then_some(())).await;
    until_channels(&test, 0).await;
    assert_eq!(mirror.block(sale.event, &label("B1")).await.unwrap().counts.available, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_mirrored_than_is_allowed_and_all_can_be_read() {
    let test = TestStores::start().await;
    let rows = [("B1", "A", 5), ("B2", "A", 6), ("B3", "A", 7), ("B4", "A", 8)];
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&rows)).await;
    for limits in [
        MirrorLimits { blocks_max: 2, ..MirrorLimits::default() },
        MirrorLimits { seats_max: 15, ..MirrorLimits::default() },
    ] {
        let mirror = BlockMirror::with_limits(test.stores.clone(), limits);
        for _ in 0..2 {
            for (block, _, seats) in rows {
                assert_eq!(mirror.block(sale.event, &label(block)).await.unwrap().counts.available, seats);
                assert!(mirror.mirrored_blocks() <= 2, "{}", mirror.mirrored_blocks());
            }
            assert_eq!(mirror.blocks(sale.event).await.unwrap().blocks.len(), 4);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_counts_every_block_and_grows_with_every_change() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 3), ("B2", "A", 4)])).await;
    let mirror = BlockMirror::new(test.stores.clone());
    mirror.blocks(sale.event).await.unwrap();
    until_channels(&test, 2).await;
    let before = mirror.blocks(sale.event).await.unwrap();
    let body: Value = serde_json::from_slice(&before.json).unwrap();
    assert_eq!(
        (&body["event"], body["version"].as_u64()),
        (&Value::from(sale.event.to_string()), Some(before.version))
    );
    assert!(before.version > 0 && before.version < 1 << 53, "exact in JavaScript: {}", before.version);
    let from = serde_json::json!({"amount": 50_000, "currency": "KRW"});
    let block = serde_json::json!({"block": "B2", "available": 4, "held": 0, "sold": 0, "blocked": 0, "from": from});
    assert_eq!(body["blocks"][1], block);

    sale.hold(&test.stores, "u1", &["B1/A-1", "B1/A-2", "B1/A-3"]).await.unwrap();
    let after = until("the summary to count the hold", async || {
        let summary = mirror.blocks(sale.event).await.unwrap();
        (summary.blocks[0].1.held == 3).then_some(summary)
    })
    .await;
    assert!(after.version > before.version && after.etag != before.etag);
    assert_eq!(after.blocks[0], (label("B1"), Counts { held: 3, ..Counts::default() }));
    assert_eq!(after.blocks[1].1.available, 4);
    test.advance(600_000);
    let dead = mirror.blocks(sale.event).await.unwrap();
    assert_eq!(
        (dead.blocks[0].1.available, dead.blocks[0].1.from),
        (3, Some(50_000)),
        "at the instant of the deadline"
    );
    let other = BlockMirror::new(test.another_process());
    until("another process to say the same in the same bytes", async || {
        let (one, other) = (mirror.blocks(sale.event).await.unwrap(), other.blocks(sale.event).await.unwrap());
        ((&one.json, &one.etag) == (&other.json, &other.etag)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_price_is_shown() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mirror = BlockMirror::new(test.stores.clone());
    let before = view(&mirror, &sale).await;
    let prices = BTreeMap::from([("Seat".to_owned(), 65_000)]);
    let change = EventChange { prices: Some(prices), ..EventChange::default() };
    change_event(&test.stores, sale.event, change).await.unwrap();
    let after = until_within(Duration::from_secs(5), "the new price", async || {
        let view = view(&mirror, &sale).await;
        (body(&view)["seats"][0]["price"]["amount"] == 65_000).then_some(view)
    })
    .await;
    assert_eq!((before.counts.from, after.counts.from), (Some(50_000), Some(65_000)));
    assert_ne!(before.etag, after.etag);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_named_and_a_draft_can_be_read() {
    let test = TestStores::start().await;
    let draft = Sale::draft(&test.stores, SalePlan::default()).await;
    let sale = Sale::of(&test.stores, draft).await;
    let mirror = BlockMirror::new(test.stores.clone());
    let nothing = mirror.block(sale.event, &label("B9")).await;
    assert!(matches!(nothing, Err(ReadError::UnknownBlock)), "{nothing:?}");
    let nobody = EventId(domain::runtime::clock::new_uuid());
    assert!(matches!(mirror.block(nobody, &label("B1")).await, Err(ReadError::UnknownEvent)));
    assert!(matches!(mirror.blocks(nobody).await, Err(ReadError::UnknownEvent)));
    assert_eq!(view(&mirror, &sale).await.counts.available, 30);
    assert_eq!(mirror.mirrored_blocks(), 1);
}
