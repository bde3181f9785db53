//! The live stream, through the real router over real stores.

use std::collections::BTreeMap;

use api::stream::StreamSettings;
use axum::body::BodyDataStream;
use axum::http::header;
use axum::response::Response;
use domain::flow::Access;
use domain::flow::unhold::cancel_reservation;
use domain::reservation::CancelReason;
use futures::StreamExt as _;
use holdfast_tests::sale::SalePlan;
use holdfast_tests::wait::{PATIENCE, until};
use holdfast_tests::web::{Ask, Web, api_settings};
use serde_json::Value;

use super::Shop;

/// A page that watches one block in the JSON form.
struct Watcher {
    body: BodyDataStream,
    text: String,
    last_event_id: String,
    /// What it shows: seats by id.
    shown: BTreeMap<String, String>,
    /// The kinds of the events it was told, in order.
    told: Vec<String>,
}

impl Watcher {
    async fn open(web: &Web, path: &str, last_event_id: Option<&str>) -> Self {
        let mut ask = Ask::new("GET", path);
        if let Some(id) = last_event_id {
            ask = ask.header("last-event-id", id);
        }
        let response = ask.open(&web.public).await;
        assert_eq!(response.status(), 200);
        Self {
            body: response.into_body().into_data_stream(),
            text: String::new(),
            last_event_id: String::new(),
            shown: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// Comes back with what it has after a cut.
    async fn resume(self, web: &Web, path: &str) -> Self {
        let back = Self::open(web, path, Some(&self.last_event_id)).await;
        Self { body: back.body, text: String::new(), ..self }
    }

    /// Takes one event.
    async fn take(&mut self) {
        let event = loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = event.to_owned();
                self.text = rest.to_owned();
                break event;
            }
            let piece = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("an event comes");
            let piece = piece.expect("the stream goes on").expect("the body is whole");
            self.text.push_str(std::str::from_utf8(&piece).expect("the stream is UTF-8"));
        };
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if let Some(id) = field("id:") {
            self.last_event_id = id.to_owned();
        }
        let Some(kind) = field("event:") else { return };
        self.told.push(kind.to_owned());
        let data: Value = serde_json::from_str(field("data:").expect("it has data")).expect("data is JSON");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let list = match kind {
            "reset" | "snapshot" => {
                self.shown.clear();
                &data["seats"]
            }
            _ => &data["changes"],
        };
        for seat in list.as_array().into_iter().flatten() {
            self.shown.insert(text(&seat["id"]), text(&seat["status"]));
        }
    }

    /// Takes events until it shows this.
    async fn until_shown(&mut self, picture: &BTreeMap<String, String>) {
        while self.shown != *picture {
            self.take().await;
        }
    }
}

impl Shop {
    fn stream(&self) -> String {
        format!("/v1/events/{}/stream?block=B1", self.sale.event)
    }

    /// A fresh reading of block B1 by another process.
    async fn fresh(&self) -> BTreeMap<String, String> {
        let other = Web::start(&self.test.another_process()).await;
        let body = Ask::new("GET", self.block()).send(&other.public).await.json();
        let seats = body["seats"].as_array().expect("seats").iter();
        seats
            .map(|seat| (seat["id"].as_str().unwrap().to_owned(), seat["status"].as_str().unwrap().to_owned()))
            .collect()
    }
}

// A-S1: a cut is bridged by one event; a strange id is told so, and begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_is_told_exactly_what_was_missed() {
    let shop = Shop::open(SalePlan::default()).await;
    let mut watcher = Watcher::open(&shop.web, &shop.stream(), None).await;
    watcher.until_shown(&shop.fresh().await).await;
    assert_eq!(watcher.told, ["snapshot"]);
    let cut_at = watcher.last_event_id.clone();
    drop(std::mem::replace(&mut watcher.body, axum::body::Body::empty().into_data_stream()));

    for (buyer, seats) in [("u1", ["A-1", "A-2"]), ("u2", ["B-1", "B-2"])] {
        assert_eq!(shop.hold_for(buyer, &seats).send(&shop.web.public).await.status, 201);
    }
    let fresh = shop.fresh().await;
    // The topic has to have seen both holds, or the second comes as an event of its own.
    let mut other = Watcher::open(&shop.web, &shop.stream(), None).await;
    other.until_shown(&fresh).await;

    watcher.told.clear();
    let mut watcher = watcher.resume(&shop.web, &shop.stream()).await;
    watcher.until_shown(&fresh).await;
    assert_eq!(watcher.told, ["changes"], "one event for all that was missed");
    for strange in ["garbage", "0-1", &cut_at.replace('-', "-9")] {
        let mut watcher = Watcher::open(&shop.web, &shop.stream(), Some(strange)).await;
        watcher.until_shown(&fresh).await;
        assert_eq!(watcher.told, ["reset", "snapshot"], "{strange}");
    }
}

