//! The processes as they are run, API and worker, killed, frozen and hung up on in the middle of their work.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::queue::Queue;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::audit::{assert_sound, settles_within};
use holdfast_tests::process::{ApiProcess, EngineProcess};
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use holdfast_tests::web::api_key;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Barrier;

/// A job of a killed worker is taken over after its lease, some ten seconds; the machine may be busy.
const TAKEN_OVER: Duration = Duration::from_secs(45);
/// The lease of a killed worker's jobs (12 s) and ten seconds more (A-J1, A-J2).
pub(super) const LEASE_AND_TEN: Duration = Duration::from_secs(22);
pub(super) const SETTLED: Duration = Duration::from_secs(20);

/// The binary, built from the same sources as these tests.
pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_holdfast-under-test");

pub(super) fn a_worker(test: &TestStores) -> EngineProcess {
    EngineProcess::start(BINARY, test, &["worker"])
}

pub(super) async fn an_api(test: &TestStores) -> ApiProcess {
    ApiProcess::start(BINARY, test).await
}

/// An event on sale and a key of the shop's.
pub(super) struct Shop {
    pub(super) test: TestStores,
    pub(super) sale: Sale,
    pub(super) key: String,
}

impl Shop {
    pub(super) async fn open(plan: SalePlan) -> Self {
        let test = TestStores::start().await;
        let sale = Sale::open(&test.stores, plan).await;
        let key = api_key(&test.stores, KeyScope::Sales).await;
        Self { test, sale, key }
    }

    pub(super) fn holds(&self) -> String {
        format!("/v1/events/{}/reservations", self.sale.event)
    }

    pub(super) async fn hold(&self, api: &ApiProcess, buyer: &str, seats: &[&str]) -> (StatusCode, Value) {
        api.send("POST", &self.holds(), &self.key, Some(&hold_body(buyer, seats))).await
    }

    pub(super) async fn pay(&self, api: &ApiProcess, reservation: &Value, token: &str) -> Value {
        let path = format!("/v1/reservations/{}/payments", reservation["id"].as_str().unwrap());
        let body = json!({ "provider": "fake", "token": token });
        let (status, payment) = api.send("POST", &path, &self.key, Some(&body)).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{payment}");
        payment
    }

    pub(super) async fn read(&self, api: &ApiProcess, reservation: &Value) -> Value {
        let path = format!("/v1/reservations/{}", reservation["id"].as_str().unwrap());
        let (status, read) = api.send("GET", &path, &self.key, None).await;
        assert_eq!(status, StatusCode::OK, "{read}");
        read
    }

    pub(super) async fn until_status(&self, api: &ApiProcess, reservation: &Value, wanted: &str) -> Value {
        until_within(TAKEN_OVER, &format!("the reservation to be {wanted}"), async || {
            let read = self.read(api, reservation).await;
            (read["status"] == wanted).then_some(read)
        })
        .await
    }
}

pub(super) fn hold_body(buyer: &str, seats: &[&str]) -> Value {
    let places = seats.iter().map(|seat| {
        let (row, column) = seat.split_once('-').unwrap();
        json!({ "block": "B1", "row": row, "column": column })
    });
    json!({ "seats": places.collect::<Vec<_>>(), "buyer": buyer })
}

/// The status that a reader of the block sees.
pub(super) async fn seen(api: &ApiProcess, event: &str, seat: &str) -> String {
    let (status, block) = api.send("GET", &format!("/v1/events/{event}/blocks/B1/seats"), "", None).await;
    assert_eq!(status, StatusCode::OK, "{block}");
    let (row, column) = seat.split_once('-').unwrap();
    let found = block["seats"].as_array().unwrap().iter().find(|seat| seat["row"] == row && seat["column"] == column);
    found.unwrap()["status"].as_str().unwrap().to_owned()
}

