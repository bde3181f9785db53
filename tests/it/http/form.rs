//! The form of answers: whatever is asked, however wrongly.

use holdfast_tests::sale::SalePlan;
use holdfast_tests::web::Ask;
use serde_json::json;

use super::{Shop, place};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_is_a_problem_that_names_the_place_and_the_request() {
    let shop = Shop::open(SalePlan::default()).await;
    let holds = shop.holds();
    let post = |body: &str| Ask::new("POST", holds.clone()).by(&shop.sales).body("application/json", body);
    let big = format!("{{\"seats\":[\"{}\"]}}", "x".repeat(300_000));
    let many = json!({ "seats": vec![place("A-1"); 101], "buyer": "u1" }).to_string();
    let asks = [
        (Ask::new("GET", "/nowhere"), 404, "not_found", ""),
        (Ask::new("GET", "/v1/events/not-an-id"), 404, "not_found", ""),
        (Ask::new("GET", format!("/v1/events/{}/blocks/B9/seats", shop.sale.event)), 404, "not_found", ""),
        (Ask::new("PUT", "/v1/events"), 405, "method_not_allowed", ""),
        (Ask::new("GET", "/v1/events?limit=0"), 422, "validation_failed", "limit"),
        (Ask::new("GET", "/v1/events?limit=201"), 422, "validation_failed", "limit"),
        (Ask::new("GET", "/v1/events?page=2"), 422, "validation_failed", "page"),
        (Ask::new("GET", "/v1/events?cursor=x"), 422, "validation_failed", "cursor"),
        (post("{"), 422, "validation_failed", ""),
        (post(""), 422, "validation_failed", ""),
        (post("[[\"1\"],\"u1\"]"), 422, "validation_failed", ""),
        (post("{\"seats\":[]}"), 422, "validation_failed", "seats"),
        (post("{\"seats\":[7]}"), 422, "validation_failed", "seats[0]"),
        (post("{\"seats\":[\"1\"],\"buyr\":\"u1\"}"), 422, "validation_failed", "buyr"),
        (
            post("{\"seats\":[{\"block\":\"B1\",\"row\":\"A\",\"seat\":\"1\"}]}"),
            422,
            "validation_failed",
            "seats[0].seat",
        ),
        (post("{\"seats\":[\"1\"],\"buyer\":\"\"}"), 422, "validation_failed", "buyer"),
        (post("{\"seats\":[\"1\"]}"), 422, "validation_failed", "buyer"),
        (
            post("{\"seats\":[\"1\"],\"buyer\":\"u1\"}").key(&"k".repeat(256)),
            422,
            "validation_failed",
            "Idempotency-Key",
        ),
        (post(&many), 422, "validation_failed", "seats"),
        (post(&big), 413, "payload_too_large", ""),
        (Ask::new("POST", holds.clone()).by(&shop.sales).body("text/plain", "{}"), 415, "unsupported_media_type", ""),
        (Ask::new("POST", holds.clone()).json(&json!({})), 401, "unauthorized", ""),
        (Ask::new("GET", "/v1/time").by("hf_wrong"), 401, "unauthorized", ""),
    ];
    for (ask, status, code, path) in asks {
        let told = format!("{ask:?}");
        let answer = ask.header("x-request-id", "mine-1").send(&shop.web.public).await;
        let body = answer.json();
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{told}: {body}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{told}");
        assert_eq!(body["type"], format!("/problems/{code}"), "{told}");
        assert_eq!((body["request_id"].as_str(), answer.header("x-request-id")), (Some("mine-1"), "mine-1"), "{told}");
        assert!(!answer.header("server-time").is_empty(), "{told}");
        assert_eq!(body["errors"][0]["path"].as_str().unwrap_or_default(), path, "{told}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_is_sent_again_only_when_it_has_changed() {
    let shop = Shop::open(SalePlan::default()).await;
    let first = Ask::new("GET", shop.block()).send(&shop.web.public).await;
    assert_eq!(first.json()["seats"].as_array().unwrap().len(), 30);
    let again = Ask::new("GET", shop.block()).header("if-none-match", first.header("etag"));
    let unchanged = again.clone().send(&shop.web.public).await;
    assert_eq!((unchanged.status.as_u16(), unchanged.text.as_str()), (304, ""));
    assert_eq!(unchanged.header("etag"), first.header("etag"));
    assert_eq!(shop.hold_for("u1", &["A-1"]).send(&shop.web.public).await.status, 201);
    let changed = holdfast_tests::wait::until("the change", async || {
        Some(again.clone().send(&shop.web.public).await).filter(|answer| answer.status == 200)
    })
    .await;
    let seats = changed.json()["seats"].clone();
    let held = seats.as_array().unwrap().iter().find(|seat| seat["status"] == "held").expect("one is held");
    assert_eq!((held["row"].as_str(), held["column"].as_str()), (Some("A"), Some("1")));
    assert_eq!(held["price"], json!({ "amount": 50_000, "currency": "KRW" }));
    assert!(!changed.text.contains("u1"), "whose it is, is nobody's business");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_of_blocks_count_every_seat_once() {
    let shop = Shop::open(SalePlan::of_rows(&[("B1", "A", 4), ("B2", "A", 3)])).await;
    assert_eq!(shop.hold_for("u1", &["A-1", "A-2"]).send(&shop.web.public).await.status, 201);
    let path = format!("/v1/events/{}/blocks", shop.sale.event);
    let blocks = holdfast_tests::wait::until("the hold to show", async || {
        let body = Ask::new("GET", path.clone()).send(&shop.web.public).await.json();
        (body["blocks"][0]["held"] == 2).then_some(body)
    })
    .await;
    let price = json!({ "amount": 50_000, "currency": "KRW" });
    assert_eq!(
        blocks["blocks"],
        json!([
            { "block": "B1", "available": 2, "held": 2, "sold": 0, "blocked": 0, "from": price },
            { "block": "B2", "available": 3, "held": 0, "sold": 0, "blocked": 0, "from": price },
        ])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_and_its_page_come_without_a_network() {
    let shop = Shop::open(SalePlan::default()).await;
    let description = Ask::new("GET", "/openapi.json").send(&shop.web.public).await;
    assert_eq!(description.json(), api::openapi::document());
    let page = Ask::new("GET", "/docs/").send(&shop.web.public).await;
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(page.text.contains("swagger-ui") && !page.text.contains("http"), "nothing is loaded from elsewhere");
    assert_eq!(Ask::new("GET", "/docs/swagger-ui-bundle.js").send(&shop.web.public).await.status, 200);
    let explained = Ask::new("GET", "/problems/seat_unavailable").header("accept", "text/html");
    assert!(explained.send(&shop.web.public).await.text.starts_with("<!doctype html>"));
}
