//! The Redis layout on a real Redis: the source layout byte for byte, prefix and cluster tags, never two at once.

use domain::flow::{ClaimLayoutFailure, Stores};
use domain::label::Label;
use domain::runtime::clock::Clock;
use domain::store::redis::deadlines::SweepSpans;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;

/// Every kind of change of a seat, then rest.
async fn a_round_of_business(test: &TestStores) -> Sale {
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let plan = SalePlan::of_rows(&[("101", "12", 3), ("가 구역", "A:B", 3)]).ttl_ms(6_000);
    let sale = Sale::open(stores, plan).await;
    let paid = sale.hold(stores, "u1", &["101/12-1", "가 구역/A:B-1"]).await.unwrap();
    let payment = pay(stores, paid.id, "tok_ok").await.unwrap();
    finalize(stores, &provider, payment.id).await;
    sale.hold(stores, "u2", &["101/12-2", "가 구역/A:B-2"]).await.unwrap();
    assert!(sale.hold(stores, "u3", &["101/12-2"]).await.is_err());
    test.advance(6_000);
    let spans = SweepSpans { since_ms: 0, grace_ms: 0, lease_ms: 5_000, most: 100 };
    let swept = stores.redis.sweep(spans).await.expect("the sweep's script runs");
    assert_eq!((swept.due.len(), swept.claimed.len()), (1, 1));
    stores.redis.touch_expired(&swept.due).await.unwrap();
    stores.redis.claim_deadlines(&swept.due, 5_000).await.unwrap();
    settle(test, stores, &provider).await;
    sale.hold(stores, "u4", &["101/12-3", "가 구역/A:B-3"]).await.unwrap();
    settle(test, stores, &provider).await;
    sale
}

async fn get(test: &TestStores, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query_async(&mut test.redis().await).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_prefix_and_tags_redis_holds_the_source_layout_byte_for_byte() {
    let server = RedisServer::start(RedisConfig::test()).unwrap();
    let test = TestStores::start_with(|settings| {
        settings.redis_url = server.url().to_owned();
        settings.redis_prefix = String::new();
    })
    .await;
    let sale = a_round_of_business(&test).await;
    let mut redis = test.redis().await;
    let list: Vec<String> =
        redis::cmd("LRANGE").arg("seatKeys:20300410:101").arg(0).arg(-1).query_async(&mut redis).await.unwrap();
    assert_eq!(list, ["seat:20300410:101:1:12", "seat:20300410:101:2:12", "seat:20300410:101:3:12"]);
    let sold = get(&test, "seat:20300410:101:1:12").await.unwrap();
    let bucket: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&sold).unwrap();
    assert_eq!((bucket["status"].as_str(), bucket["userId"].as_str()), (Some("sold"), Some("u1")));
    assert_eq!(bucket["matchId"].as_str(), Some(sale.event.to_string().as_str()));
    let form = |text: &str| text.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect::<String>();
    assert_eq!(form(bucket["createdAt"].as_str().unwrap()), "99999999 99:99:99");
    assert!(bucket.values().all(serde_json::Value::is_string));
    let held = get(&test, "seat:20300410:101:3:12").await.unwrap();
    let bucket: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&held).unwrap();
    let mut names: Vec<_> = bucket.keys().map(String::as_str).collect();
    names.sort_unstable();
    let all = ["createdAt", "deadlineMs", "expiredAt", "matchId", "reservationId", "status", "userId", "version"];
    assert_eq!(names, all);
    let deadline_key = format!("expired:reservation:{}", bucket["reservationId"].as_str().unwrap());
    assert_eq!(get(&test, &deadline_key).await.as_deref(), Some("PENDING"));
    assert!(get(&test, "seat:20300410:가%20구역:1:A%3AB").await.is_some(), "escaped so that it parses back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_event_on_a_date_has_a_date_key_of_its_own() {
    let test = TestStores::start().await;
    let first = Sale::open(&test.stores, SalePlan::default()).await;
    let second = Sale::open(&test.stores, SalePlan::default()).await;
    assert_eq!((first.sheet.event.date_key.as_str(), second.sheet.event.date_key.as_str()), ("20300410", "20300410-2"));
    first.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    second.hold(&test.stores, "u2", &["A-1"]).await.expect("the same seat of another event");
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}