/// The engine's main job, whole: from a venue's file to a sold seat, and to one that is free again.
#[tokio::test(flavor = "multi_thread")]
async fn from_a_venues_file_to_a_sold_seat_and_to_a_free_one() {
    let test = TestStores::start().await;
    let (admin, key) = (api_key(&test.stores, KeyScope::Admin).await, api_key(&test.stores, KeyScope::Sales).await);
    let (api, mut worker) = (an_api(&test).await, a_worker(&test));
    let file = SalePlan::of_rows(&[("B1", "A", 10)]).csv;
    let imported = reqwest::Client::new()
        .post(format!("{}/v1/venues/import?format=csv&name=House&time_zone=Asia/Seoul", api.url))
        .bearer_auth(&admin)
        .header("content-type", "text/csv")
        .body(file)
        .send()
        .await
        .unwrap();
    assert_eq!(imported.status(), StatusCode::CREATED);
    let venue: Value = serde_json::from_str(&imported.text().await.unwrap()).unwrap();
    let venue = venue["venue"]["id"].as_str().or(venue["venue"].as_str()).unwrap().to_owned();
    let plan = json!({
        "venue": venue, "title": "An evening", "starts_at": "2030-04-10T18:30", "currency": "KRW",
        "prices": { "Seat": 55_000 }, "hold_ttl_seconds": 3,
    });
    let (status, event) = api.send("POST", "/v1/events", &admin, Some(&plan)).await;
    assert_eq!((status, &event["status"]), (StatusCode::CREATED, &json!("draft")), "{event}");
    let event = event["id"].as_str().unwrap();
    let (status, answer) = api.send("POST", &format!("/v1/events/{event}/open"), &admin, None).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    until("the event to be on sale", async || {
        let (_, event) = api.send("GET", &format!("/v1/events/{event}"), "", None).await;
        (event["status"] == "on_sale").then_some(())
    })
    .await;
    let shop = Shop { sale: Sale::of(&test.stores, event.parse().unwrap()).await, test, key };

    let (status, bought) = shop.hold(&api, "u1", &["A-1", "A-2"]).await;
    assert_eq!((status, &bought["status"]), (StatusCode::CREATED, &json!("PENDING")), "{bought}");
    assert_eq!(
        bought["amount"],
        json!({ "amount": 110_000, "currency": "KRW" }).get("amount").cloned().unwrap_or_default()
    );
    let (status, left) = shop.hold(&api, "u2", &["A-3"]).await;
    assert_eq!(status, StatusCode::CREATED, "{left}");
    assert_eq!((seen(&api, event, "A-1").await.as_str(), seen(&api, event, "A-3").await.as_str()), ("held", "held"));
    let (status, refusal) = shop.hold(&api, "u3", &["A-2", "A-4", "A-3"]).await;
    assert_eq!((status, &refusal["code"]), (StatusCode::CONFLICT, &json!("seat_unavailable")), "{refusal}");
    assert_eq!(refusal["conflicts"].as_array().unwrap().len(), 2, "{refusal}");

    shop.pay(&api, &bought, "tok_ok").await;
    shop.until_status(&api, &bought, "CONFIRMED").await;
    let over = shop.until_status(&api, &left, "CANCELLED").await;
    assert_eq!(over["cancel_reason"], "expired");
    until_within(Duration::from_secs(3), "the page to say so", async || {
        let (sold, free) = (seen(&api, event, "A-1").await, seen(&api, event, "A-3").await);
        (sold == "sold" && free == "available").then_some(())
    })
    .await;
    settles_within(&shop.test, SETTLED).await;
    assert!(worker.stop(), "the worker ends in good order");
    let watched = reqwest::get(format!("{}/v1/events/{event}/stream", api.url)).await.expect("the stream opens");
    let watching = tokio::spawn(watched.text());
    let mut api = api;
    assert!(api.process.stop(), "the API ends in good order");
    let told = watching.await.unwrap().expect("a viewer is told the end, and not cut off");
    let last = told.trim_end().lines().last().unwrap_or_default();
    assert!(told.contains("event: snapshot") && last.starts_with("retry: "), "{told}");
}

/// Payments in flight in one worker.
pub(super) async fn in_flight(test: &TestStores) -> u64 {
    domain::queue::stats_of(test.stores.jobs.redis(), Queue::Payments).await.map_or(0, |stats| stats.in_flight)
}

