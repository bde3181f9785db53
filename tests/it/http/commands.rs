//! Commands: from a venue's file to a sold seat, repeated requests, clients that hang up, stores that are away.

use domain::flow::open_event::open_event;
use domain::id::{EventId, PaymentId};
use domain::payment::PaymentStatus;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::audit::assert_sound;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::finalize;
use holdfast_tests::sale::SalePlan;
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;
use holdfast_tests::web::{Answer, Ask, Web, api_key};
use serde_json::{Value, json};
use std::future::Future as _;
use std::task::Context;

use super::{Shop, place};

const CSV: &str = "block,row,column,category\nB1,A,1,Seat\nB1,A,2,Seat\nB1,A,3,Table\n";
const IMPORT: &str = "/v1/venues/import?format=csv&name=The%20house&time_zone=Asia/Seoul";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_venues_file_becomes_a_sold_seat() {
    let test = TestStores::start().await;
    let web = Web::start(&test.stores).await;
    let admin = api_key(&test.stores, KeyScope::Admin).await;
    let send = async |ask: Ask| ask.by(&admin).send(&web.public).await;
    let import = send(Ask::new("POST", IMPORT).body("text/csv", CSV)).await;
    assert_eq!((import.status.as_u16(), import.json()["categories"].clone()), (201, json!(["Seat", "Table"])));
    let again = send(Ask::new("POST", IMPORT).body("text/csv", CSV)).await;
    assert_eq!((again.status.as_u16(), &again.json()["venue"]), (200, &import.json()["venue"]));
    let faulty = send(Ask::new("POST", IMPORT).body("text/csv", "block,row\nB1,A\n")).await;
    assert_eq!(faulty.refusal(), (422, "validation_failed".into()));
    let map =
        send(Ask::new("GET", format!("/v1/venues/{}/map", import.json()["venue"].as_str().unwrap()))).await.json();
    assert_eq!(map["blocks"][0]["seats"][0]["neighbours"], json!([map["blocks"][0]["seats"][1]["id"]]));

    let plan = json!({
        "venue": import.json()["venue"], "title": "An evening", "starts_at": "2030-04-10T18:30", "currency": "KRW",
        "prices": { "Seat": 50_000, "Table": 90_000 },
    });
    let event = send(Ask::new("POST", "/v1/events").json(&plan)).await;
    let body = event.json();
    assert_eq!((event.status.as_u16(), body["status"].as_str()), (201, Some("draft")));
    assert_eq!(body["starts_at"], "2030-04-10T09:30:00.000Z", "the wall clock of Seoul");
    let path = event.header("location").to_owned();
    let early =
        send(Ask::new("POST", format!("{path}/reservations")).json(&json!({ "seats": [place("A-1")], "buyer": "u" })));
    assert_eq!(early.await.refusal(), (403, "not_on_sale".into()));
    let opening = send(Ask::new("POST", format!("{path}/open"))).await;
    assert_eq!((opening.status.as_u16(), opening.json()["status"].as_str()), (202, Some("preparing")));
    let id: EventId = body["id"].as_str().unwrap().parse().unwrap();
    open_event(&test.stores, id).await.unwrap();
    assert_eq!(send(Ask::new("GET", path.clone())).await.json()["status"], "on_sale");

    // Right after it is said to be on sale, it is: no process may answer from an older look.
    let hold = json!({ "seats": [place("A-1"), place("A-3")], "buyer": "u" });
    let held = send(Ask::new("POST", format!("{path}/reservations")).json(&hold)).await;
    assert_eq!((held.status.as_u16(), held.json()["amount"].as_i64()), (201, Some(140_000)), "{}", held.text);
    let reservation = held.header("location").to_owned();
    let pay =
        Ask::new("POST", format!("{reservation}/payments")).json(&json!({ "provider": "fake", "token": "tok_ok" }));
    let paying = send(pay.clone()).await;
    assert_eq!((paying.status.as_u16(), paying.json()["status"].as_str()), (202, Some("requested")));
    assert_eq!(send(pay).await.json()["id"], paying.json()["id"], "a second call answers the open one");
    let cancelled = send(Ask::new("DELETE", reservation.clone())).await;
    assert_eq!(cancelled.refusal(), (409, "payment_in_flight".into()));
    let payment: PaymentId = paying.json()["id"].as_str().unwrap().parse().unwrap();
    let ended = finalize(&test.stores, &ScriptedProvider::default(), payment).await;
    assert_eq!(ended, Some(PaymentStatus::Captured));
    let captured = send(Ask::new("GET", paying.header("location"))).await;
    assert_eq!(captured.json()["status"], "captured");
    let confirmed = send(Ask::new("GET", reservation.clone())).await.json();
    assert_eq!(
        (confirmed["status"].as_str(), &confirmed["payments"][0]["id"]),
        (Some("CONFIRMED"), &paying.json()["id"])
    );
    assert_eq!(send(Ask::new("DELETE", reservation)).await.refusal(), (409, "invalid_transition".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_hold_names_every_seat_in_the_way_and_holds_nothing() {
    let shop = Shop::open(SalePlan::default().per_buyer(4)).await;
    let public = &shop.web.public;
    assert_eq!(shop.hold_for("u1", &["A-1", "B-2"]).send(public).await.status, 201);
    let refused = shop.hold_for("u2", &["A-1", "A-2", "B-2"]).send(public).await;
    assert_eq!(refused.refusal(), (409, "seat_unavailable".into()));
    let statuses: Vec<Value> =
        refused.json()["conflicts"].as_array().unwrap().iter().map(|it| it["status"].clone()).collect();
    assert_eq!(statuses, ["held", "held"]);
    assert_eq!(shop.hold_for("u2", &["A-2"]).send(public).await.status, 201, "A-2 was not held by the refusal");
    let unknown = shop.hold_for("u2", &["A-3", "Z-1", "A-99"]).send(public).await;
    assert_eq!(unknown.refusal(), (422, "unknown_seat".into()));
    let paths: Vec<Value> = unknown.json()["errors"].as_array().unwrap().iter().map(|it| it["path"].clone()).collect();
    assert_eq!(paths, ["seats[1]", "seats[2]"]);
    let too_many = shop.hold_for("u2", &["C-1", "C-2", "C-3", "C-4"]).send(public).await;
    assert_eq!((too_many.refusal(), too_many.json()["limit"].as_i64()), ((422, "limit_exceeded".into()), Some(4)));
}

// A-I1, A-I2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_belongs_to_its_request_and_its_caller() {
    let shop = Shop::open(SalePlan::default()).await;
    let public = &shop.web.public;
    let first = shop.hold_for("u1", &["A-1"]).key("K").send(public).await;
    assert_eq!(first.status, 201);
    let shuffled = "{ \"buyer\" : \"u1\",\n \"seats\":[ {\"column\":\"1\", \"row\":\"A\", \"block\":\"B1\"} ] }";
    let again =
        Ask::new("POST", shop.holds()).by(&shop.sales).key("K").body("application/json; charset=utf-8", shuffled);
    let again = again.send(public).await;
    assert_eq!((again.status.as_u16(), &again.text), (201, &first.text), "byte for byte");
    assert_eq!((again.header("idempotency-replayed"), first.header("idempotency-replayed")), ("true", ""));
    assert_eq!(again.header("location"), first.header("location"));
    let other_body = shop.hold_for("u1", &["A-2"]).key("K").send(public).await;
    assert_eq!(other_body.refusal(), (422, "idempotency_key_reused".into()));
    let pay = json!({ "provider": "fake", "token": "tok_ok" });
    let elsewhere =
        Ask::new("POST", format!("{}/payments", first.header("location"))).json(&pay).by(&shop.sales).key("K");
    assert_eq!(elsewhere.send(public).await.refusal(), (422, "idempotency_key_reused".into()));
    assert_eq!(shop.hold_for("u2", &["A-2"]).send(public).await.status, 201, "A-2 was never held by the wrong use");

    for (row, caller) in [("B-1", shop.web.buyer().await), ("B-2", shop.web.buyer().await)] {
        let ask = Ask::new("POST", shop.holds()).json(&json!({ "seats": [place(row)] })).by(&caller).key("K");
        let held = ask.send(public).await;
        assert_eq!(held.status, 201, "another caller's key is another key");
        assert_ne!(held.json()["id"], first.json()["id"]);
    }
    let cancelled = Ask::new("DELETE", first.header("location")).by(&shop.sales).send(public).await;
    assert_eq!(cancelled.json()["cancel_reason"], "user");
    let late = shop.hold_for("u1", &["A-1"]).key("K").send(public).await;
    assert_eq!((late.status.as_u16(), late.header("resource-state")), (201, "cancelled"));
    assert_sound(&shop.test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_creation_makes_one_event_and_a_repeated_extension_extends_once() {
    let mut plan = SalePlan::default();
    plan.rules.extensions_max = 1;
    let shop = Shop::open(plan).await;
    let public = &shop.web.public;
    let admin = api_key(shop.stores(), KeyScope::Admin).await;
    let body = json!({
        "venue": shop.sale.sheet.event.venue, "title": "Another", "starts_at": "2030-05-10T18:30", "currency": "KRW",
        "prices": { "Seat": 1 },
    });
    let create = Ask::new("POST", "/v1/events").json(&body).by(&admin).key("E");
    let (one, two) = tokio::join!(create.clone().send(public), create.clone().send(public));
    assert_eq!((one.status.as_u16(), two.status.as_u16()), (201, 201));
    assert_eq!(one.text, two.text);
    assert_eq!(Ask::new("GET", "/v1/events").send(public).await.json()["events"].as_array().unwrap().len(), 2);

    let held = shop.hold_for("u1", &["A-1"]).send(public).await;
    shop.test.clock.advance(1_000);
    let extend = Ask::new("POST", format!("{}/extend", held.header("location"))).by(&shop.sales);
    let extended = extend.clone().key("X").send(public).await;
    assert_eq!(extended.status, 200, "{}", extended.text);
    assert!(extended.json()["expires_at"].as_str() > held.json()["expires_at"].as_str());
    let again = extend.clone().key("X").send(public).await;
    assert_eq!((again.status.as_u16(), &again.text), (200, &extended.text));
    assert_eq!(
        extend.key("Y").send(public).await.refusal(),
        (409, "invalid_transition".into()),
        "it was extended once"
    );
    let now = Ask::new("GET", held.header("location")).by(&shop.sales).send(public).await.json();
    assert_eq!(now["expires_at"], extended.json()["expires_at"], "what was answered is what is");
}

// A-C1: the client hangs up at whatever point; the work is done whole or not at all, and the repeat tells which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_leaves_nothing_half_done() {
    let shop = Shop::open(SalePlan::of_rows(&[("B1", "A", 60)])).await;
    for number in 1..=40_usize {
        let seat = format!("A-{number}");
        let ask = shop.hold_for("u1", &[&seat]).key(&seat);
        let mut asking = Box::pin(ask.clone().send(&shop.web.public));
        let mut looks = 0;
        let unheard = std::future::poll_fn(|context: &mut Context<'_>| {
            looks += 1;
            match asking.as_mut().poll(context) {
                std::task::Poll::Pending if looks <= number % 8 => std::task::Poll::Pending,
                _ => std::task::Poll::Ready(()),
            }
        });
        unheard.await;
        drop(asking);
        // The first try may still be at work: then it says so, and is asked again.
        let told = until("the one true answer", async || {
            Some(ask.clone().send(&shop.web.public).await).filter(|answer| answer.refusal().1 != "request_in_progress")
        })
        .await;
        assert_eq!(told.status, 201, "{}", told.text);
        assert_eq!(ask.send(&shop.web.public).await.text, told.text);
    }
    let held = Ask::new("GET", "/v1/reservations?limit=200").by(&shop.sales).send(&shop.web.public).await.json();
    assert_eq!(held["reservations"].as_array().unwrap().len(), 40, "each was done once");
    assert_sound(&shop.test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_a_write_is_503_with_retry_after_and_nothing_is_half_made() {
    let shop = Shop::open(SalePlan::default()).await;
    assert_eq!(shop.hold_for("u1", &["A-1"]).send(&shop.web.public).await.status, 201);
    let away = shop.test.another_process_with(|settings| {
        // Nobody listens on port 1.
        settings.database_url = "postgres://holdfast@127.0.0.1:1/away".to_owned();
    });
    let broken = shop.web.over(&away);
    let degraded = |answer: &Answer| {
        assert_eq!(answer.refusal(), (503, "degraded".into()), "{}", answer.text);
        assert_eq!(answer.header("retry-after"), "1");
        assert!(answer.json().get("detail").is_none(), "a 5xx carries no detail");
    };
    degraded(&shop.hold_for("u2", &["A-2"]).send(&broken.public).await);
    degraded(&Ask::new("GET", "/v1/events").send(&broken.public).await);
    assert_eq!(Ask::new("GET", "/v1/time").send(&broken.public).await.status, 200);
    assert_eq!(shop.hold_for("u3", &["A-2"]).send(&shop.web.public).await.status, 201, "the seat was never taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_seat_cannot_be_held_and_an_owned_seat_cannot_be_blocked() {
    let shop = Shop::open(SalePlan::default()).await;
    let public = &shop.web.public;
    let admin = api_key(shop.stores(), KeyScope::Admin).await;
    let ask = |verb: &str, seats: &[&str]| {
        let body = json!({ "seats": seats.iter().map(|seat| place(seat)).collect::<Vec<_>>(), "reason": "a camera" });
        Ask::new("POST", format!("/v1/events/{}/seats/{verb}", shop.sale.event)).json(&body)
    };
    assert_eq!(ask("block", &["A-1"]).by(&shop.sales).send(public).await.refusal(), (403, "forbidden".into()));
    assert_eq!(shop.hold_for("u1", &["A-2"]).send(public).await.status, 201);
    let owned = ask("block", &["A-1", "A-2"]).by(&admin).send(public).await;
    assert_eq!((owned.status.as_u16(), owned.json()["conflicts"][0]["status"].clone()), (409, json!("held")));
    assert_eq!(ask("block", &["A-1"]).by(&admin).send(public).await.json(), json!({ "seats": 1 }));
    let refused = shop.hold_for("u2", &["A-1"]).send(public).await;
    assert_eq!(refused.json()["conflicts"][0]["status"], "blocked");
    let unknown = ask("unblock", &["A-1", "Z-9"]).by(&admin).send(public).await;
    assert_eq!(unknown.json()["errors"][0]["path"], "seats[1]");
    assert_eq!(ask("unblock", &["A-1"]).by(&admin).send(public).await.status, 200);
    assert_eq!(shop.hold_for("u2", &["A-1"]).send(public).await.status, 201);
    assert_sound(&shop.test).await;
}
