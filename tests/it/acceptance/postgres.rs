//! Connections to Postgres: lost clients leave none in a state that hurts the next borrower, and nobody holds one while
//! somebody else thinks.

use std::sync::Arc;
use std::time::Duration;

use domain::queue::{Queue, stats_of};
use holdfast_tests::audit::settles_within;
use holdfast_tests::process::ApiProcess;
use holdfast_tests::repair::look_at_deadlines;
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use holdfast_tests::web::{Ask, Web, api_key};
use holdfast_tests::worker::RunningWorker;
use reqwest::StatusCode;
use serde_json::json;
use simulation::proxy::{Link, Proxy};
use sqlx::postgres::PgConnectOptions;

use crate::kills::{BINARY, SETTLED, Shop, a_worker, hold_body};

/// What each round trip to Postgres takes more; the case's 300 ms, scaled with its time limits.
const FAR: Duration = Duration::from_millis(20);

const LEFT_OPEN: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'
     AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '1 second'";

/// The test's Postgres behind a proxy, and the URL that leads through it.
async fn far_postgres(test: &TestStores) -> (Proxy, String) {
    let near: PgConnectOptions = test.settings.database_url.parse().unwrap();
    let proxy = Proxy::start(format!("{}:{}", near.get_host(), near.get_port())).await.unwrap();
    let far = near.host("127.0.0.1").port(proxy.addr().port());
    (proxy, sqlx::ConnectOptions::to_url_lossy(&far).to_string())
}

// A-C1, A-C2: clients hang up at every step of holds, payments and releases over a slow line to Postgres; what they began
// is whole or not there, and the five connections serve the next two hundred as if nothing had been.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hang_up_leave_the_pool_as_it_was_and_no_change_half_made() {
    let rows: Vec<String> = (1..=12).map(|row| format!("R{row}")).collect();
    let rows: Vec<_> = rows.iter().map(|row| ("B1", row.as_str(), 10)).collect();
    let shop = Arc::new(Shop::open(SalePlan::of_rows(&rows)).await);
    let (proxy, url) = far_postgres(&shop.test).await;
    let environment = [("DATABASE_URL", url.as_str()), ("HOLDFAST_PG_CONNECTIONS", "5")];
    let api = Arc::new(ApiProcess::start_with(BINARY, &shop.test, &environment).await);
    let _worker = a_worker(&shop.test);
    proxy.set(Link::Slow(FAR));
    let asking = (0..40_u64).map(|n| {
        let (shop, api) = (Arc::clone(&shop), Arc::clone(&api));
        async move {
            let body = hold_body("u1", &[&format!("R{}-{}", n / 10 + 1, n % 10 + 1)]);
            let hold = (shop.holds(), format!("H{n}"), body);
            let (status, held) = hung_up_and_repeated(&shop, &api, ("POST", n), &hold).await;
            assert_eq!(status, StatusCode::CREATED, "{held}");
            let path = format!("/v1/reservations/{}", held["id"].as_str().unwrap());
            if n % 2 == 0 {
                let pay =
                    (format!("{path}/payments"), format!("P{n}"), json!({ "provider": "fake", "token": "tok_ok" }));
                let (status, payment) = hung_up_and_repeated(&shop, &api, ("POST", n), &pay).await;
                assert_eq!(status, StatusCode::ACCEPTED, "{payment}");
            } else {
                let release = (path, String::new(), json!(null));
                let (status, over) = hung_up_and_repeated(&shop, &api, ("DELETE", n), &release).await;
                assert_eq!((status, &over["cancel_reason"]), (StatusCode::OK, &json!("user")), "{over}");
            }
        }
    });
    futures::future::join_all(asking).await;
    proxy.set(Link::Whole);
    let normal = (0..200_u64).map(|n| {
        let (shop, api) = (Arc::clone(&shop), Arc::clone(&api));
        async move {
            let seat = format!("R{}-{}", n / 10 % 6 + 7, n % 10 + 1);
            let (status, answer) = match n % 2 {
                0 => shop.hold(&api, "u2", &[&seat]).await,
                _ => api.send("GET", "/v1/reservations?limit=1", &shop.key, None).await,
            };
            assert!(
                [StatusCode::OK, StatusCode::CREATED, StatusCode::CONFLICT].contains(&status),
                "{status}: {answer}"
            );
        }
    });
    futures::future::join_all(normal).await;
    assert_eq!(shop.test.count(LEFT_OPEN).await, 0, "a transaction is left open on a connection of the pool");
    assert_eq!(
        shop.test.count("SELECT count(*) FROM reservations WHERE buyer = 'u1'").await,
        40,
        "none was made twice"
    );
    assert_eq!(shop.test.count("SELECT count(*) FROM payments").await, 20);
    // A repeated request asks the sweep to look again; met by a showing that read Postgres before the end, the index may
    // keep what is over until its old deadline. It is looked at now.
    look_at_deadlines(&shop.test, &shop.test.another_process()).await;
    settles_within(&shop.test, SETTLED).await;
    let sold = "SELECT count(*) FROM seat_claims c JOIN reservations r ON r.id = c.reservation_id
                WHERE r.buyer = 'u1' AND c.state = 'sold'";
    assert_eq!(shop.test.count(sold).await, 20);
}

