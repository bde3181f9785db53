//! The block mirror: a copy of the blocks that are being read, in this process, fed by seat changes.
//!
//! Redis can give some thousands of block readings a second, a copy in the process several hundred thousand. A block is
//! read once when somebody first asks for it, however many ask at that moment; then it follows the block's seat changes,
//! and reads again where one was missed. Deadlines pass by its own clock, without any message (I3). The answer is
//! encoded when it is read after something changed, not before.
//!
//! While Redis is away the block is read from Postgres, a few times a second at most.

mod block;
mod event;
#[cfg(test)]
pub(crate) mod example;
mod frame;
mod state;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant as Monotonic};

use bytes::Bytes;
use domain::flow::Stores;
use domain::flow::event_book::EventSheet;
use domain::id::EventId;
use domain::label::Label;
use domain::seat::SeatStatus;
use domain::store::pg::PgError;
use domain::store::redis::changes::ChangeFeed;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

use block::MirroredBlock;
use event::MirroredEvent;
pub(crate) use frame::Frame;

/// A block's answer, shared by all who read it.
#[derive(Debug, Clone)]
pub struct BlockView {
    /// The block's version; 0 while it is read from Postgres, and then comparable with no other.
    pub version: u64,
    /// The strong entity tag of `json`, in its quotes.
    pub etag: String,
    /// The answer, encoded: `{event, block, version, seats: [{id, column, row, label, category, price, status}]}`.
    pub json: Bytes,
    /// Its seats by status.
    pub counts: Counts,
}

/// A block's seats by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Available.
    pub available: usize,
    /// Held.
    pub held: usize,
    /// Sold.
    pub sold: usize,
    /// Blocked.
    pub blocked: usize,
    /// The lowest price among available seats, minor units; none where none is available.
    pub from: Option<i64>,
}

/// A block's seats at one instant, for whoever looks again and again.
pub(crate) struct Picture {
    /// The parts of the block's answer that stay.
    pub(crate) frame: Arc<Frame>,
    /// The block's version; 0 while it is read from Postgres.
    pub(crate) version: u64,
    /// Each seat's status, in seat order.
    pub(crate) statuses: Vec<SeatStatus>,
    /// What to ask with the next time.
    pub(crate) seen: Seen,
}

/// What somebody has seen of a block.
#[derive(Clone)]
pub(crate) struct Seen {
    block: Weak<MirroredBlock>,
    changes: u64,
    offset_ms: i64,
    /// A deadline passes then, or the picture is old.
    until: Monotonic,
}

/// An event's blocks by status of their seats.
#[derive(Debug, Clone)]
pub struct EventSummary {
    /// Grows with every change of any block, alike in every process; 0 while a block is read from Postgres.
    pub version: u64,
    /// The strong entity tag of `json`, in its quotes.
    pub etag: String,
    /// The answer, encoded: `{event, version, blocks: [{block, available, held, sold, blocked, from}]}`.
    pub json: Bytes,
    /// The blocks, in the venue's order.
    pub blocks: Vec<(Label, Counts)>,
}

/// Why a block cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// There is no such event.
    #[error("there is no such event")]
    UnknownEvent,
    /// The event's venue has no such block.
    #[error("the event has no such block")]
    UnknownBlock,
    /// The stores failed; shared by all who waited for the same reading.
    #[error("the block cannot be read now")]
    Store(#[source] Arc<PgError>),
}

/// How much is mirrored, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct MirrorLimits {
    /// The most blocks at once; beyond it those go that nobody has read for longest.
    pub blocks_max: usize,
    /// The most seats at once, likewise. A seat costs some 250 bytes while its block is read.
    pub seats_max: usize,
    /// A block that nobody reads for so long is forgotten.
    pub idle: Duration,
    /// The same once the event is no longer on sale.
    pub idle_off_sale: Duration,
    /// How long a picture is good that nothing follows: while Redis is away, or does not know the block.
    pub standby: Duration,
}

impl Default for MirrorLimits {
    fn default() -> Self {
        Self {
            blocks_max: 8_192,
            seats_max: 400_000,
            idle: Duration::from_secs(60),
            idle_off_sale: Duration::from_secs(10),
            standby: Duration::from_millis(250),
        }
    }
}

