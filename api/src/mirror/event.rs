//! One event of the mirror: its sheet, its mirrored blocks, and its summary.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant as Monotonic};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use domain::event::EventStatus;
use domain::flow::event_book::EventSheet;
use domain::id::EventId;
use domain::label::Label;
use domain::money::Money;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::block::MirroredBlock;
use super::frame::entity_tag;
use super::{Counts, EventSummary, LastUsed, Mirror, ReadError, keep_for, read};

/// How long the sheet is used before the book is asked, which trusts its own for a second.
const SHEET_FOR: Duration = Duration::from_millis(200);
/// How long readers wait for the book; then the sheet that is there serves them, for [`SHEET_AGAIN`].
const BOOK_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a sheet serves that could not be compared.
const SHEET_AGAIN: Duration = Duration::from_millis(1_000);
/// The longest that a summary stands after a change.
const KEPT_MAX: Duration = Duration::from_millis(50);
/// The longest that a summary stands while blocks are read from Postgres: no seat looks held for longer (I3).
const STANDBY_MAX: Duration = Duration::from_millis(1_000);
/// How many blocks of an event are made ready at once.
const BLOCKS_AT_ONCE: usize = 16;

/// An event of which something is mirrored.
pub(super) struct MirroredEvent {
    sheet: ArcSwap<TrustedSheet>,
    looking: tokio::sync::Mutex<()>,
    blocks: RwLock<HashMap<Label, Arc<MirroredBlock>>>,
    changes: Arc<AtomicU64>,
    summary: ArcSwapOption<StampedSummary>,
    summarising: tokio::sync::Mutex<()>,
    used: LastUsed,
}

struct TrustedSheet {
    sheet: Arc<EventSheet>,
    until: Monotonic,
}

struct StampedSummary {
    summary: Arc<EventSummary>,
    sheet: Arc<EventSheet>,
    changes: u64,
    offset_ms: i64,
    until: Monotonic,
    /// Until then it stands even if something changed.
    kept_until: Monotonic,
    /// The same where nothing is followed: all blocks may be old before the last is read.
    standby_until: Option<Monotonic>,
}

#[derive(Serialize)]
struct SummaryBody<'a> {
    event: EventId,
    version: u64,
    blocks: Vec<SummaryBlock<'a>>,
}

#[derive(Serialize)]
struct SummaryBlock<'a> {
    block: &'a Label,
    available: usize,
    held: usize,
    sold: usize,
    blocked: usize,
    from: Option<Money>,
}

impl MirroredEvent {
    pub(super) fn new(sheet: Arc<EventSheet>) -> Self {
        Self {
            sheet: ArcSwap::from_pointee(TrustedSheet { sheet, until: Monotonic::now() + SHEET_FOR }),
            looking: tokio::sync::Mutex::default(),
            blocks: RwLock::default(),
            changes: Arc::default(),
            summary: ArcSwapOption::empty(),
            summarising: tokio::sync::Mutex::default(),
            used: LastUsed::default(),
        }
    }

    /// The event's sheet, at most some 1.2 s old; older only while Postgres cannot say.
    pub(super) async fn sheet(&self, mirror: &Mirror, now: Monotonic) -> Result<Arc<EventSheet>, ReadError> {
        let trusted = self.sheet.load();
        if now < trusted.until {
            return Ok(Arc::clone(&trusted.sheet));
        }
        drop(trusted);
        let _one_looks = self.looking.lock().await;
        let trusted = self.sheet.load_full();
        if Monotonic::now() < trusted.until {
            return Ok(Arc::clone(&trusted.sheet));
        }
        let looked = tokio::time::timeout(BOOK_TIMEOUT, mirror.stores.book.sheet(trusted.sheet.event.id)).await;
        let (sheet, span) = match looked {
            Ok(Ok(Some(sheet))) => (sheet, SHEET_FOR),
            Ok(Ok(None)) => return Err(ReadError::UnknownEvent),
            Ok(Err(_)) | Err(_) => (Arc::clone(&trusted.sheet), SHEET_AGAIN),
        };
        self.sheet.store(Arc::new(TrustedSheet { sheet: Arc::clone(&sheet), until: Monotonic::now() + span }));
        Ok(sheet)
    }

    pub(super) fn is_on_sale(&self) -> bool {
        match self.sheet.load().sheet.event.status {
            EventStatus::OnSale | EventStatus::Preparing => true,
            EventStatus::Draft | EventStatus::Closed | EventStatus::Cancelled => false,
        }
    }

    pub(super) fn last_used(&self) -> u32 {
        self.used.get()
    }

    pub(super) fn known(&self, label: &Label) -> Option<Arc<MirroredBlock>> {
        read(&self.blocks).get(label).map(Arc::clone)
    }

    pub(super) fn all(&self) -> Vec<Arc<MirroredBlock>> {
        read(&self.blocks).values().map(Arc::clone).collect()
    }

    /// The mirrored block, and whether it is new.
    pub(super) fn mirror(
        &self,
        mirror: &Mirror,
        sheet: &Arc<EventSheet>,
        block: &domain::seat_map::Block,
    ) -> (Arc<MirroredBlock>, bool) {
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = blocks.get(&block.block) {
            return (Arc::clone(known), false);
        }
        let mirrored = MirroredBlock::start(mirror, Arc::clone(sheet), block, Arc::clone(&self.changes));
        blocks.insert(block.block.clone(), Arc::clone(&mirrored));
        (mirrored, true)
    }

