//! What a mirror knows of one block, as a state machine without clock or connection: readings and seat changes go in,
//! the seats' statuses at any instant come out.
//!
//! A reading's version was taken before its buckets, so a change above it may be in them already; applying it again
//! leaves each seat at what its last change says. Changes that arrive while a reading is under way wait for it.

use std::time::{Duration, Instant as Monotonic};

use domain::flow::read_block::{BlockReading, SeatReading};
use domain::seat::SeatStatus;

/// How long an answer stands that is made of an ageing picture.
const AGEING_STEP: Duration = Duration::from_millis(20);
/// More changes than this during one reading: it is repeated instead of remembering them.
const WAITING_MAX: usize = 1_024;

/// A seat change whose seats are found: indices into the block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) what: What,
}

/// What a change says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// Read again.
    Reload,
    /// These seats are now so.
    Now { seat: SeatReading, indices: Vec<u32> },
}

/// The clock of the store that was read, carried on by this machine's monotonic one.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreClock {
    /// What the store said.
    pub(super) now_ms: i64,
    /// When the answer was here: the store's clock is never thought to be ahead of what it is.
    pub(super) at: Monotonic,
    /// The offset of the clock seam then.
    pub(super) offset_ms: i64,
}

impl StoreClock {
    fn ms_at(&self, now: Monotonic, offset_ms: i64) -> i64 {
        let since = i64::try_from(now.saturating_duration_since(self.at).as_millis()).unwrap_or(i64::MAX);
        self.now_ms.saturating_add(since).saturating_add(offset_ms - self.offset_ms)
    }

    /// When the store's clock will say `ms`; at once where it has.
    fn when(&self, ms: i64, offset_ms: i64) -> Monotonic {
        let ahead = ms.saturating_sub(self.now_ms).saturating_sub(offset_ms - self.offset_ms);
        self.at + Duration::from_millis(u64::try_from(ahead).unwrap_or(0))
    }
}

/// How far the picture can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It has to be read.
    None,
    /// It follows every change; it is compared with the store again from then on.
    Followed { refresh_at: Monotonic },
    /// Nothing follows it: good until then.
    Standby { until: Monotonic },
}

/// Whether a block can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// As it is.
    Good,
    /// As it is, while somebody reads it again.
    Ageing,
    /// Not before it is read.
    Missing,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Applied {
    /// The picture has changed.
    Yes,
    /// It was known, or is in the reading that is under way.
    Known,
    /// Some were missed, or it asks for it: the block has to be read.
    ReadAgain,
}

/// How long pictures last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spans {
    /// A picture that nothing follows.
    pub(super) standby: Duration,
    /// How much longer such a picture is shown while it is read again.
    pub(super) standby_grace: Duration,
    /// When a followed picture is compared with the store again.
    pub(super) refresh: Duration,
}

/// One block.
#[derive(Debug)]
pub(super) struct BlockState {
    seats: Vec<SeatReading>,
    version: u64,
    clock: Option<StoreClock>,
    trust: Trust,
    subscribed: bool,
    waiting: Option<Vec<Change>>,
    spans: Spans,
}

impl BlockState {
    pub(super) fn new(spans: Spans) -> Self {
        Self { seats: Vec::new(), version: 0, clock: None, trust: Trust::None, subscribed: false, waiting: None, spans }
    }

    pub(super) fn is_subscribed(&self) -> bool {
        self.subscribed
    }