/// How long a picture that is good no longer is still shown to others while one reads it again.
const STANDBY_GRACE: Duration = Duration::from_millis(1_750);
/// A followed picture is compared with the store now and then: clocks drift.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// The most blocks that are read from the stores at once: readers must not take the connections that holds need.
const READINGS_AT_ONCE: usize = 4;

/// The mirror of this process. Cheap to clone.
#[derive(Clone)]
pub struct BlockMirror(Arc<Mirror>);

/// What the clones share.
struct Mirror {
    stores: Stores,
    feed: ChangeFeed,
    limits: MirrorLimits,
    events: RwLock<HashMap<EventId, Arc<MirroredEvent>>>,
    readings: Semaphore,
    blocks: AtomicUsize,
    seats: AtomicUsize,
    started: Monotonic,
}

impl BlockMirror {
    /// A mirror of nothing yet. Must be called on a runtime, which runs its two tasks until the last clone is dropped.
    #[must_use]
    pub fn new(stores: Stores) -> Self {
        Self::with_limits(stores, MirrorLimits::default())
    }

    /// A mirror with limits of its own.
    #[must_use]
    pub fn with_limits(stores: Stores, limits: MirrorLimits) -> Self {
        let mirror = Arc::new(Mirror {
            feed: ChangeFeed::start(&stores.redis),
            stores,
            limits,
            events: RwLock::default(),
            readings: Semaphore::new(READINGS_AT_ONCE),
            blocks: AtomicUsize::new(0),
            seats: AtomicUsize::new(0),
            started: Monotonic::now(),
        });
        tokio::spawn(forget_idle(Arc::downgrade(&mirror)));
        Self(mirror)
    }

    /// A block as it is now, at most 50 ms old.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn block(&self, event: EventId, block: &Label) -> Result<Arc<BlockView>, ReadError> {
        let now = Monotonic::now();
        let event = self.0.event(event).await?;
        let sheet = event.sheet(&self.0, now).await?;
        let mirrored = match event.known(block) {
            Some(mirrored) => mirrored,
            None => self.0.mirror_block(&event, &sheet, block)?,
        };
        mirrored.touch(self.0.second(now));
        mirrored.view(&self.0, &sheet, now).await
    }

    /// All blocks of an event by status of their seats, at most 100 ms old. Mirrors them all.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn blocks(&self, event: EventId) -> Result<Arc<EventSummary>, ReadError> {
        let now = Monotonic::now();
        let event = self.0.event(event).await?;
        let sheet = event.sheet(&self.0, now).await?;
        event.summary(&self.0, &sheet, now).await
    }

    /// The event as it is now: its map, prices and rules.
    ///
    /// # Errors
    /// [`ReadError`].
    pub(crate) async fn sheet(&self, event: EventId) -> Result<Arc<EventSheet>, ReadError> {
        self.0.event(event).await?.sheet(&self.0, Monotonic::now()).await
    }

    /// A block's seats as they are now; none where they are as they were `seen`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub(crate) async fn picture(
        &self,
        sheet: &Arc<EventSheet>,
        block: &Label,
        seen: Option<&Seen>,
    ) -> Result<Option<Picture>, ReadError> {
        let event = self.0.event(sheet.event.id).await?;
        let mirrored = match event.known(block) {
            Some(mirrored) => mirrored,
            None => self.0.mirror_block(&event, sheet, block)?,
        };
        mirrored.touch(self.0.second(Monotonic::now()));
        mirrored.picture(&self.0, sheet, seen).await
    }

    /// Whether a block is mirrored and follows every change: the next reading needs no store.
    #[must_use]
    pub fn follows(&self, event: EventId, block: &Label) -> bool {
        let event = read(&self.0.events).get(&event).map(Arc::clone);
        event.and_then(|event| event.known(block)).is_some_and(|block| block.is_followed())
    }

    /// How many blocks are mirrored.
    #[must_use]
    pub fn mirrored_blocks(&self) -> usize {
        self.0.blocks.load(Ordering::Relaxed)
    }
}