// A-J1, A-J9: the worker dies while the provider thinks; the next one finishes all of them together, not one after the
// other, and the money is taken once.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_payments_is_replaced_and_money_is_taken_once() {
    let shop = Shop::open(SalePlan::of_rows(&[("B1", "A", 20)]).window_ms(120_000)).await;
    let api = an_api(&shop.test).await;
    let tokens = ["tok_delay_3s"; 18].into_iter().chain(["tok_lost_answer", "tok_ok"]);
    let buying = tokens.enumerate().map(async |(column, token)| {
        let (status, held) = shop.hold(&api, "u1", &[&format!("A-{}", column + 1)]).await;
        assert_eq!(status, StatusCode::CREATED, "{held}");
        shop.pay(&api, &held, token).await;
        held
    });
    let bought = futures::future::join_all(buying).await;
    let mut worker = a_worker(&shop.test);
    // The one without a delay is done: so the others are under way.
    shop.until_status(&api, &bought[19], "CONFIRMED").await;
    until("the others to be in flight", async || (in_flight(&shop.test).await >= 18).then_some(())).await;
    worker.kill();
    assert_eq!(shop.read(&api, &bought[0]).await["status"], "PENDING");
    let killed = Instant::now();
    let _heir = a_worker(&shop.test);
    for held in &bought {
        shop.until_status(&api, held, "CONFIRMED").await;
    }
    assert!(killed.elapsed() < LEASE_AND_TEN, "all of them took {:?}", killed.elapsed());
    assert_eq!(shop.test.count("SELECT max(captures)::bigint FROM fake_provider_ledger").await, 1);
    settles_within(&shop.test, SETTLED).await;
    assert_eq!(in_flight(&shop.test).await, 0);
}

/// A frozen worker wakes after its work was given to another: it changes nothing (A-J6).
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_wakes_too_late_changes_nothing() {
    let shop = Shop::open(SalePlan::default().window_ms(120_000)).await;
    let (api, mut sleeper) = (an_api(&shop.test).await, a_worker(&shop.test));
    let (_, held) = shop.hold(&api, "u1", &["A-1"]).await;
    shop.pay(&api, &held, "tok_delay_3s").await;
    until("the worker to have the job", async || (in_flight(&shop.test).await == 1).then_some(())).await;
    sleeper.pause();
    let _heir = a_worker(&shop.test);
    shop.until_status(&api, &held, "CONFIRMED").await;
    sleeper.resume();
    settles_within(&shop.test, SETTLED).await;
    assert!(sleeper.stop(), "it goes on and ends in good order");
    assert_eq!(shop.test.count("SELECT count(*) FROM seat_log WHERE after = 'sold'").await, 1);
    assert_eq!(shop.test.count("SELECT max(captures)::bigint FROM fake_provider_ledger").await, 1);
    settles_within(&shop.test, SETTLED).await;
}

