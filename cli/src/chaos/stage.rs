//! The house that is sold: a venue, and always a few events with seats left, so that a sale lasts as long as its run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::client::{Ask, Client, Got};
use super::record::Kind;
use crate::output::tell;

/// Blocks of each event.
pub const BLOCKS: [&str; 4] = ["A", "B", "C", "D"];
const ROWS: usize = 5;
const SEATS_PER_ROW: usize = 10;
/// A hold lasts so long, in seconds: short, so that many expire in a run.
pub const HOLD_TTL_S: i64 = 8;
/// Events that have seats left, at any time.
const ON_SALE: usize = 3;
/// An event of whose seats so many in a hundred are sold is left alone, and another is opened.
const SOLD_OUT_PERCENT: usize = 70;
const OPEN_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// An event on sale.
#[derive(Debug)]
pub struct Event {
    /// Its id.
    pub id: String,
    sold: [AtomicUsize; BLOCKS.len()],
}

/// The venue and its events.
#[derive(Debug)]
pub struct Stage {
    client: Client,
    venue: String,
    events: RwLock<Vec<Arc<Event>>>,
    made: AtomicUsize,
    is_failing: AtomicBool,
}

impl Event {
    /// Notes how many seats of a block are sold.
    pub fn note_sold(&self, block: usize, sold: usize) {
        if let Some(known) = self.sold.get(block) {
            known.fetch_max(sold, Ordering::Relaxed);
        }
    }

    fn is_sold_out(&self) -> bool {
        let sold: usize = self.sold.iter().map(|sold| sold.load(Ordering::Relaxed)).sum();
        sold * 100 >= BLOCKS.len() * ROWS * SEATS_PER_ROW * SOLD_OUT_PERCENT
    }
}

impl Stage {
    /// Imports the venue and puts the first events on sale; nothing is broken yet.
    ///
    /// # Errors
    /// The engine refuses.
    pub async fn build(client: Client, url: &str, key: &str) -> Result<Self> {
        let mut file = String::from("block,row,column,category\n");
        for block in BLOCKS {
            for place in 0..ROWS * SEATS_PER_ROW {
                let (row, column) = (place / SEATS_PER_ROW + 1, place % SEATS_PER_ROW + 1);
                file.push_str(&format!("{block},{row},{column},Seat\n"));
            }
        }
        let http = reqwest::Client::builder().no_proxy().build()?;
        let import = http.post(format!("{url}/v1/venues/import?format=csv&name=chaos&time_zone=Asia/Seoul"));
        let answer = import.bearer_auth(key).header("content-type", "text/csv").body(file).send().await?;
        let text = answer.error_for_status().context("the venue was not imported")?.text().await?;
        let answer: Value = serde_json::from_str(&text)?;
        let venue =
            answer["venue"].as_str().or(answer["venue"]["id"].as_str()).context("no venue was made")?.to_owned();
        let stage = Self {
            client,
            venue,
            events: RwLock::default(),
            made: AtomicUsize::new(0),
            is_failing: AtomicBool::new(false),
        };
        for _ in 0..ON_SALE {
            stage.open_event().await?;
        }
        Ok(stage)
    }

    /// The events with seats left, latest last.
    #[must_use]
    pub fn on_sale(&self) -> Vec<Arc<Event>> {
        let events = self.events.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let left: Vec<Arc<Event>> = events.iter().filter(|event| !event.is_sold_out()).cloned().collect();
        if left.is_empty() { events.clone() } else { left }
    }

    /// How many events were opened.
    #[must_use]
    pub fn events_opened(&self) -> usize {
        self.events.read().unwrap_or_else(std::sync::PoisonError::into_inner).len()
    }

    /// Opens another event whenever one is nearly sold, in the middle of whatever breaks.
    pub async fn keep_open(&self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let events = self.on_sale();
            let left = events.iter().filter(|event| !event.is_sold_out()).count();
            if left < ON_SALE {
                match self.open_event().await {
                    Ok(()) => self.is_failing.store(false, Ordering::Relaxed),
                    Err(error) if self.is_failing.swap(true, Ordering::Relaxed) => drop(error),
                    Err(error) => tell(&format!("          another event is not open yet: {error:#}")),
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn open_event(&self) -> Result<()> {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let plan = json!({
            "venue": self.venue, "title": format!("Evening {number}"), "currency": "KRW",
            "starts_at": format!("2031-{:02}-{:02}T19:00", number / 28 % 12 + 1, number % 28 + 1),
            "prices": { "Seat": 50_000 }, "hold_ttl_seconds": HOLD_TTL_S, "payment_window_seconds": HOLD_TTL_S,
            "extensions_max": 2, "seats_per_reservation_max": 4,
        });
        let create = Ask::post(Kind::Other, "/v1/events".to_owned(), Some(plan), format!("event-{number}"));
        let event = self.answer(&create).await?;
        let id = event["id"].as_str().context("no event was made")?.to_owned();
        let open = Ask {
            kind: Kind::Other,
            method: Method::POST,
            path: format!("/v1/events/{id}/open"),
            body: None,
            idempotency: None,
        };
        self.answer(&open).await?;
        let (look, begun) = (Ask::get(Kind::Other, format!("/v1/events/{id}")), Instant::now());
        while self.answer(&look).await?["status"] != "on_sale" {
            if begun.elapsed() > OPEN_LIMIT {
                bail!("{id} is not on sale after {} s", OPEN_LIMIT.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let event = Event { id, sold: Default::default() };
        self.events.write().unwrap_or_else(std::sync::PoisonError::into_inner).push(Arc::new(event));
        Ok(())
    }

    async fn answer(&self, ask: &Ask) -> Result<Value> {
        match self.client.insist(0, ask, 10).await.0 {
            Got::Done(body) => Ok(body),
            Got::Refused(code) => bail!("{} {}: {code}", ask.method, ask.path),
            Got::Nothing => bail!("{} {}: no answer", ask.method, ask.path),
        }
    }
}
