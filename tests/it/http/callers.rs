//! Who may do what.

use api::rate::RateSettings;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::sale::SalePlan;
use holdfast_tests::wait::until_within;
use holdfast_tests::web::{Ask, REVOKED_WITHIN, Web, api_key, api_settings};
use serde_json::json;

use super::{Shop, place};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_sees_and_changes_its_own_reservations_only() {
    let shop = Shop::open(SalePlan::default()).await;
    let public = &shop.web.public;
    let (anna, bert) = (shop.web.buyer().await, shop.web.buyer().await);
    let hold = |who: &str, seat: &str| Ask::new("POST", shop.holds()).json(&json!({ "seats": [place(seat)] })).by(who);
    let held = hold(&anna, "A-1").send(public).await;
    assert_eq!(held.status, 201, "{}", held.text);
    let path = held.header("location").to_owned();
    assert_eq!(path, format!("/v1/reservations/{}", held.json()["id"].as_str().unwrap()));

    let pay = json!({ "provider": "fake", "token": "tok_ok" });
    for ask in [
        Ask::new("GET", path.clone()),
        Ask::new("DELETE", path.clone()),
        Ask::new("POST", format!("{path}/extend")),
        Ask::new("POST", format!("{path}/payments")).json(&pay),
    ] {
        assert_eq!(ask.clone().by(&bert).send(public).await.refusal(), (404, "not_found".into()), "{ask:?}");
        assert_eq!(ask.clone().send(public).await.refusal(), (401, "unauthorized".into()), "{ask:?}");
    }
    let named = json!({ "seats": [place("A-2")], "buyer": "somebody" });
    let for_another = Ask::new("POST", shop.holds()).json(&named).by(&anna).send(public).await;
    assert_eq!(for_another.refusal(), (403, "forbidden".into()));
    let conflict = hold(&bert, "A-1").send(public).await;
    assert_eq!(conflict.refusal(), (409, "seat_unavailable".into()));
    let buyer = held.json()["buyer"].as_str().unwrap().to_owned();
    assert!(!conflict.text.contains(&buyer), "no answer names another buyer");

    let list = async |who: &str, query: &str| {
        let answer = Ask::new("GET", format!("/v1/reservations{query}")).by(who).send(public).await;
        answer.json()["reservations"].as_array().map_or(0, Vec::len)
    };
    assert_eq!((list(&anna, "").await, list(&bert, "").await, list(&shop.sales, "").await), (1, 0, 1));
    assert_eq!(list(&anna, "?status=CONFIRMED").await, 0);
    assert_eq!(list(&anna, &format!("?event={}&status=PENDING", shop.sale.event)).await, 1);
    assert_eq!(Ask::new("GET", path.clone()).by(&anna).send(public).await.status, 200);
    assert_eq!(Ask::new("GET", path).by(&shop.sales).send(public).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_scope_opens_its_own_doors() {
    let shop = Shop::open(SalePlan::default()).await;
    let public = &shop.web.public;
    let admin = api_key(shop.stores(), KeyScope::Admin).await;
    let ops = api_key(shop.stores(), KeyScope::Ops).await;
    let close = Ask::new("POST", format!("/v1/events/{}/close", shop.sale.event));
    for other in [&shop.sales, &ops, &shop.web.buyer().await] {
        assert_eq!(close.clone().by(other).send(public).await.refusal(), (403, "forbidden".into()));
    }
    assert_eq!(close.clone().send(public).await.refusal(), (401, "unauthorized".into()));
    let list = Ask::new("GET", "/v1/reservations");
    assert_eq!(list.clone().by(&ops).send(public).await.refusal(), (403, "forbidden".into()));
    assert_eq!(close.by(&admin).send(public).await.status, 200);
    let held = shop.hold_for("u1", &["A-1"]).send(public).await;
    assert_eq!(held.refusal(), (403, "sales_closed".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_stops_working_within_seconds() {
    let shop = Shop::open(SalePlan::default()).await;
    let list = Ask::new("GET", "/v1/reservations").by(&shop.sales);
    assert_eq!(list.clone().send(&shop.web.public).await.status, 200);
    let id = shop.stores().pg.list_api_keys().await.unwrap()[0].id;
    assert!(shop.stores().pg.revoke_api_key(id).await.unwrap());
    until_within(REVOKED_WITHIN, "the key to be refused", async || {
        (list.clone().send(&shop.web.public).await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_buyers_can_be_switched_off() {
    let shop = Shop::open(SalePlan::default()).await;
    let token = shop.web.buyer().await;
    let other = Web::start(&shop.test.another_process()).await;
    let list = Ask::new("GET", "/v1/reservations").by(&token);
    assert_eq!(list.clone().send(&other.public).await.status, 200, "a token is good at every process");
    let settings = api::ApiSettings { anonymous_buyers: false, ..api_settings() };
    let without = Web::start_with(shop.stores(), settings).await;
    assert_eq!(Ask::new("POST", "/v1/buyers").send(&without.public).await.refusal(), (403, "forbidden".into()));
    assert_eq!(list.send(&without.public).await.refusal(), (401, "unauthorized".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_over_its_rate_is_told_when_to_come_back_and_is_let_in_then() {
    let shop = Shop::open(SalePlan::default()).await;
    let rates = RateSettings { key_per_second: 1, key_burst: 3, ..RateSettings::unlimited() };
    let web = Web::start_with(shop.stores(), api::ApiSettings { rates, ..api_settings() }).await;
    let list = Ask::new("GET", "/v1/reservations?limit=1").by(&shop.sales);
    let refused = until_within(REVOKED_WITHIN, "the limit", async || {
        Some(list.clone().send(&web.public).await).filter(|answer| answer.status == 429)
    })
    .await;
    assert_eq!(refused.refusal(), (429, "rate_limited".into()));
    assert_eq!(refused.header("retry-after"), "1");
    let other = api_key(shop.stores(), KeyScope::Sales).await;
    assert_eq!(Ask::new("GET", "/v1/reservations").by(&other).send(&web.public).await.status, 200);
    until_within(REVOKED_WITHIN, "the next request to pass", async || {
        (list.clone().send(&web.public).await.status == 200).then_some(())
    })
    .await;
}
