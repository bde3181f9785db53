//! What clients met: one sample per request, by its kind.

use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::runtime::clock::system_ms;
use serde::Serialize;

/// What a request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The seats of a block.
    Read,
    /// A hold.
    Hold,
    /// A payment.
    Pay,
    /// Anything else that a buyer asks for: extend, cancel, look at the reservation.
    Other,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// As asked.
    Done,
    /// Refused for a reason that is the buyer's: the problem's code.
    Refused(String),
    /// Not answered, or answered that it cannot be now: a word for how.
    Failed(String),
}

/// A request that ended.
#[derive(Debug, Clone)]
pub struct Sample {
    /// When it was sent, in ms after the load began.
    pub at_ms: i64,
    /// What it was for.
    pub kind: Kind,
    /// How long it took.
    pub took_us: u64,
    /// How it ended.
    pub ending: Ending,
}

/// Takes samples from everybody.
#[derive(Debug)]
pub struct Recorder {
    began_ms: i64,
    samples: Mutex<Vec<Sample>>,
}

impl Recorder {
    /// A recorder whose time begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self { began_ms: system_ms(), samples: Mutex::default() }
    }

    /// When its time began, in ms since the epoch.
    #[must_use]
    pub fn began_ms(&self) -> i64 {
        self.began_ms
    }

    /// Takes a sample.
    pub fn take(&self, sample: Sample) {
        locked(&self.samples).push(sample);
    }

    /// All samples so far.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        locked(&self.samples).clone()
    }

    /// How many samples of a kind ended well since the last look from `seen` on, and where to look next time.
    #[must_use]
    pub fn count_since(&self, seen: usize) -> (usize, [usize; 4]) {
        let samples = locked(&self.samples);
        let mut counts = [0; 4];
        for sample in samples.get(seen..).unwrap_or_default() {
            let slot = match (&sample.ending, sample.kind) {
                (Ending::Failed(_), _) => 3,
                (_, Kind::Read) => 0,
                (Ending::Done, Kind::Hold) => 1,
                (Ending::Done, Kind::Pay) => 2,
                _ => continue,
            };
            if let Some(count) = counts.get_mut(slot) {
                *count += 1;
            }
        }
        (samples.len(), counts)
    }
}

/// A lock whose holder panicked still guards whole values: each change is one step.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