/// Sends a request and hangs up after a time that differs for each; then asks again until it is answered.
async fn hung_up_and_repeated(
    shop: &Shop,
    api: &ApiProcess,
    (method, n): (&str, u64),
    (path, key, body): &(String, String, serde_json::Value),
) -> (StatusCode, serde_json::Value) {
    let key = (!key.is_empty()).then_some(key.as_str());
    let body = (!body.is_null()).then_some(body);
    let ask = || api.try_send((method, path), (&shop.key, key), body);
    let patience = Duration::from_millis(20 + n * 7 % 400);
    let _hung_up = tokio::time::timeout(patience, ask()).await;
    until_within(Duration::from_secs(30), "the one true answer", async || match ask().await.unwrap() {
        (StatusCode::CONFLICT, body) if body["code"] == "request_in_progress" => None,
        // Too many at once for five connections over a slow line: told to come back.
        (StatusCode::SERVICE_UNAVAILABLE, _) => None,
        answer => Some(answer),
    })
    .await
}

// A-C3: three connections for everything. Were one of them held while the provider thinks for three seconds, the payments
// would take a minute; and were they all, nothing else would be answered.
#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_held_while_the_provider_thinks() {
    const PAYMENTS: usize = 50;
    let test = TestStores::start_with(|settings| settings.pg_connections = 3).await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", PAYMENTS)]).window_ms(120_000)).await;
    let key = api_key(&test.stores, domain::store::pg::api_keys::KeyScope::Sales).await;
    let web = Web::start(&test.stores).await;
    let mut held = Vec::new();
    for column in 1..=PAYMENTS {
        held.push(sale.hold(&test.stores, "u1", &[&format!("A-{column}")]).await.unwrap().id);
    }
    let body = json!({ "provider": "fake", "token": "tok_delay_3s" });
    let paying = held.iter().map(async |id| {
        let ask = Ask::new("POST", format!("/v1/reservations/{id}/payments")).json(&body).by(&key);
        until_within(Duration::from_secs(10), "the payment to start", async || started(&ask, &web).await).await;
    });
    futures::future::join_all(paying).await;
    let _worker = RunningWorker::start(&test);
    let path = format!("/v1/reservations/{}", held[0]);
    // Two waves of jobs, each of three seconds.
    until_within(Duration::from_secs(25), "all payments to end", async || {
        let read = Ask::new("GET", path.clone()).by(&key).send(&web.public).await;
        assert_eq!(read.status, 200, "answered beside {PAYMENTS} payments: {}", read.text);
        let map = Ask::new("GET", format!("/v1/events/{}/blocks/B1/seats", sale.event)).send(&web.public).await;
        assert_eq!(map.status, 200, "{}", map.text);
        let stats = stats_of(test.stores.jobs.redis(), Queue::Payments).await.ok()?;
        (stats.totals.done == u64::try_from(PAYMENTS).unwrap()).then_some(())
    })
    .await;
    settles_within(&test, SETTLED).await;
    assert_eq!(test.count("SELECT count(*) FROM reservations WHERE status = 'CONFIRMED'").await, 50);
}

/// Whether the payment is under way; overload may say to come back, and nothing else.
async fn started(ask: &Ask, web: &Web) -> Option<()> {
    let answer = ask.clone().send(&web.public).await;
    if answer.status == 503 {
        assert!(answer.header("retry-after").parse::<u32>().is_ok_and(|seconds| seconds >= 1), "{}", answer.text);
        return None;
    }
    assert_eq!(answer.status, 202, "{}", answer.text);
    Some(())
}

// Of A-C1's kind: a restart or a firewall cuts what rests, and the next requests must not pay for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_cut_while_it_rested_fails_no_request() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    // All of the pool, once.
    futures::future::join_all((0..8).map(|_| test.stores.pg.now())).await;
    let rested = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name =
                  'holdfast' AND state_change > now() - interval '600 milliseconds'";
    until("the pool to rest", async || (test.count(rested).await == 0).then_some(())).await;
    let cut = test
        .count(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()
                AND application_name = 'holdfast'",
        )
        .await;
    assert!(cut >= 1, "there was something to cut");
    let buyers: Vec<String> = (0..8).map(|buyer| format!("u{buyer}")).collect();
    let seats: Vec<String> = (1..=8).map(|column| format!("A-{column}")).collect();
    let holds = buyers.iter().zip(&seats).map(|(buyer, seat)| {
        let seat = [seat.as_str()];
        let sale = &sale;
        let stores = &test.stores;
        async move { sale.hold(stores, buyer, &seat).await }
    });
    for held in futures::future::join_all(holds).await {
        held.unwrap();
    }
}