impl Mirror {
    async fn event(&self, id: EventId) -> Result<Arc<MirroredEvent>, ReadError> {
        let known = read(&self.events).get(&id).map(Arc::clone);
        if let Some(event) = known {
            return Ok(event);
        }
        let sheet = self.stores.book.sheet(id).await.map_err(|error| ReadError::Store(Arc::new(error)))?;
        let sheet = sheet.ok_or(ReadError::UnknownEvent)?;
        let mut events = self.events.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(events.entry(id).or_insert_with(|| Arc::new(MirroredEvent::new(sheet)))))
    }

    /// Begins to mirror a block; those that nobody has read for longest make room.
    fn mirror_block(
        &self,
        event: &Arc<MirroredEvent>,
        sheet: &Arc<EventSheet>,
        label: &Label,
    ) -> Result<Arc<MirroredBlock>, ReadError> {
        let block = sheet.map.block(label).ok_or(ReadError::UnknownBlock)?;
        let (mirrored, is_new) = event.mirror(self, sheet, block);
        if is_new {
            self.blocks.fetch_add(1, Ordering::Relaxed);
            self.seats.fetch_add(mirrored.seats, Ordering::Relaxed);
            self.make_room(&mirrored);
            self.report();
        }
        Ok(mirrored)
    }

    fn make_room(&self, newest: &Arc<MirroredBlock>) {
        let too_many = || {
            self.blocks.load(Ordering::Relaxed) > self.limits.blocks_max
                || self.seats.load(Ordering::Relaxed) > self.limits.seats_max
        };
        if !too_many() {
            return;
        }
        let events: Vec<Arc<MirroredEvent>> = read(&self.events).values().map(Arc::clone).collect();
        let mut all: Vec<(u32, Arc<MirroredEvent>, Arc<MirroredBlock>)> = Vec::new();
        for event in events {
            for block in event.all() {
                all.push((block.last_used(), Arc::clone(&event), block));
            }
        }
        all.sort_by_key(|(used, ..)| *used);
        for (_, event, block) in all {
            if !too_many() {
                return;
            }
            if !Arc::ptr_eq(&block, newest) {
                self.forget(&event, &block);
            }
        }
    }

    fn forget(&self, event: &MirroredEvent, block: &Arc<MirroredBlock>) {
        if event.forget(block) {
            self.blocks.fetch_sub(1, Ordering::Relaxed);
            self.seats.fetch_sub(block.seats, Ordering::Relaxed);
        }
    }

    /// Forgets what nobody has read for a while.
    fn forget_idle(&self) {
        let now = self.second(Monotonic::now());
        let events: Vec<(EventId, Arc<MirroredEvent>)> =
            read(&self.events).iter().map(|(id, event)| (*id, Arc::clone(event))).collect();
        for (id, event) in events {
            let idle = if event.is_on_sale() { self.limits.idle } else { self.limits.idle_off_sale };
            let is_idle = |used: u32| u64::from(now.saturating_sub(used)) >= idle.as_secs().max(1);
            let summary_used = event.last_used();
            for block in event.all() {
                if is_idle(block.last_used().max(summary_used)) {
                    self.forget(&event, &block);
                }
            }
            if is_idle(summary_used) {
                let mut events = self.events.write().unwrap_or_else(PoisonError::into_inner);
                // Two hold it, the map and this loop: no reader is about to mirror a block of it.
                if event.all().is_empty() && Arc::strong_count(&event) == 2 {
                    events.remove(&id);
                }
            }
        }
        self.report();
    }

    fn report(&self) {
        let blocks = u32::try_from(self.blocks.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        metrics::gauge!("holdfast_mirror_blocks").set(f64::from(blocks));
    }

    /// Seconds since the mirror began, for what is used when.
    fn second(&self, now: Monotonic) -> u32 {
        u32::try_from(now.saturating_duration_since(self.started).as_secs()).unwrap_or(u32::MAX)
    }
}

async fn forget_idle(mirror: Weak<Mirror>) {
    let Some(every) = mirror.upgrade().map(|mirror| mirror.limits.idle_off_sale.min(mirror.limits.idle) / 4) else {
        return;
    };
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(mirror) = mirror.upgrade() else { return };
        mirror.forget_idle();
    }
}

/// When something was last used, in seconds since the mirror began.
#[derive(Default)]
struct LastUsed(AtomicU32);

impl LastUsed {
    /// Written once a second only: readers on other cores keep their cache line.
    fn touch(&self, second: u32) {
        if self.0.load(Ordering::Relaxed) != second {
            self.0.store(second, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long an encoded answer may stand although something changed: in proportion to what it cost, so that encoding
/// never takes more than a few percent of a core for each block, and never longer than `most`.
fn keep_for(cost: Duration, most: Duration) -> Duration {
    most.min(cost * 32)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}
