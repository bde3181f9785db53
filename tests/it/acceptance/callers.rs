//! Callers who name what is not theirs, or is nothing at all.

use domain::seat::SeatStatus;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::audit::assert_sound;
use holdfast_tests::sale::SalePlan;
use holdfast_tests::web::{Answer, Ask, api_key};
use serde_json::{Value, json};

use crate::http::{Shop, place};

/// An answer without what differs from one request to the next.
fn shape(answer: &Answer) -> (u16, Value) {
    let mut body = answer.json();
    body.as_object_mut().unwrap().remove("request_id");
    (answer.status.as_u16(), body)
}

// A-L3: whoever knows another's ids learns nothing and changes nothing; the answer is that for an id that does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anothers_reservation_is_as_if_it_did_not_exist() {
    let shop = Shop::open(SalePlan::default()).await;
    let public = &shop.web.public;
    let (anna, bert) = (shop.web.buyer().await, shop.web.buyer().await);
    let held = Ask::new("POST", shop.holds()).json(&json!({ "seats": [place("A-1")] })).by(&anna).send(public).await;
    assert_eq!(held.status, 201, "{}", held.text);
    let buyer = held.json()["buyer"].as_str().unwrap().to_owned();
    let pay = json!({ "provider": "fake", "token": "tok_silence" });
    let theirs = held.header("location").to_owned();
    let paying = Ask::new("POST", format!("{theirs}/payments")).json(&pay).by(&anna).send(public).await;
    assert_eq!(paying.status, 202, "{}", paying.text);
    let payment = paying.header("location").to_owned();
    let nobodys = format!("/v1/reservations/{}", domain::runtime::clock::new_uuid());
    let no_payment = format!("/v1/payments/{}", domain::runtime::clock::new_uuid());
    let asks = |reservation: &str, payment: &str| {
        [
            Ask::new("GET", reservation),
            Ask::new("DELETE", reservation),
            Ask::new("POST", format!("{reservation}/extend")),
            Ask::new("POST", format!("{reservation}/payments")).json(&pay),
            Ask::new("GET", payment),
        ]
    };
    for (ask, unknown) in asks(&theirs, &payment).into_iter().zip(asks(&nobodys, &no_payment)) {
        let (refused, nothing) =
            (ask.clone().by(&bert).send(public).await, unknown.clone().by(&bert).send(public).await);
        assert_eq!(refused.status, 404, "{ask:?}");
        assert_eq!(shape(&refused), shape(&nothing), "{ask:?}");
        let (refused, nothing) = (ask.clone().send(public).await, unknown.send(public).await);
        assert_eq!(refused.status, 401, "{ask:?}");
        assert_eq!(shape(&refused), shape(&nothing), "{ask:?}");
    }
    for body in [json!({ "seats": [place("A-2")], "buyer": buyer }), json!({ "seats": [place("A-2")], "user": buyer })]
    {
        let named = Ask::new("POST", shop.holds()).json(&body).by(&bert).send(public).await;
        assert!([403, 422].contains(&named.status.as_u16()), "{}", named.text);
    }
    let list = Ask::new("GET", format!("/v1/reservations?buyer={buyer}")).by(&bert).send(public).await;
    assert!(!list.text.contains(&buyer) || list.status == 422, "{}", list.text);
    for path in [shop.block(), format!("/v1/events/{}/blocks", shop.sale.event)] {
        let map = Ask::new("GET", path).send(public).await;
        assert_eq!(map.status, 200);
        assert!(!map.text.contains(&buyer), "{}", map.text);
        assert!(!map.text.contains(held.json()["id"].as_str().unwrap()), "{}", map.text);
    }
    let own = Ask::new("GET", theirs).by(&anna).send(public).await;
    assert_eq!((own.status.as_u16(), own.json()["status"].as_str()), (200, Some("PENDING")));
    assert_eq!(shop.sale.status(shop.stores(), "A-1").await, SeatStatus::Held);
    assert_eq!(shop.sale.status(shop.stores(), "A-2").await, SeatStatus::Available);
    assert_sound(&shop.test).await;
}

