//! The crowd: buyers who read, hold, extend, cancel, pay or walk away, and a reader who only looks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::runtime::clock::system_ms;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};
use simulation::chaos::history::{Answer, Hold, Placed};
use tokio_util::sync::CancellationToken;

use super::client::{Ask, Client, Got};
use super::record::{Kind, locked};
use super::sight::Sight;
use super::stage::{BLOCKS, Event, Stage};

/// The reader looks at a few blocks so often.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// A request is sent at most so often under one key.
const TRIES: usize = 4;
/// How long a buyer waits for the end of a payment.
const PAY_PATIENCE_MS: i64 = 20_000;

/// What buyers share.
#[derive(Debug)]
pub struct Crowd {
    client: Client,
    stage: Arc<Stage>,
    sight: Sight,
    holds: Mutex<Vec<Hold>>,
    stop: CancellationToken,
}

/// A seat as a reader is shown it.
#[derive(Debug, Clone)]
struct Shown {
    id: i64,
    is_available: bool,
}

/// One buyer.
struct Buyer {
    crowd: Arc<Crowd>,
    number: usize,
    requests: usize,
    rng: StdRng,
}

/// What a buyer does with what it holds.
enum Plan {
    Abandon,
    Cancel,
    Pay,
}

impl Crowd {
    /// A crowd before this stage, until told to stop.
    #[must_use]
    pub fn new(client: Client, stage: Arc<Stage>, stop: CancellationToken) -> Self {
        Self { client, stage, sight: Sight::default(), holds: Mutex::default(), stop }
    }

    /// What readers were shown.
    #[must_use]
    pub fn sight(&self) -> &Sight {
        &self.sight
    }

    /// What buyers were told.
    #[must_use]
    pub fn take_holds(&self) -> Vec<Hold> {
        std::mem::take(&mut locked(&self.holds))
    }