// A-E4
#[tokio::test(flavor = "multi_thread")]
async fn holds_that_die_while_every_worker_is_dead_are_free_at_once_and_tidy_soon() {
    let shop = Shop::open(SalePlan::of_rows(&[("B1", "A", 60)]).ttl_ms(4_000)).await;
    let (api, mut worker) = (an_api(&shop.test).await, a_worker(&shop.test));
    let mut last = String::new();
    for column in 1..=60 {
        let (status, held) = shop.hold(&api, "u1", &[&format!("A-{column}")]).await;
        assert_eq!(status, StatusCode::CREATED, "{held}");
        last = held["expires_at"].as_str().unwrap().to_owned();
    }
    worker.kill();
    let last: chrono::DateTime<chrono::Utc> = last.parse().unwrap();
    until("the last deadline", async || (shop.test.stores.pg.now().await.unwrap() >= last).then_some(())).await;
    for column in 1..=10 {
        let (status, held) = shop.hold(&api, "u2", &[&format!("A-{column}")]).await;
        assert_eq!(status, StatusCode::CREATED, "no worker is needed for that: {held}");
    }
    assert!(shop.test.count("SELECT count(*) FROM seat_claims").await >= 50, "nobody tidied up");
    let began = Instant::now();
    let _heir = a_worker(&shop.test);
    until_within(Duration::from_secs(10), "all of them to be free", async || {
        (shop.test.count("SELECT count(*) FROM seat_claims c JOIN reservations r ON r.id = c.reservation_id WHERE r.buyer = 'u1'").await == 0)
            .then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(10));
    settles_within(&shop.test, SETTLED).await;
    let once = "SELECT count(*) FROM seat_log l JOIN reservations r ON r.id = l.reservation_id
                WHERE r.buyer = 'u1' AND l.after = 'available'";
    assert_eq!(shop.test.count(once).await, 60, "each release once");
}

// A-D1, black box.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_buyers_at_two_processes_have_one_winner() {
    let shop = Arc::new(Shop::open(SalePlan::of_rows(&[("B1", "A", 5)])).await);
    let apis = [Arc::new(an_api(&shop.test).await), Arc::new(an_api(&shop.test).await)];
    for round in 1..=5 {
        let barrier = Arc::new(Barrier::new(200));
        let buyers = (0..200).map(|buyer| {
            let (shop, api, barrier) = (Arc::clone(&shop), Arc::clone(&apis[buyer % 2]), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                shop.hold(&api, &format!("u{buyer}"), &[&format!("A-{round}")]).await
            })
        });
        let answers: Vec<_> = futures::future::join_all(buyers).await.into_iter().map(Result::unwrap).collect();
        let winners: Vec<&Value> =
            answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).map(|(_, body)| body).collect();
        assert_eq!(winners.len(), 1, "round {round}");
        for (status, body) in answers.iter().filter(|(status, _)| *status != StatusCode::CREATED) {
            assert_eq!((*status, &body["code"]), (StatusCode::CONFLICT, &json!("seat_unavailable")), "{body}");
        }
        let owner: String = sqlx::query_scalar("SELECT buyer FROM reservations WHERE id::text = $1")
            .bind(winners[0]["id"].as_str().unwrap())
            .fetch_one(&shop.test.sql)
            .await
            .unwrap();
        assert_eq!(winners[0]["buyer"], owner.as_str());
        for api in &apis {
            until_within(Duration::from_secs(3), "the map to show it", async || {
                let status = seen(api, &shop.sale.event.to_string(), &format!("A-{round}")).await;
                (status == "held").then_some(())
            })
            .await;
        }
    }
    assert_sound(&shop.test).await;
}

// A-C1: a client that hangs up, at any moment, and asks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_and_repeats_itself_gets_the_one_true_result() {
    let rows: Vec<String> = (1..=10).map(|row| format!("R{row}")).collect();
    let rows: Vec<_> = rows.iter().map(|row| ("B1", row.as_str(), 10)).collect();
    let shop = Arc::new(Shop::open(SalePlan::of_rows(&rows)).await);
    let (api, _worker) = (Arc::new(an_api(&shop.test).await), a_worker(&shop.test));
    let asking = (0..100_u64).map(|n| {
        let (shop, api) = (Arc::clone(&shop), Arc::clone(&api));
        async move {
            let seat = format!("R{}-{}", n / 10 + 1, n % 10 + 1);
            let (path, key) = (shop.holds(), format!("K{n}"));
            let body = hold_body("u1", &[&seat]);
            let ask = || api.try_send(("POST", &path), (&shop.key, Some(&key)), Some(&body));
            // Whether or not an answer came in that time, the connection is gone.
            let _hung_up = tokio::time::timeout(Duration::from_micros(n * 400), ask()).await;
            let repeat = until("an answer", async || match ask().await.unwrap() {
                (StatusCode::CONFLICT, body) if body["code"] == "request_in_progress" => None,
                answer => Some(answer),
            })
            .await;
            assert_eq!(repeat.0, StatusCode::CREATED, "{}", repeat.1);
            let again = ask().await.unwrap();
            assert_eq!(again, repeat);
            repeat.1["id"].as_str().unwrap().to_owned()
        }
    });
    let ids: HashSet<String> = futures::future::join_all(asking).await.into_iter().collect();
    assert_eq!(ids.len(), 100);
    assert_eq!(shop.test.count("SELECT count(*) FROM reservations").await, 100, "none was made twice");
    // A-C2: nobody's transaction is left open on a connection of the pool.
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'
                AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '1 second'";
    assert_eq!(shop.test.count(open).await, 0);
    settles_within(&shop.test, SETTLED).await;
}