// A-S2: snapshot and changes are joined, whenever a viewer comes and however often it is cut off. I6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_viewer_ends_with_what_a_fresh_reading_shows() {
    const VIEWERS: usize = 40;
    const ROUNDS: usize = 90;
    let shop = Shop::open(SalePlan::default()).await;
    let path = shop.stream();
    let selling = async {
        for round in 0..ROUNDS {
            let seat = format!("{}-{}", ["A", "B", "C"][round % 3], round % 10 + 1);
            let held = shop.sale.hold(shop.stores(), "u1", &[&seat]).await;
            if let (Ok(held), true) = (held, round % 2 == 0) {
                cancel_reservation(shop.stores(), &Access::Any, held.id, CancelReason::User).await.unwrap();
            }
        }
    };
    let watching = futures::stream::iter(0..VIEWERS).map(|viewer| {
        let (web, path) = (shop.web.clone(), path.clone());
        async move {
            let mut watcher = Watcher::open(&web, &path, None).await;
            for event in 0..viewer % 5 {
                watcher.take().await;
                if (viewer + event) % 2 == 0 {
                    watcher = watcher.resume(&web, &path).await;
                }
            }
            watcher
        }
    });
    let (watchers, ()) = futures::join!(watching.buffer_unordered(VIEWERS).collect::<Vec<_>>(), selling);
    let fresh = shop.fresh().await;
    assert!(fresh.values().any(|status| status == "held"));
    for mut watcher in watchers {
        tokio::time::timeout(PATIENCE, watcher.until_shown(&fresh)).await.expect("it catches up");
    }
}

// A-S4: who watches has nothing to do with who holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_passes_on_the_stream_without_any_worker() {
    let shop = Shop::open(SalePlan::default().ttl_ms(6_000)).await;
    let all_available = shop.fresh().await;
    let held = shop.hold_for("u1", &["A-1"]).send(&shop.web.public).await.json();
    let mut watcher = Watcher::open(&shop.web, &shop.stream(), None).await;
    watcher.until_shown(&shop.fresh().await).await;
    for _ in 0..50 {
        drop(Watcher::open(&shop.web, &shop.stream(), None).await);
    }
    let path = format!("/v1/reservations/{}", held["id"].as_str().unwrap());
    let now = Ask::new("GET", path).by(&shop.sales).send(&shop.web.public).await.json();
    assert_eq!((&now["status"], &now["expires_at"]), (&held["status"], &held["expires_at"]));
    shop.test.advance(6_000);
    watcher.until_shown(&all_available).await;
}

// A-S3: what a proxy needs to know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_says_that_it_must_not_be_kept_back() {
    let shop = Shop::open(SalePlan::default()).await;
    let response: Response = Ask::new("GET", shop.stream()).open(&shop.web.public).await;
    let header = |name: &str| response.headers().get(name).map_or("", |value| value.to_str().unwrap());
    assert_eq!(header(header::CONTENT_TYPE.as_str()), "text/event-stream");
    assert_eq!(header(header::CACHE_CONTROL.as_str()), "no-cache, no-transform");
    assert_eq!(header("x-accel-buffering"), "no");
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.unwrap().unwrap();
    assert!(first.starts_with(b"retry: "), "{first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_house_is_two_bits_a_seat() {
    let shop = Shop::open(SalePlan::of_rows(&[("B1", "A", 3), ("B2", "A", 5)])).await;
    assert_eq!(shop.hold_for("u1", &["A-2"]).send(&shop.web.public).await.status, 201);
    let path = format!("/v1/events/{}/stream", shop.sale.event);
    let mut body = Ask::new("GET", path).open(&shop.web.public).await.into_body().into_data_stream();
    let mut next = async || String::from_utf8(body.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(next().await.starts_with("retry: "));
    let snapshot = next().await;
    let data = snapshot.lines().find_map(|line| line.strip_prefix("data: ")).expect("it has data");
    let data: Value = serde_json::from_str(data).unwrap();
    let blocks: Vec<_> = data["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| (&block["block"], &block["count"], &block["seats"]))
        .collect();
    // Held is 1 in the second pair of bits: 0b0000_0100; five seats take two bytes.
    assert_eq!(serde_json::json!(blocks), serde_json::json!([["B1", 3, "BA=="], ["B2", 5, "AAA="]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_limited_and_refused_in_words() {
    let shop = Shop::open(SalePlan::default()).await;
    let stream = |query: &str| Ask::new("GET", format!("/v1/events/{}/stream{query}", shop.sale.event));
    for (ask, refusal) in [
        (stream("?block=B9"), (404, "not_found")),
        (stream("?form=json"), (422, "validation_failed")),
        (stream("?form=xml"), (422, "validation_failed")),
        (stream("?blok=B1"), (422, "validation_failed")),
        (Ask::new("GET", "/v1/events/0197f0a2-6a11-7c3b-9d2e-4f5a6b7c8d90/stream"), (404, "not_found")),
    ] {
        let told = format!("{ask:?}");
        assert_eq!(ask.send(&shop.web.public).await.refusal(), (refusal.0, refusal.1.to_owned()), "{told}");
    }
    for (max, per_address_max, refusal) in [(2, 9, (503, "overloaded")), (9, 2, (429, "rate_limited"))] {
        let mut settings = api_settings();
        settings.streams = StreamSettings { max, per_address_max };
        let web = Web::start_with(shop.stores(), settings).await;
        let first = stream("?block=B1").open(&web.public).await;
        let second = stream("?block=B1").open(&web.public).await;
        assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
        let third = stream("?block=B1").send(&web.public).await;
        assert_eq!(third.refusal(), (refusal.0, refusal.1.to_owned()));
        assert_eq!(third.header("retry-after"), "5");
        drop(first);
        until("the place to be free", async || {
            (stream("?block=B1").open(&web.public).await.status() == 200).then_some(())
        })
        .await;
    }
}
