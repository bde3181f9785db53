//! The seat changes as a reader hears them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use domain::label::Label;
use domain::store::redis::keys::{BlockKey, KeyScheme};
use serde::Deserialize;

use crate::ear::Ear;
use crate::seed::PendingSeat;
use crate::table::Lateness;

/// What a seat change says, as far as it matters here.
#[derive(Deserialize)]
struct Change<'a> {
    status: Option<&'a str>,
    #[serde(default, borrow)]
    seats: Vec<&'a str>,
    #[serde(default)]
    reload: bool,
}

struct Heard {
    /// Seats that nobody has said to be available yet, and when they became so, ms.
    waited_for: HashMap<String, i64>,
    lateness: Lateness,
    messages: u64,
    reloads: u64,
}

impl Heard {
    /// A block was healed in many seats at once: whoever reads it again sees all that had come due.
    fn reload(&mut self, block: &str, came_us: i64) -> Result<()> {
        let is_told = |key: &String, deadline_ms: &mut i64| {
            *deadline_ms * 1_000 <= came_us && key.strip_prefix(block).is_some_and(|rest| rest.starts_with(':'))
        };
        let told: Vec<i64> = self.waited_for.extract_if(is_told).map(|(_, deadline_ms)| deadline_ms).collect();
        for deadline_ms in told {
            self.lateness.record(came_us - deadline_ms * 1_000)?;
        }
        Ok(())
    }
}

/// Follows all blocks.
pub struct SeatChanges {
    ear: Ear,
    heard: Arc<Mutex<Heard>>,
}

/// What was heard.
pub struct Changes {
    /// Of each seat that was said to be available.
    pub lateness: Lateness,
    /// What else there was.
    pub note: String,
}

impl SeatChanges {
    /// Listens.
    pub fn follow(addr: &str, seats: &[PendingSeat]) -> Result<Self> {
        let keys = KeyScheme::new("", false)?;
        let waited_for = seats.iter().map(|seat| {
            let block = BlockKey { date: seat.date_key.as_str().into(), block: Label::parse(&seat.block)? };
            let key = keys.seat(&block, &Label::parse(&seat.column_label)?, &Label::parse(&seat.row_label)?);
            Ok((key, seat.deadline_ms))
        });
        let waited_for = waited_for.collect::<Result<HashMap<_, _>>>()?;
        let heard = Arc::new(Mutex::new(Heard { waited_for, lateness: Lateness::new()?, messages: 0, reloads: 0 }));
        let shared = Arc::clone(&heard);
        let hear = move |channel: &str, text: &[u8], came_us: i64| {
            let change: Change<'_> = serde_json::from_slice(text)?;
            let mut heard = shared.lock().unwrap_or_else(PoisonError::into_inner);
            heard.messages += 1;
            if change.reload {
                heard.reloads += 1;
                heard.reload(&channel.replacen("seatChanges:", "seat:", 1), came_us)?;
            }
            if change.status == Some("available") {
                for seat in change.seats {
                    if let Some(deadline_ms) = heard.waited_for.remove(seat) {
                        heard.lateness.record(came_us - deadline_ms * 1_000)?;
                    }
                }
            }
            Ok(())
        };
        Ok(Self { ear: Ear::listen(addr, "bench-seats", "seatChanges:*", Box::new(hear))?, heard })
    }

    /// Waits until every seat was heard of, for so long at most.
    pub async fn wait(&self, limit: Duration) {
        let began = Instant::now();
        while began.elapsed() < limit && !self.lock().waited_for.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends it.
    pub fn end(self) -> Result<Changes> {
        self.ear.end()?;
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut note = format!("{} messages", heard.messages);
        if heard.reloads > 0 {
            note.push_str(&format!(", {} say: read the block again", heard.reloads));
        }
        Ok(Changes { lateness: std::mem::replace(&mut heard.lateness, Lateness::new()?), note })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