/// The API dies under load; whoever asks again gets a whole result or makes one, and nothing is half done.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_killed_under_load_leaves_nothing_half_done() {
    let rows: Vec<String> = (1..=10).map(|row| format!("R{row}")).collect();
    let rows: Vec<_> = rows.iter().map(|row| ("B1", row.as_str(), 10)).collect();
    let shop = Arc::new(Shop::open(SalePlan::of_rows(&rows)).await);
    let _worker = a_worker(&shop.test);
    let doomed = Arc::new(tokio::sync::Mutex::new(an_api(&shop.test).await));
    let url = doomed.lock().await.url.clone();
    let client = reqwest::Client::new();
    let asking: Vec<_> = (0..50)
        .map(|n| {
            let (shop, client, url) = (Arc::clone(&shop), client.clone(), url.clone());
            tokio::spawn(async move {
                let seats = [format!("R{}-{}", n / 10 + 1, n % 10 + 1), format!("R{}-{}", n / 10 + 6, n % 10 + 1)];
                let seats: Vec<&str> = seats.iter().map(String::as_str).collect();
                let request = client
                    .post(format!("{url}{}", shop.holds()))
                    .bearer_auth(&shop.key)
                    .header("idempotency-key", format!("K{n}"))
                    .json(&hold_body("u1", &seats));
                request.send().await.is_ok_and(|answer| answer.status() == StatusCode::CREATED)
            })
        })
        .collect();
    // Some are through, the others are on their way.
    until("the first holds", async || (shop.test.count("SELECT count(*) FROM reservations").await > 0).then_some(()))
        .await;
    doomed.lock().await.process.kill();
    let answered = futures::future::join_all(asking).await.into_iter().filter(|done| *done.as_ref().unwrap()).count();
    let made = shop.test.count("SELECT count(*) FROM reservations").await;
    assert!(made >= i64::try_from(answered).unwrap(), "an answer is never ahead of what is stored");
    assert_sound(&shop.test).await;
    let heir = an_api(&shop.test).await;
    for n in 0..50 {
        let seats = [format!("R{}-{}", n / 10 + 1, n % 10 + 1), format!("R{}-{}", n / 10 + 6, n % 10 + 1)];
        let body = hold_body("u1", &seats.each_ref().map(String::as_str));
        let (path, key) = (shop.holds(), format!("K{n}"));
        // The dead process's gates and marks end by themselves within seconds.
        until(&format!("K{n}'s result"), async || {
            match heir.try_send(("POST", &path), (&shop.key, Some(&key)), Some(&body)).await.unwrap() {
                (StatusCode::CREATED, _) => Some(()),
                (StatusCode::CONFLICT, _) => None,
                (status, body) => panic!("{status}: {body}"),
            }
        })
        .await;
    }
    assert_eq!(shop.test.count("SELECT count(*) FROM reservations").await, 50);
    settles_within(&shop.test, SETTLED).await;
}

/// What a process could not show in Redis, only that process knew: whoever starts after it has all of it shown.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_could_not_show_is_shown_when_another_starts() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(600_000)).await;
    let _worker = a_worker(&test);
    let mut redis = test.redis().await;
    let queue = test.settings.redis_prefix.replace(':', "-");
    until("the worker's own warm-ups to be done", async || {
        let jobs: u64 = redis::cmd("HLEN").arg(format!("{queue}warm-up:data")).query_async(&mut redis).await.ok()?;
        let done: u64 =
            redis::cmd("ZCARD").arg(format!("{queue}warm-up:done_ms")).query_async(&mut redis).await.ok()?;
        (jobs > 0 && jobs == done && test.stores.redis.epoch().await.ok()?.is_some()).then_some(())
    })
    .await;
    let doomed = test.a_process_without_redis();
    let held = sale.hold(&doomed, "anna", &["A-1"]).await.unwrap();
    drop(doomed);
    let mut is_shown = async || {
        let mut read = redis::cmd("ZSCORE");
        read.arg(test.deadlines_key()).arg(held.id.to_string());
        read.query_async::<Option<f64>>(&mut redis).await.unwrap().map(|_| ())
    };
    assert_eq!(is_shown().await, None, "nobody knows of it");
    let _api = an_api(&test).await;
    until("the hold to be shown", is_shown).await;
    settles_within(&test, SETTLED).await;
}