// A-D2: through the shop's door and on the web, by id and by place, the seat is one thing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seat_has_one_holder_whoever_asks_and_however_it_is_named() {
    let shop = Shop::open(SalePlan::default()).await;
    let public = &shop.web.public;
    let admin = api_key(shop.stores(), KeyScope::Admin).await;
    let (anna, bert) = (shop.web.buyer().await, shop.web.buyer().await);
    let sheet = shop.stores().book.sheet(shop.sale.event).await.unwrap().unwrap();
    let id = sheet.map.seats().iter().find(|seat| (seat.row.as_str(), seat.column.as_str()) == ("A", "2")).unwrap().id;
    let callers = [(&anna, None), (&bert, None), (&shop.sales, Some("door")), (&admin, Some("guest"))];
    for round in 0..100 {
        let rivals = callers.iter().enumerate().map(|(index, (caller, buyer))| {
            let seat = if index % 2 == 0 { json!(id.to_string()) } else { place("A-2") };
            let mut body = json!({ "seats": [seat] });
            if let Some(buyer) = buyer {
                body["buyer"] = json!(buyer);
            }
            Ask::new("POST", shop.holds()).json(&body).by(caller).key(&format!("{round}-{index}")).send(public)
        });
        let answers = futures::future::join_all(rivals).await;
        let won: Vec<usize> = (0..answers.len()).filter(|index| answers[*index].status == 201).collect();
        let [winner] = won[..] else { panic!("round {round}: {won:?} hold the seat") };
        for (index, answer) in answers.iter().enumerate().filter(|(index, _)| *index != winner) {
            assert_eq!(answer.refusal(), (409, "seat_unavailable".into()), "round {round}, caller {index}");
        }
        let held = answers[winner].header("location");
        let given_back = Ask::new("DELETE", held).by(callers[winner].0).send(public).await;
        assert_eq!(given_back.status, 200, "{}", given_back.text);
    }
    assert_sound(&shop.test).await;
}

// A-I2: two buyers and two anonymous sessions, all with key "1", first for a seat each, then for one seat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_of_many_callers_is_many_keys() {
    let shop = Shop::open(SalePlan::default()).await;
    let public = &shop.web.public;
    let callers = [shop.web.buyer().await, shop.web.buyer().await, shop.web.buyer().await, shop.web.buyer().await];
    let hold = |caller: &str, seat: &str, key: &str| {
        Ask::new("POST", shop.holds()).json(&json!({ "seats": [place(seat)] })).by(caller).key(key)
    };
    let mut first = Vec::new();
    for (caller, seat) in callers.iter().zip(["A-1", "A-2", "A-3", "A-4"]) {
        let held = hold(caller, seat, "1").send(public).await;
        assert_eq!(held.status, 201, "{}", held.text);
        first.push(held);
    }
    for ((caller, seat), held) in callers.iter().zip(["A-1", "A-2", "A-3", "A-4"]).zip(&first) {
        assert_eq!(hold(caller, seat, "1").send(public).await.text, held.text, "its own, byte for byte");
    }
    let rivals = callers.iter().map(|caller| hold(caller, "B-1", "2").send(public));
    let answers = futures::future::join_all(rivals).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
    assert_eq!((won.len(), lost.len()), (1, 3));
    let winner = won[0].json()["id"].as_str().unwrap().to_owned();
    for refused in lost {
        assert_eq!(refused.refusal(), (409, "seat_unavailable".into()));
        assert!(!refused.text.contains(&winner), "{}", refused.text);
    }
    assert_sound(&shop.test).await;
}

// A-D7 over HTTP: what the client invents is no seat, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seats_that_a_client_invents_are_refused_and_leave_nothing_behind() {
    let shop = Shop::open(SalePlan::default()).await;
    let other = SalePlan { venue: "Another house".to_owned(), ..SalePlan::of_rows(&[("B9", "A", 3)]) };
    let other = holdfast_tests::sale::Sale::open(shop.stores(), other).await;
    let elsewhere = other.sheet.map.seats()[0].id.to_string();
    let keys = shop.test.keys().await;
    let many: Vec<Value> = (0..10_000).map(|id| json!(id.to_string())).collect();
    let invented = [
        json!([place("A-11")]),
        json!([{ "block": "B9", "row": "A", "column": "1" }]),
        json!([""]),
        json!([place("A-1"), place("ZZ-9")]),
        json!([elsewhere, place("A-1")]),
        json!(["99999999999999999999999999"]),
        json!([null]),
        json!([{ "block": "B1", "row": "A" }]),
        json!(many),
    ];
    for seats in invented {
        let body = json!({ "seats": seats, "buyer": "u1" });
        let refused = Ask::new("POST", shop.holds()).json(&body).by(&shop.sales).send(&shop.web.public).await;
        assert!([404, 413, 422].contains(&refused.status.as_u16()), "{}: {:.200}", refused.text, body.to_string());
        assert!(!refused.json()["code"].as_str().unwrap().is_empty());
    }
    assert_eq!(shop.test.keys().await, keys);
    let rows = "SELECT (SELECT count(*) FROM seat_claims) + (SELECT count(*) FROM reservations)
                     + (SELECT count(*) FROM idempotency_keys)";
    assert_eq!(shop.test.count(rows).await, 0);
    assert_eq!(shop.hold_for("u1", &["A-1"]).send(&shop.web.public).await.status, 201, "all or nothing: A-1 is free");
}
