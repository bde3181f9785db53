//! Buyers and readers at an even pace, each answer noted with its time: what they see while something happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{Connection, get, post};
use crate::engine::Engine;
use crate::seed::Place;

/// Clients of each kind. Each sends at most one request in [`PACE`].
const CLIENTS: usize = 8;
/// The pace of a client.
const PACE: Duration = Duration::from_millis(20);

/// What a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A seat that nobody has and nobody else asks for.
    Hold,
    /// A seat that somebody else has.
    Thief,
    /// A block's seats.
    Read,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// What should.
    Right,
    /// Refused, though nobody had the seat.
    Refused,
    /// A block that shows a seat as what it is not; a seat sold twice.
    Wrong,
    /// An answer that says: later; or none.
    Error,
}

/// One answer.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// What was asked for.
    pub kind: Kind,
    /// What came.
    pub outcome: Outcome,
    /// When it was sent.
    pub sent: Instant,
    /// How long it took.
    pub took: Duration,
}

/// What the clients work on.
pub struct Field {
    /// The event.
    pub event: String,
    /// Seats to hold, each once.
    pub free: Vec<Place>,
    /// Seats that somebody has.
    pub taken: Vec<Place>,
    /// What seats must be shown as, by block, row and column; seats that are held meanwhile are not in it.
    pub shown: HashMap<(String, String, String), &'static str>,
    /// The blocks.
    pub blocks: Vec<String>,
}

/// Clients at work.
pub struct Load {
    ended: Arc<AtomicBool>,
    clients: JoinSet<Result<Vec<Sample>>>,
}

#[derive(Deserialize)]
struct BlockAnswer<'a> {
    #[serde(borrow)]
    seats: Vec<SeatAnswer<'a>>,
}

#[derive(Deserialize)]
struct SeatAnswer<'a> {
    column: &'a str,
    row: &'a str,
    status: &'a str,
}

impl Load {
    /// Sends the clients.
    pub fn start(engine: &Engine, field: Field) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (field, next) = (Arc::new(field), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for kind in [Kind::Hold, Kind::Thief, Kind::Read] {
            for number in 0..CLIENTS {
                let client = Client {
                    kind,
                    number,
                    addr: engine.addr.clone(),
                    key: engine.key.clone(),
                    field: Arc::clone(&field),
                    next: Arc::clone(&next),
                    ended: Arc::clone(&ended),
                };
                clients.spawn(client.run());
            }
        }
        Self { ended, clients }
    }

    /// Ends them. Returns every answer, by the time of its request.
    pub async fn end(mut self) -> Result<Vec<Sample>> {
        self.ended.store(true, Ordering::Relaxed);
        let mut samples = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            samples.append(&mut client??);
        }
        samples.sort_by_key(|sample| sample.sent);
        Ok(samples)
    }
}

struct Client {
    kind: Kind,
    number: usize,
    addr: String,
    key: String,
    field: Arc<Field>,
    next: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
}

impl Client {
    async fn run(self) -> Result<Vec<Sample>> {
        let mut connection = Connection::open(&self.addr).await?;
        let mut samples = Vec::new();
        let mut round = self.number * 7;
        while !self.ended.load(Ordering::Relaxed) {
            let sent = Instant::now();
            let Some((request, block)) = self.request(round) else { break };
            let outcome = match connection.send(&request).await {
                Ok(answer) => self.judge(answer.status, answer.body, block),
                Err(_cut) => {
                    connection = Connection::open(&self.addr).await?;
                    Outcome::Error
                }
            };
            samples.push(Sample { kind: self.kind, outcome, sent, took: sent.elapsed() });
            round += 1;
            tokio::time::sleep(PACE.saturating_sub(sent.elapsed())).await;
        }
        Ok(samples)
    }

    fn request(&self, round: usize) -> Option<(Vec<u8>, &str)> {
        let field = &*self.field;
        let hold = |place: &Place, buyer: String| {
            let seat = json!({ "block": place.block, "row": place.row_label, "column": place.column_label });
            let body = json!({ "seats": [seat], "buyer": buyer }).to_string();
            post(&format!("/v1/events/{}/reservations", field.event), &self.key, "application/json", &body)
        };
        match self.kind {
            Kind::Hold => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                Some((hold(field.free.get(number)?, format!("load-{number}")), ""))
            }
            Kind::Thief => {
                let place = field.taken.get(round * 31 % field.taken.len().max(1))?;
                Some((hold(place, format!("thief-{round}")), ""))
            }
            Kind::Read => {
                let block = field.blocks.get(round * 13 % field.blocks.len())?;
                Some((get(&format!("/v1/events/{}/blocks/{block}/seats", field.event)), block))
            }
        }
    }

    fn judge(&self, status: u16, body: &[u8], block: &str) -> Outcome {
        match (self.kind, status) {
            (Kind::Hold, 201) | (Kind::Thief, 409) => Outcome::Right,
            (Kind::Hold, 409) => Outcome::Refused,
            (Kind::Thief, 201) => Outcome::Wrong,
            (Kind::Read, 200) => match serde_json::from_slice::<BlockAnswer<'_>>(body) {
                Ok(answer) if self.is_right(block, &answer) => Outcome::Right,
                Ok(_) | Err(_) => Outcome::Wrong,
            },
            _ => Outcome::Error,
        }
    }

    fn is_right(&self, block: &str, answer: &BlockAnswer<'_>) -> bool {
        answer.seats.iter().all(|seat| {
            let place = (block.to_owned(), seat.row.to_owned(), seat.column.to_owned());
            self.field.shown.get(&place).is_none_or(|wanted| *wanted == seat.status)
        })
    }
}

/// Counts of one kind in a span, and the slowest answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// As they should be.
    pub right: u64,
    /// Refused without need.
    pub refused: u64,
    /// Wrong.
    pub wrong: u64,
    /// Errors.
    pub errors: u64,
    /// The slowest.
    pub slowest: Duration,
}

/// Counts answers of a kind.
pub fn count<'a>(samples: impl Iterator<Item = &'a Sample>, kind: Kind) -> Counts {
    let mut counts = Counts::default();
    for sample in samples.filter(|sample| sample.kind == kind) {
        match sample.outcome {
            Outcome::Right => counts.right += 1,
            Outcome::Refused => counts.refused += 1,
            Outcome::Wrong => counts.wrong += 1,
            Outcome::Error => counts.errors += 1,
        }
        counts.slowest = counts.slowest.max(sample.took);
    }
    counts
}
