//! Machines whose clocks are wrong, or in another zone.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use chrono::{DateTime, Utc};
use domain::store::pg::api_keys::KeyScope;
use domain::time::{VenueZone, rfc3339_ms};
use holdfast_tests::audit::settles_within;
use holdfast_tests::process::{ApiProcess, EngineProcess};
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use holdfast_tests::web::api_key;
use reqwest::StatusCode;
use serde_json::Value;

use crate::kills::{BINARY, SETTLED, Shop, hold_body, seen};

/// What an answer may be late on a busy machine, ms. The clocks are wrong by much more.
const BUSY_MS: i64 = 3_000;

/// Builds what shifts a process's wall clock; Rust itself needs the same compiler to link.
fn clock_shift() -> PathBuf {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("clock_shift-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/it/acceptance/clock_shift.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(built.expect("a C compiler is there").success());
    library
}

fn at(body: &Value, field: &str) -> DateTime<Utc> {
    body[field].as_str().unwrap_or_else(|| panic!("no {field} in {body}")).parse().unwrap()
}

/// The `Server-Time` of a process, ms.
async fn server_time_ms(api: &ApiProcess) -> i64 {
    let answer = reqwest::get(format!("{}/v1/time", api.url)).await.unwrap();
    let header: i64 = answer.headers()["server-time"].to_str().unwrap().parse().unwrap();
    let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert!((at(&body, "server_time").timestamp_millis() - header).abs() < BUSY_MS, "{body} beside {header}");
    header
}

/// Holds a seat through one process and tries for it through the other, until it changes hands.
async fn a_hold_lives_for_its_true_time(shop: &Shop, (here, there): (&ApiProcess, &ApiProcess), seat: &str) {
    let event = shop.sale.event.to_string();
    let before = shop.test.stores.pg.now().await.unwrap();
    let (status, held) = shop.hold(here, "u1", &[seat]).await;
    assert_eq!(status, StatusCode::CREATED, "{held}");
    let after = shop.test.stores.pg.now().await.unwrap();
    let (deadline, ttl) = (at(&held, "expires_at"), chrono::Duration::seconds(4));
    assert!((before + ttl..=after + ttl).contains(&deadline), "{deadline} is not true time: held before {after}");
    assert!((before..=after).contains(&at(&held, "server_time")), "{held}");
    for api in [here, there] {
        let left_ms = deadline.timestamp_millis() - server_time_ms(api).await;
        assert!((4_000 - BUSY_MS..=4_000).contains(&left_ms), "a countdown would show {left_ms} ms of 4 s");
        until("both processes to show it", async || (seen(api, &event, seat).await == "held").then_some(())).await;
    }
    let mut refused = 0;
    let next = until_within(Duration::from_secs(8), "the seat to change hands", async || {
        let (status, answer) = shop.hold(there, "u2", &[seat]).await;
        refused += u32::from(status == StatusCode::CONFLICT);
        (status == StatusCode::CREATED).then_some(answer)
    })
    .await;
    assert!(refused > 0, "{seat} was never refused");
    let late = at(&next, "created_at") - deadline;
    assert!((0..3_000).contains(&late.num_milliseconds()), "{seat} changed hands {late} after its deadline");
    let (status, _) = shop.hold(here, "u3", &[seat]).await;
    assert_eq!(status, StatusCode::CONFLICT, "the other process sees the new owner");
}

/// Pays late in a hold's life through one process: through the other nobody gets the seat meanwhile.
async fn a_payment_window_is_true_time_too(shop: &Shop, (here, there): (&ApiProcess, &ApiProcess), seat: &str) {
    let (status, held) = shop.hold(here, "u1", &[seat]).await;
    assert_eq!(status, StatusCode::CREATED, "{held}");
    let deadline = at(&held, "expires_at");
    let nearly = deadline - chrono::Duration::milliseconds(400);
    until("nearly the deadline", async || (shop.test.stores.pg.now().await.unwrap() >= nearly).then_some(())).await;
    let payment = shop.pay(here, &held, "tok_silence").await;
    let window = at(&payment, "deadline") - deadline;
    assert!((1_500..=2_100).contains(&window.num_milliseconds()), "{payment}");
    until("the hold's deadline", async || (shop.test.stores.pg.now().await.unwrap() >= deadline).then_some(())).await;
    let (status, answer) = shop.hold(there, "u2", &[seat]).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    shop.until_status(here, &held, "CANCELLED").await;
    let over = shop.test.stores.pg.now().await.unwrap();
    assert!(over >= at(&payment, "deadline"), "over {over}, before its window's end");
}

// A-T2: one process is 90 s ahead, the other 90 s behind, the worker is ahead too; Postgres and Redis are right.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn processes_with_wrong_clocks_keep_true_time() {
    let library = clock_shift();
    let library = library.to_str().unwrap();
    let shop = Shop::open(SalePlan::default().ttl_ms(4_000).window_ms(2_400)).await;
    let (ahead, behind) =
        ([("LD_PRELOAD", library), ("CLOCK_SHIFT_S", "90")], [("LD_PRELOAD", library), ("CLOCK_SHIFT_S", "-90")]);
    let fast = ApiProcess::start_with(BINARY, &shop.test, &ahead).await;
    let slow = ApiProcess::start_with(BINARY, &shop.test, &behind).await;
    let _worker = EngineProcess::start_with(BINARY, &shop.test, &["worker"], &ahead);
    tokio::join!(
        a_hold_lives_for_its_true_time(&shop, (&fast, &slow), "A-1"),
        a_hold_lives_for_its_true_time(&shop, (&slow, &fast), "A-2"),
        a_payment_window_is_true_time_too(&shop, (&fast, &slow), "B-1"),
        a_payment_window_is_true_time_too(&shop, (&slow, &fast), "B-2"),
    );
    // A buyer's token that one of them made is good at the other.
    let (_, made) = fast.send("POST", "/v1/buyers", "", None).await;
    let (status, answer) = slow.send("GET", "/v1/reservations", made["token"].as_str().unwrap(), None).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    settles_within(&shop.test, SETTLED).await;
    std::fs::remove_file(library).unwrap();
}

