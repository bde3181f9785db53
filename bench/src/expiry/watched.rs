//! The seat changes as a viewer of the whole house sees them: one stream of the API, in the compact form.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use uuid::Uuid;

use crate::ear::now_us;
use crate::seed::PendingSeat;
use crate::table::Lateness;

/// An available seat in two bits.
const AVAILABLE: u8 = 0;

#[derive(Deserialize)]
struct Told<'a> {
    #[serde(borrow)]
    blocks: Vec<Block<'a>>,
}

/// A block of a snapshot, or of changes.
#[derive(Deserialize)]
struct Block<'a> {
    block: &'a str,
    #[serde(default)]
    seats: Option<&'a str>,
    #[serde(default)]
    changes: Vec<(usize, u8)>,
}

struct Seen {
    /// Of each block the seats that were not seen available yet, and when they became so, ms.
    waited_for: HashMap<String, HashMap<usize, i64>>,
    lateness: Lateness,
    messages: u64,
}

impl Seen {
    fn hear(&mut self, data: &str, came_us: i64) -> Result<()> {
        self.messages += 1;
        let told: Told<'_> = serde_json::from_str(data)?;
        for block in told.blocks {
            let Some(waited_for) = self.waited_for.get_mut(block.block) else { continue };
            let mut available: Vec<usize> =
                block.changes.iter().filter(|(_, status)| *status == AVAILABLE).map(|(index, _)| *index).collect();
            if let Some(packed) = block.seats {
                let packed = STANDARD.decode(packed)?;
                let status = |index: usize| packed.get(index / 4).map(|four| four >> (index % 4 * 2) & 3);
                available.extend(waited_for.keys().filter(|index| status(**index) == Some(AVAILABLE)));
            }
            for index in available {
                if let Some(deadline_ms) = waited_for.remove(&index) {
                    self.lateness.record(came_us - deadline_ms * 1_000)?;
                }
            }
        }
        Ok(())
    }
}

/// A viewer.
pub struct Viewer {
    stream: TcpStream,
    seen: Arc<Mutex<Seen>>,
    thread: JoinHandle<Result<()>>,
}

impl Viewer {
    /// Watches an event; returns once the house as it is has been seen.
    pub fn watch(addr: &str, event: Uuid, seats: &[PendingSeat]) -> Result<Self> {
        let mut waited_for: HashMap<String, HashMap<usize, i64>> = HashMap::new();
        for seat in seats {
            let of_block = waited_for.entry(seat.block.clone()).or_default();
            of_block.insert(usize::try_from(seat.index)?, seat.deadline_ms);
        }
        let seen = Arc::new(Mutex::new(Seen { waited_for, lateness: Lateness::new()?, messages: 0 }));
        let mut stream = TcpStream::connect(addr).with_context(|| format!("cannot reach {addr}"))?;
        // Without chunks, which 1.0 does not know.
        stream.write_all(format!("GET /v1/events/{event}/stream HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n").as_bytes())?;
        let mut reader = BufReader::with_capacity(256 * 1024, stream.try_clone()?);
        let head = next_data(&mut reader)?.context("the stream told nothing")?;
        lock(&seen).hear(&head, now_us())?;
        let shared = Arc::clone(&seen);
        let thread = std::thread::spawn(move || {
            while let Some(data) = next_data(&mut reader)? {
                let came_us = now_us();
                lock(&shared).hear(&data, came_us)?;
            }
            Ok(())
        });
        Ok(Self { stream, seen, thread })
    }

    /// Waits until every seat was seen available, for so long at most.
    pub async fn wait(&self, limit: Duration) {
        let began = Instant::now();
        while began.elapsed() < limit && lock(&self.seen).waited_for.values().any(|seats| !seats.is_empty()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends it: how late each seat was seen, and in how many messages.
    pub fn end(self) -> Result<(Lateness, u64)> {
        let _already_closed = self.stream.shutdown(Shutdown::Both);
        match self.thread.join() {
            Ok(ended) => ended?,
            Err(_panic) => bail!("a viewer panicked"),
        }
        let mut seen = lock(&self.seen);
        Ok((std::mem::replace(&mut seen.lateness, Lateness::new()?), seen.messages))
    }
}

/// The data of the next event that has blocks in it; none at the end.
fn next_data(reader: &mut BufReader<TcpStream>) -> Result<Option<String>> {
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        if let Some(data) = line.strip_prefix("data: ").filter(|data| data.contains("\"blocks\"")) {
            return Ok(Some(data.to_owned()));
        }
        line.clear();
    }
    Ok(None)
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