/// A cluster refuses a script whose keys are in several slots: this one is a real one, of a single node.
#[tokio::test(flavor = "multi_thread")]
async fn with_cluster_tags_every_script_keeps_to_one_slot() {
    let mut config = RedisConfig::test();
    config.settings = vec![("cluster-enabled".to_owned(), "yes".to_owned()), ("databases".to_owned(), "1".to_owned())];
    let server = RedisServer::start(config).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let _: String =
        redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).query_async(&mut connection).await.unwrap();
    holdfast_tests::wait::until("the cluster to serve", async || {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await.unwrap();
        info.contains("cluster_state:ok").then_some(())
    })
    .await;
    // The queues do not spread over a cluster: they have a Redis of their own.
    let queues = RedisServer::start(RedisConfig::test()).unwrap();
    let test = TestStores::start_with(|settings| {
        settings.redis_url = server.url().to_owned();
        settings.queue_redis_url = Some(queues.url().to_owned());
        settings.redis_cluster_tags = true;
        settings.redis_prefix = "qa:".to_owned();
    })
    .await;
    a_round_of_business(&test).await;
    assert!(get(&test, "qa:seat:{20300410:101}:1:12").await.is_some());
    let mut slots = Vec::new();
    for key in ["qa:seat:{20300410:101}:1:12", "qa:seatKeys:{20300410:101}", "qa:seatVersion:{20300410:101}"] {
        let slot: i64 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut connection).await.unwrap();
        slots.push(slot);
    }
    slots.dedup();
    assert_eq!(slots.len(), 1, "a block is one slot");
}

fn as_another_installation(
    test: &TestStores,
    change: impl FnOnce(&mut domain::runtime::settings::StoreSettings),
) -> Stores {
    let mut settings = test.settings.clone();
    change(&mut settings);
    Stores::connect(&settings, Clock::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_database_is_never_written_in_two_modes() {
    let test = TestStores::start().await;
    let same = test.another_process();
    same.claim_layout().await.expect("the same mode again");
    let tagged = as_another_installation(&test, |settings| settings.redis_cluster_tags = true);
    let prefixed = as_another_installation(&test, |settings| settings.redis_prefix = "other:".to_owned());
    for other in [tagged, prefixed] {
        let refusal = other.claim_layout().await.unwrap_err();
        assert!(matches!(refusal, ClaimLayoutFailure::Conflict(_)), "{refusal:?}");
        assert!(refusal.to_string().contains(&test.settings.redis_prefix), "it says which: {refusal}");
    }
    // Postgres remembers it though Redis was lost.
    test.lose_redis().await;
    let tagged = as_another_installation(&test, |settings| settings.redis_cluster_tags = true);
    assert!(tagged.claim_layout().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_redis_is_never_written_in_two_modes_by_two_databases() {
    let (one, two) = (TestStores::start().await, TestStores::start().await);
    let same_keys = as_another_installation(&two, |settings| {
        settings.redis_prefix = one.settings.redis_prefix.clone();
        settings.redis_cluster_tags = true;
    });
    assert!(same_keys.claim_layout().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_odd_label_survives_the_way_through_redis() {
    let test = TestStores::start().await;
    let labels = ["%", "%3A", "{x}", "a b", "가", "😀", ":", "::", "a:b:c", "\u{a0}x", "é", "01"];
    let seats = labels.iter().map(|label| ((*label).to_owned(), (*label).to_owned(), (*label).to_owned()));
    let sale = Sale::open(&test.stores, SalePlan::of_seats(seats)).await;
    for block in sale.sheet.map.blocks() {
        let key = sale.sheet.block_key(block);
        for seat in sale.sheet.map.seats_of(block) {
            let name = test.stores.redis.keys().seat(&key, &seat.column, &seat.row);
            let parsed = test.stores.redis.keys().parse_seat(&name).expect("our own key");
            assert_eq!((&parsed.block.block, &parsed.column, &parsed.row), (&block.block, &seat.column, &seat.row));
        }
    }
    let trimmed: Vec<_> = labels.iter().map(|label| Label::parse(label).unwrap().as_str().to_owned()).collect();
    assert_eq!(sale.sheet.map.blocks().len(), trimmed.len());
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}