// A-T1 with real processes: sales open by the venue's wall clock, whatever zone the server is in.
#[tokio::test(flavor = "multi_thread")]
async fn sales_open_by_the_venues_clock_whatever_zone_the_server_is_in() {
    let test = TestStores::start().await;
    let zone = VenueZone::parse("Asia/Seoul").unwrap();
    let soon = test.stores.pg.now().await.unwrap() + chrono::Duration::seconds(4);
    let plan = SalePlan { sales_open_at: Some(zone.local_text(soon)), ..SalePlan::default() };
    let sale = Sale::open(&test.stores, plan).await;
    let opens = sale.sheet.event.sales_open_at.as_ref().unwrap().at;
    let key = api_key(&test.stores, KeyScope::Sales).await;
    let hold = async |api: &ApiProcess, seat: &str| {
        let path = format!("/v1/events/{}/reservations", sale.event);
        api.send("POST", &path, &key, Some(&hold_body("u1", &[seat]))).await
    };
    let new_york = ApiProcess::start_with(BINARY, &test, &[("TZ", "America/New_York")]).await;
    let kiritimati = ApiProcess::start_with(BINARY, &test, &[("TZ", "Pacific/Kiritimati")]).await;
    for api in [&new_york, &kiritimati] {
        let (status, refusal) = hold(api, "A-1").await;
        assert_eq!((status, refusal["code"].as_str()), (StatusCode::FORBIDDEN, Some("not_on_sale")), "{refusal}");
        assert_eq!(refusal["opens_at"].as_str(), Some(rfc3339_ms(opens).as_str()), "in UTC, whoever answers");
    }
    let mut early = 0;
    let held = until("the sale to open", async || {
        let (status, answer) = hold(&new_york, "A-1").await;
        early += u32::from(status == StatusCode::FORBIDDEN);
        (status == StatusCode::CREATED).then_some(answer)
    })
    .await;
    assert!(early > 0 && at(&held, "created_at") >= opens, "{held}");
    let (status, answer) = hold(&kiritimati, "A-2").await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}
