//! Processes that take over from each other: namesakes, late starters, and one that wakes with an old request in hand.

use std::time::{Duration, Instant};

use domain::queue::{JobId, Queue, read_job, stats_of};
use holdfast_tests::audit::settles_within;
use holdfast_tests::sale::SalePlan;
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use reqwest::StatusCode;
use serde_json::Value;

use crate::kills::{LEASE_AND_TEN, SETTLED, Shop, a_worker, an_api, in_flight};

async fn workers(test: &TestStores) -> Vec<String> {
    let stats = stats_of(test.stores.jobs.redis(), Queue::Payments).await.unwrap();
    stats.workers.into_iter().map(|worker| worker.name).collect()
}

/// How often the payment's job was started.
async fn starts(test: &TestStores, payment: &Value) -> u32 {
    let id = JobId::new("pay", payment["id"].as_str().unwrap().parse().unwrap());
    read_job(test.stores.jobs.redis(), Queue::Payments, id.as_str()).await.unwrap().map_or(0, |job| job.starts)
}

// A-J2, A-J8: three processes of one image and one configuration. A starter takes nothing from a worker that lives; what
// a dead one had in flight goes to those that live, without another start.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_workers_jobs_go_to_its_living_namesake_and_a_living_ones_to_nobody() {
    let shop = Shop::open(SalePlan::default().window_ms(120_000)).await;
    let api = an_api(&shop.test).await;
    let mut payments = Vec::new();
    let mut bought = Vec::new();
    for column in 1..=5 {
        let (status, held) = shop.hold(&api, "u1", &[&format!("A-{column}")]).await;
        assert_eq!(status, StatusCode::CREATED, "{held}");
        payments.push(shop.pay(&api, &held, "tok_delay_3s").await);
        bought.push(held);
    }
    let mut first = a_worker(&shop.test);
    until("all five to be in flight", async || (in_flight(&shop.test).await == 5).then_some(())).await;
    let _second = a_worker(&shop.test);
    until("the second to be registered", async || (workers(&shop.test).await.len() == 2).then_some(())).await;
    let names = workers(&shop.test).await;
    assert_ne!(names[0], names[1], "no two starts have one name");
    assert_eq!(in_flight(&shop.test).await, 5, "what a living worker has is its own");
    first.kill();
    let killed = Instant::now();
    for held in &bought {
        shop.until_status(&api, held, "CONFIRMED").await;
    }
    assert!(killed.elapsed() < LEASE_AND_TEN, "taken over after {:?}", killed.elapsed());
    for payment in &payments {
        assert_eq!(starts(&shop.test, payment).await, 2, "once by the dead one and once by the living");
    }

    let (_, held) = shop.hold(&api, "u1", &["B-1"]).await;
    let running = shop.pay(&api, &held, "tok_delay_3s").await;
    until("the second to run it", async || (starts(&shop.test, &running).await == 1).then_some(())).await;
    let _third = a_worker(&shop.test);
    until("the third to be registered", async || {
        let now = workers(&shop.test).await;
        now.iter().any(|name| !names.contains(name)).then_some(())
    })
    .await;
    shop.until_status(&api, &held, "CONFIRMED").await;
    settles_within(&shop.test, SETTLED).await;
    assert_eq!(starts(&shop.test, &running).await, 1, "the starter took it from nobody");
    assert_eq!(shop.test.count("SELECT max(captures)::bigint FROM fake_provider_ledger").await, 1);
}

// A-D4: the process that served the first buyer is frozen with the release in its hands, and wakes when the seat is
// another's.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_frozen_past_the_deadline_cannot_touch_the_next_buyers_hold() {
    let mut plan = SalePlan::default().ttl_ms(2_000);
    plan.rules.extensions_max = 1;
    let shop = Shop::open(plan).await;
    let (mut frozen, other) = (an_api(&shop.test).await, an_api(&shop.test).await);
    let (status, first) = shop.hold(&frozen, "u1", &["A-4"]).await;
    assert_eq!(status, StatusCode::CREATED, "{first}");
    let path = format!("/v1/reservations/{}", first["id"].as_str().unwrap());
    frozen.process.pause();
    let release = reqwest::Client::new().delete(format!("{}{path}", frozen.url)).bearer_auth(&shop.key).send();
    let release = tokio::spawn(release);
    let second = until_within(Duration::from_secs(10), "the next buyer's hold", async || {
        let (status, held) = shop.hold(&other, "u2", &["A-4"]).await;
        (status == StatusCode::CREATED).then_some(held)
    })
    .await;
    frozen.process.resume();
    let released = release.await.unwrap().unwrap();
    assert_eq!(released.status(), StatusCode::GONE);
    let (again, _) = frozen.send("DELETE", &path, &shop.key, None).await;
    let (extended, _) = frozen.send("POST", &format!("{path}/extend"), &shop.key, None).await;
    assert_eq!((again, extended), (StatusCode::GONE, StatusCode::GONE));
    let claims: Vec<(String, i64)> =
        sqlx::query_as("SELECT reservation_id::text, (extract(epoch FROM expires_at) * 1000)::bigint FROM seat_claims")
            .fetch_all(&shop.test.sql)
            .await
            .unwrap();
    let deadline: chrono::DateTime<chrono::Utc> = second["expires_at"].as_str().unwrap().parse().unwrap();
    let second = second["id"].as_str().unwrap().to_owned();
    assert_eq!(claims, [(second, deadline.timestamp_millis())], "to the millisecond");
    let _worker = a_worker(&shop.test);
    settles_within(&shop.test, SETTLED).await;
}