    /// Looks at one block after another, of every event on sale, at each API process in turn.
    pub async fn look(self: Arc<Self>) {
        let mut turn = 0_usize;
        while !self.stop.is_cancelled() {
            for event in self.stage.on_sale() {
                turn += 1;
                // Each process is asked for each block, since the two turns have no common divisor with their counts.
                let _shown = self.read_block(turn / BLOCKS.len(), &event, turn % BLOCKS.len()).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn read_block(&self, api: usize, event: &Event, block: usize) -> Option<Vec<Shown>> {
        let label = BLOCKS.get(block)?;
        let sent_ms = system_ms();
        let path = format!("/v1/events/{}/blocks/{label}/seats", event.id);
        let Got::Done(body) = self.client.once(api, &Ask::get(Kind::Read, path)).await else { return None };
        let span = (sent_ms, system_ms());
        let (mut shown, mut sold) = (Vec::new(), 0);
        for seat in body["seats"].as_array()? {
            let id = seat["id"].as_str()?.parse().ok()?;
            let status = seat["status"].as_str()?;
            if status == "sold" {
                sold += 1;
            } else {
                self.sight.seen(&event.id, id, status == "held", span);
            }
            shown.push(Shown { id, is_available: status == "available" });
        }
        event.note_sold(block, sold);
        Some(shown)
    }

    /// A buyer who comes again and again, until told to stop.
    pub async fn buy(self: Arc<Self>, number: usize, seed: u64) {
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
        let mut buyer = Buyer { crowd: self, number, requests: 0, rng };
        while !buyer.crowd.stop.is_cancelled() {
            buyer.think(30..400).await;
            buyer.shop().await;
        }
    }
}

impl Buyer {
    async fn think(&mut self, span_ms: std::ops::Range<u64>) {
        let wait = Duration::from_millis(self.rng.random_range(span_ms));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.crowd.stop.cancelled() => {}
        }
    }

    /// One visit: look, hold, and whatever follows.
    async fn shop(&mut self) {
        let events = self.crowd.stage.on_sale();
        if events.is_empty() {
            return;
        }
        let event = Arc::clone(&events[self.rng.random_range(0..events.len())]);
        let block = self.rng.random_range(0..BLOCKS.len());
        let api = self.rng.random_range(0..self.crowd.client.apis());
        let Some(shown) = self.crowd.read_block(api, &event, block).await else { return };
        let seats = self.choose(&shown);
        if seats.is_empty() {
            return;
        }
        self.think(20..250).await;
        let hold = self.hold(api, &event.id, seats).await;
        locked(&self.crowd.holds).push(hold);
    }

    /// A few seats side by side: mostly available ones near the front, where everybody looks; sometimes just any.
    fn choose(&mut self, shown: &[Shown]) -> Vec<i64> {
        let count = self.rng.random_range(1..=4);
        let any = self.rng.random_range(0..100) < 15;
        let wanted: Vec<i64> = shown.iter().filter(|seat| any || seat.is_available).map(|seat| seat.id).collect();
        let front = wanted.len().min(if any { wanted.len() } else { 16 });
        if front == 0 {
            return Vec::new();
        }
        let first = self.rng.random_range(0..front);
        wanted.into_iter().skip(first).take(count).collect()
    }

    async fn hold(&mut self, api: usize, event: &str, seats: Vec<i64>) -> Hold {
        self.requests += 1;
        let buyer = format!("b{}-{}", self.number, self.requests);
        let names: Vec<String> = seats.iter().map(ToString::to_string).collect();
        let body = json!({ "seats": names, "buyer": buyer });
        let ask =
            Ask::post(Kind::Hold, format!("/v1/events/{event}/reservations"), Some(body), format!("hold-{buyer}"));
        let sent_ms = system_ms();
        let (got, was_repeated) = self.crowd.client.insist(api, &ask, TRIES).await;
        let done_ms = system_ms();
        let answer = match got {
            Got::Done(body) => match placed_of(&body) {
                Some(placed) => Answer::Placed(self.go_on(api, event, &seats, placed, &ask).await),
                None => Answer::Unknown,
            },
            // An earlier try may have been heard, and this one refused because of it.
            Got::Refused(_) if was_repeated => Answer::Unknown,
            Got::Refused(code) => Answer::Refused(code),
            Got::Nothing => Answer::Unknown,
        };
        Hold { buyer, event: event.to_owned(), seats, sent_ms, done_ms, answer }
    }

    /// What follows from an acknowledged hold.
    async fn go_on(&mut self, api: usize, event: &str, seats: &[i64], mut placed: Placed, ask: &Ask) -> Placed {
        let crowd = Arc::clone(&self.crowd);
        crowd.sight.held(event, seats, placed.created_ms, placed.deadline_ms);
        if self.rng.random_range(0..100) < 8
            && let Got::Done(body) = crowd.client.once(api + 1, ask).await
        {
            placed.repeated = body["id"].as_str().map(str::to_owned);
        }
        self.think(50..900).await;
        if self.rng.random_range(0..100) < 12 {
            self.extend(api, event, seats, &mut placed).await;
        }
        let plan = match self.rng.random_range(0..100) {
            0..35 => Plan::Abandon,
            35..50 => Plan::Cancel,
            _ => Plan::Pay,
        };
        match plan {
            Plan::Abandon => crowd.sight.abandoned(event, seats, placed.deadline_ms),
            Plan::Cancel => self.cancel(api, &mut placed).await,
            Plan::Pay => self.pay(api, &mut placed).await,
        }
        placed
    }

    async fn extend(&mut self, api: usize, event: &str, seats: &[i64], placed: &mut Placed) {
        let path = format!("/v1/reservations/{}/extend", placed.reservation);
        let ask = Ask::post(Kind::Other, path, None, format!("extend-{}", placed.reservation));
        if let (Got::Done(body), _) = self.crowd.client.insist(api, &ask, TRIES).await {
            learn(placed, &body);
            self.crowd.sight.held(event, seats, placed.created_ms, placed.deadline_ms);
        }
    }

    async fn cancel(&mut self, api: usize, placed: &mut Placed) {
        placed.cancel_sent_ms = Some(system_ms());
        let path = format!("/v1/reservations/{}", placed.reservation);
        let ask = Ask { kind: Kind::Other, method: Method::DELETE, path, body: None, idempotency: None };
        if let (Got::Done(_), _) = self.crowd.client.insist(api, &ask, TRIES).await {
            placed.cancel_told = true;
        }
    }

    async fn pay(&mut self, api: usize, placed: &mut Placed) {
        let token = match self.rng.random_range(0..100) {
            0..62 => "tok_ok",
            62..74 => "tok_decline",
            74..88 => "tok_delay_3s",
            88..97 => "tok_lost_answer",
            _ => "tok_silence",
        };
        placed.pay_sent_ms = Some(system_ms());
        let path = format!("/v1/reservations/{}/payments", placed.reservation);
        let body = json!({ "provider": "fake", "token": token });
        let ask = Ask::post(Kind::Pay, path, Some(body), format!("pay-{}", placed.reservation));
        match self.crowd.client.insist(api, &ask, TRIES).await.0 {
            Got::Done(body) => placed.payments.extend(body["id"].as_str().map(str::to_owned)),
            Got::Refused(_) | Got::Nothing => return,
        }
        self.await_end(api, placed).await;
    }

    async fn await_end(&mut self, api: usize, placed: &mut Placed) {
        let look = Ask::get(Kind::Other, format!("/v1/reservations/{}", placed.reservation));
        let until_ms = system_ms() + PAY_PATIENCE_MS;
        while system_ms() < until_ms && !self.crowd.stop.is_cancelled() {
            self.think(250..500).await;
            let turn = self.rng.random_range(0..2);
            let Got::Done(body) = self.crowd.client.once(api + turn, &look).await else { continue };
            learn(placed, &body);
            let is_declined =
                body["payments"].as_array().is_some_and(|all| all.iter().all(|it| it["status"] == "declined"));
            if placed.confirmed_told || placed.cancelled_told || is_declined {
                return;
            }
        }
    }
}

fn placed_of(body: &Value) -> Option<Placed> {
    let mut placed = Placed {
        reservation: body["id"].as_str()?.to_owned(),
        amount: body["amount"].as_i64()?,
        created_ms: ms_of(&body["created_at"])?,
        ..Placed::default()
    };
    learn(&mut placed, body);
    Some(placed)
}

/// Takes over what an answer tells of a reservation.
fn learn(placed: &mut Placed, body: &Value) {
    match body["status"].as_str() {
        Some("CONFIRMED") => placed.confirmed_told = true,
        Some("CANCELLED") => placed.cancelled_told = true,
        _ => placed.deadline_ms = ms_of(&body["expires_at"]).unwrap_or(0).max(placed.deadline_ms),
    }
}

fn ms_of(text: &Value) -> Option<i64> {
    chrono::DateTime::parse_from_rfc3339(text.as_str()?).ok().map(|at| at.timestamp_millis())
}