    pub(super) fn is_followed(&self) -> bool {
        matches!(self.trust, Trust::Followed { .. })
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn standing(&self, now: Monotonic) -> Standing {
        match self.trust {
            Trust::None => Standing::Missing,
            Trust::Followed { refresh_at } if now < refresh_at => Standing::Good,
            Trust::Followed { .. } => Standing::Ageing,
            Trust::Standby { until } if now < until => Standing::Good,
            Trust::Standby { until } if now < until + self.spans.standby_grace => Standing::Ageing,
            Trust::Standby { .. } => Standing::Missing,
        }
    }

    /// Every change from now on arrives here. A picture that nothing followed until now may have missed some.
    pub(super) fn subscribed(&mut self) {
        self.subscribed = true;
        if matches!(self.trust, Trust::Standby { .. }) {
            self.trust = Trust::None;
        }
    }

    /// Changes are missed from now on.
    pub(super) fn lost(&mut self) {
        self.subscribed = false;
        self.waiting = None;
        self.trust = Trust::None;
    }

    /// It has to be read again, for whatever reason; also what is being read now.
    pub(super) fn distrust(&mut self) {
        self.trust = Trust::None;
        self.waiting = None;
    }

    /// A reading is about to be asked for. One that begins before the subscription may miss what came in between.
    pub(super) fn begin_reading(&mut self) {
        self.waiting = self.subscribed.then(Vec::new);
    }

    /// The reading failed: what is known stays as it is, and is compared again a little later.
    pub(super) fn abandon_reading(&mut self, now: Monotonic) {
        self.waiting = None;
        if let Trust::Followed { refresh_at } = &mut self.trust {
            *refresh_at = now + self.spans.refresh;
        }
    }

    /// The reading is here. False where it has to be repeated: what came meanwhile does not continue it.
    pub(super) fn end_reading(&mut self, reading: BlockReading, clock: StoreClock) -> bool {
        let BlockReading { version, now_ms: _, seats } = reading;
        (self.seats, self.version, self.clock) = (seats, version, Some(clock));
        let waiting = self.waiting.take();
        // Version 0 is Postgres's: Redis is away or does not know the block, so no change can continue it.
        let Some(waiting) = waiting.filter(|_| self.subscribed && version > 0) else {
            self.trust = Trust::Standby { until: clock.at + self.spans.standby };
            return true;
        };
        self.trust = Trust::Followed { refresh_at: clock.at + self.spans.refresh };
        let spoilt = waiting.len() >= WAITING_MAX;
        let continues = waiting.into_iter().all(|change| self.apply(change) != Applied::ReadAgain);
        if spoilt {
            self.trust = Trust::None;
        }
        continues && !spoilt
    }

    /// Shows the last reading for a while although it was overtaken: so many changes come that none can be continued.
    pub(super) fn make_do(&mut self, now: Monotonic) {
        self.trust = Trust::Standby { until: now + self.spans.standby };
    }

    pub(super) fn apply(&mut self, change: Change) -> Applied {
        if let Some(waiting) = &mut self.waiting
            && waiting.len() < WAITING_MAX
        {
            waiting.push(change.clone());
        }
        match self.trust {
            Trust::None => Applied::Known,
            Trust::Standby { .. } => {
                self.trust = Trust::None;
                Applied::ReadAgain
            }
            Trust::Followed { .. } if change.version <= self.version => Applied::Known,
            Trust::Followed { .. } => match change.what {
                What::Now { seat, indices } if change.version == self.version + 1 => {
                    self.version = change.version;
                    for index in indices {
                        if let Some(known) = self.seats.get_mut(index as usize) {
                            *known = seat;
                        }
                    }
                    Applied::Yes
                }
                What::Now { .. } | What::Reload => {
                    self.trust = Trust::None;
                    Applied::ReadAgain
                }
            },
        }
    }

    /// Each seat's status now, and until when all of them stay so if nothing is heard.
    pub(super) fn statuses(&self, now: Monotonic, offset_ms: i64) -> (Vec<SeatStatus>, Monotonic) {
        let Some(clock) = &self.clock else { return (Vec::new(), now) };
        let now_ms = clock.ms_at(now, offset_ms);
        let mut next_ms: Option<i64> = None;
        let status = |seat: &SeatReading| {
            let status = seat.status_at(now_ms);
            if let (SeatStatus::Held, Some(deadline)) = (status, seat.deadline_ms) {
                next_ms = Some(next_ms.map_or(deadline, |next| next.min(deadline)));
            }
            status
        };
        let statuses = self.seats.iter().map(status).collect();
        let trusted = match self.trust {
            Trust::None => now,
            // While one reads it again the others need not each encode what is there.
            Trust::Followed { refresh_at: until } | Trust::Standby { until } if until <= now => now + AGEING_STEP,
            Trust::Followed { refresh_at: until } | Trust::Standby { until } => until,
        };
        let dies = next_ms.map(|ms| clock.when(ms, offset_ms));
        (statuses, dies.map_or(trusted, |dies| trusted.min(dies)))
    }
}

#[cfg(test)]
mod tests;