    /// Forgets a block; whether it was there.
    pub(super) fn forget(&self, block: &Arc<MirroredBlock>) -> bool {
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        let is_there = blocks.get(&block.label).is_some_and(|known| Arc::ptr_eq(known, block));
        if is_there {
            blocks.remove(&block.label);
            self.changes.fetch_add(1, Ordering::Release);
        }
        is_there
    }

    /// The event's blocks by status of their seats.
    pub(super) async fn summary(
        self: &Arc<Self>,
        mirror: &Mirror,
        sheet: &Arc<EventSheet>,
        now: Monotonic,
    ) -> Result<Arc<EventSummary>, ReadError> {
        self.used.touch(mirror.second(now));
        if let Some(summary) = self.still(mirror, sheet, now) {
            return Ok(summary);
        }
        let _one_counts = self.summarising.lock().await;
        let began = Monotonic::now();
        if let Some(summary) = self.still(mirror, sheet, began) {
            return Ok(summary);
        }
        let (changes, offset_ms) = (self.changes.load(Ordering::Acquire), mirror.stores.redis.clock().offset_ms());
        // Gathered first: a closure that is kept across an await would keep this from being a handler's future.
        let counts: Vec<_> = sheet.map.blocks().iter().map(|block| self.count(mirror, sheet, block)).collect();
        let counted: Vec<(u64, Counts, Monotonic)> =
            stream::iter(counts).buffered(BLOCKS_AT_ONCE).try_collect().await?;
        let until = counted.iter().map(|(.., until)| *until).min().unwrap_or(now);
        let summary = Arc::new(encode(sheet, &counted));
        let (now, cost) = (Monotonic::now(), began.elapsed());
        let kept_until = now + keep_for(cost, KEPT_MAX);
        let standby = mirror.limits.standby.max(keep_for(cost, STANDBY_MAX));
        let standby_until = (summary.version == 0).then_some(now + standby);
        let (kept, sheet) = (Arc::clone(&summary), Arc::clone(sheet));
        let stamped = StampedSummary { summary: kept, sheet, changes, offset_ms, until, kept_until, standby_until };
        self.summary.store(Some(Arc::new(stamped)));
        Ok(summary)
    }

    async fn count(
        self: &Arc<Self>,
        mirror: &Mirror,
        sheet: &Arc<EventSheet>,
        block: &domain::seat_map::Block,
    ) -> Result<(u64, Counts, Monotonic), ReadError> {
        let mirrored = match self.known(&block.block) {
            Some(mirrored) => mirrored,
            None => mirror.mirror_block(self, sheet, &block.block)?,
        };
        mirrored.touch(mirror.second(Monotonic::now()));
        mirrored.counts(mirror, sheet).await
    }

    fn still(&self, mirror: &Mirror, sheet: &EventSheet, now: Monotonic) -> Option<Arc<EventSummary>> {
        let stamped = self.summary.load();
        let stamped = stamped.as_ref()?;
        let is_followed = (stamped.changes == self.changes.load(Ordering::Acquire) || now < stamped.kept_until)
            && now < stamped.until;
        let holds = (is_followed || stamped.standby_until.is_some_and(|until| now < until))
            && stamped.offset_ms == mirror.stores.redis.clock().offset_ms()
            && stamped.sheet.event.revision == sheet.event.revision
            && Arc::ptr_eq(&stamped.sheet.map, &sheet.map);
        holds.then(|| Arc::clone(&stamped.summary))
    }
}

fn encode(sheet: &EventSheet, counted: &[(u64, Counts, Monotonic)]) -> EventSummary {
    let versions: Vec<u64> = counted.iter().map(|(version, ..)| *version).collect();
    let version = whole_version(sheet, &versions);
    let blocks: Vec<(Label, Counts)> =
        sheet.map.blocks().iter().zip(counted).map(|(block, (_, counts, _))| (block.block.clone(), *counts)).collect();
    let body = SummaryBody {
        event: sheet.event.id,
        version,
        blocks: blocks
            .iter()
            .map(|(block, counts)| SummaryBlock {
                block,
                available: counts.available,
                held: counts.held,
                sold: counts.sold,
                blocked: counts.blocked,
                from: counts.from.map(|amount| Money { amount, currency: sheet.event.currency }),
            })
            .collect(),
    };
    let json = serde_json::to_vec(&body).unwrap_or_default();
    EventSummary { version, etag: entity_tag(&Sha256::digest(&json)), json: Bytes::from(json), blocks }
}

/// One version for all blocks: what their versions have grown by since the event was made, summed up. A block's counter
/// starts from the time in microseconds, so that the sum itself would soon be no exact number in JavaScript.
fn whole_version(sheet: &EventSheet, versions: &[u64]) -> u64 {
    if versions.contains(&0) {
        return 0;
    }
    let made = sheet.event.id.0.get_timestamp().map_or(0, |made| {
        let (seconds, nanos) = made.to_unix();
        seconds * 1_000_000 + u64::from(nanos / 1_000)
    });
    versions.iter().fold(0, |sum, version| sum.saturating_add(version.saturating_sub(made)))
}
