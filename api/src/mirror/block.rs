//! One mirrored block: its state, the encoded answer, and the one reading that all who wait for it share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant as Monotonic};

use arc_swap::ArcSwapOption;
use domain::flow::event_book::EventSheet;
use domain::flow::read_block::{SeatReading, read_block};
use domain::label::Label;
use domain::seat::SeatStatus;
use domain::store::pg::PgError;
use domain::store::redis::changes::{BlockChange, ChangeNotice, ChangedSeats, Subscription};
use domain::store::redis::keys::SeatKey;
use tokio::sync::Notify;

use super::frame::Frame;
use super::state::{Applied, BlockState, Change, Spans, Standing, StoreClock, What};
use super::{
    BlockView, Counts, LastUsed, Mirror, Picture, REFRESH_EVERY, ReadError, STANDBY_GRACE, Seen, keep_for, lock,
};

/// How often a reading is repeated because changes overtook it, before it is shown as it is.
const READINGS_MAX: usize = 3;
/// How long the first reader waits for the subscription before it reads without one.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(250);
/// The longest that an answer stands after a change.
const KEPT_MAX: Duration = Duration::from_millis(40);
/// After a failure everybody is told so at once, for this long.
const FAILED_FOR: Duration = Duration::from_millis(250);

/// A mirrored block.
pub(super) struct MirroredBlock {
    pub(super) label: Label,
    /// How many seats it had when it was first mirrored, for the limit.
    pub(super) seats: usize,
    known: Mutex<Known>,
    /// Counts what happens to `known`.
    changes: AtomicU64,
    /// The same for the whole event.
    event_changes: Arc<AtomicU64>,
    encoded: ArcSwapOption<Stamped<Arc<BlockView>>>,
    counted: ArcSwapOption<Stamped<(u64, Counts)>>,
    encoding: Mutex<()>,
    reading: tokio::sync::Mutex<()>,
    on_subscribed: Notify,
    subscription: OnceLock<Subscription>,
    used: LastUsed,
}

struct Known {
    state: BlockState,
    /// Whose map the state's seats are in the order of.
    sheet: Arc<EventSheet>,
    frame: Option<Arc<Frame>>,
    failed: Option<(Monotonic, Arc<PgError>)>,
}

/// Something made of `known`, and as long as what it is still true.
struct Stamped<T> {
    made: T,
    frame: Arc<Frame>,
    changes: u64,
    offset_ms: i64,
    /// A deadline passes then, or the picture is old.
    until: Monotonic,
    /// Until then it stands even if something changed.
    kept_until: Monotonic,
}

/// A block at one instant.
struct Look {
    frame: Arc<Frame>,
    version: u64,
    statuses: Vec<SeatStatus>,
    until: Monotonic,
    changes: u64,
}

impl MirroredBlock {
    /// Starts to follow a block of the sheet's event; nothing is read yet.
    pub(super) fn start(
        mirror: &Mirror,
        sheet: Arc<EventSheet>,
        block: &domain::seat_map::Block,
        event_changes: Arc<AtomicU64>,
    ) -> Arc<Self> {
        let spans = Spans { standby: mirror.limits.standby, standby_grace: STANDBY_GRACE, refresh: REFRESH_EVERY };
        let key = sheet.block_key(block);
        let mirrored = Arc::new(Self {
            label: block.block.clone(),
            seats: block.seats.len(),
            known: Mutex::new(Known { state: BlockState::new(spans), sheet, frame: None, failed: None }),
            changes: AtomicU64::new(0),
            event_changes,
            encoded: ArcSwapOption::empty(),
            counted: ArcSwapOption::empty(),
            encoding: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            on_subscribed: Notify::new(),
            subscription: OnceLock::new(),
            used: LastUsed::default(),
        });
        let weak: Weak<Self> = Arc::downgrade(&mirrored);
        let listener = Box::new(move |notice: ChangeNotice<'_>| {
            if let Some(mirrored) = weak.upgrade() {
                mirrored.hear(notice);
            }
        });
        let _first_time = mirrored.subscription.set(mirror.feed.follow(&key, listener));
        mirrored
    }

    pub(super) fn touch(&self, second: u32) {
        self.used.touch(second);
    }

    pub(super) fn is_followed(&self) -> bool {
        lock(&self.known).state.is_followed()
    }

    pub(super) fn last_used(&self) -> u32 {
        self.used.get()
    }

    /// The block's answer.
    pub(super) async fn view(
        &self,
        mirror: &Mirror,
        sheet: &Arc<EventSheet>,
        now: Monotonic,
    ) -> Result<Arc<BlockView>, ReadError> {
        let offset_ms = mirror.stores.redis.clock().offset_ms();
        if let Some(view) = self.still(&self.encoded, sheet, now, offset_ms) {
            return Ok(view);
        }
        self.make_ready(mirror, sheet).await?;
        let _one_encodes = lock(&self.encoding);
        let (now, offset_ms) = (Monotonic::now(), mirror.stores.redis.clock().offset_ms());
        if let Some(view) = self.still(&self.encoded, sheet, now, offset_ms) {
            return Ok(view);
        }
        let look = self.look(sheet, now, offset_ms).ok_or(ReadError::UnknownBlock)?;
        let counts = look.frame.count(&look.statuses);
        let (etag, json) = look.frame.encode(look.version, &look.statuses, &counts);
        let view = Arc::new(BlockView { version: look.version, etag, json, counts });
        metrics::counter!("holdfast_mirror_rebuilds_total").increment(1);
        self.counted.store(Some(Arc::new(stamp((look.version, counts), &look, offset_ms, now))));
        let kept_until = now + keep_for(now.elapsed(), KEPT_MAX);
        self.encoded.store(Some(Arc::new(stamp(Arc::clone(&view), &look, offset_ms, kept_until))));
        Ok(view)
    }

    /// The block's seats now; none where they are as they were `seen`.
    pub(super) async fn picture(
        self: &Arc<Self>,
        mirror: &Mirror,
        sheet: &Arc<EventSheet>,
        seen: Option<&Seen>,
    ) -> Result<Option<Picture>, ReadError> {
        self.make_ready(mirror, sheet).await?;
        let (now, offset_ms) = (Monotonic::now(), mirror.stores.redis.clock().offset_ms());
        let is_seen = seen.is_some_and(|seen| {
            // Another block may have taken the place of one that was forgotten: its changes are counted anew.
            Weak::ptr_eq(&seen.block, &Arc::downgrade(self))
                && seen.changes == self.changes.load(Ordering::Acquire)
                && seen.offset_ms == offset_ms
                && now < seen.until
        });
        if is_seen {
            return Ok(None);
        }
        let look = self.look(sheet, now, offset_ms).ok_or(ReadError::UnknownBlock)?;
        let seen = Seen { block: Arc::downgrade(self), changes: look.changes, offset_ms, until: look.until };
        Ok(Some(Picture { frame: look.frame, version: look.version, statuses: look.statuses, seen }))
    }

    /// The block's version and counts, and until when they are so if nothing is heard.
    pub(super) async fn counts(
        &self,
        mirror: &Mirror,
        sheet: &Arc<EventSheet>,
    ) -> Result<(u64, Counts, Monotonic), ReadError> {
        self.make_ready(mirror, sheet).await?;
        let (now, offset_ms) = (Monotonic::now(), mirror.stores.redis.clock().offset_ms());
        if let Some(counted) = self.counted.load_full()
            && self.holds(&counted, sheet, now, offset_ms)
        {
            return Ok((counted.made.0, counted.made.1, counted.until));
        }
        let look = self.look(sheet, now, offset_ms).ok_or(ReadError::UnknownBlock)?;
        let made = (look.version, look.frame.count(&look.statuses));
        self.counted.store(Some(Arc::new(stamp(made, &look, offset_ms, now))));
        Ok((made.0, made.1, look.until))
    }

    fn still<T: Clone>(
        &self,
        made: &ArcSwapOption<Stamped<T>>,
        sheet: &EventSheet,
        now: Monotonic,
        offset_ms: i64,
    ) -> Option<T> {
        let stamped = made.load();
        let stamped = stamped.as_ref()?;
        self.holds(stamped, sheet, now, offset_ms).then(|| stamped.made.clone())
    }

    fn holds<T>(&self, stamped: &Stamped<T>, sheet: &EventSheet, now: Monotonic, offset_ms: i64) -> bool {
        (stamped.changes == self.changes.load(Ordering::Acquire) || now < stamped.kept_until)
            && now < stamped.until
            && stamped.offset_ms == offset_ms
            && stamped.frame.is_of(sheet)
    }

    fn look(&self, sheet: &Arc<EventSheet>, now: Monotonic, offset_ms: i64) -> Option<Look> {
        let mut known = lock(&self.known);
        // Another reader may have a newer map: the seats stand in its order then.
        let is_same_map = Arc::ptr_eq(&known.sheet.map, &sheet.map);
        let sheet = if is_same_map { Arc::clone(sheet) } else { Arc::clone(&known.sheet) };
        let frame = match known.frame.take().filter(|frame| frame.is_of(&sheet)) {
            Some(frame) => frame,
            None => Arc::new(Frame::new(&sheet, sheet.map.block(&self.label)?)),
        };
        known.frame = Some(Arc::clone(&frame));
        let (statuses, until) = known.state.statuses(now, offset_ms);
        let changes = self.changes.load(Ordering::Acquire);
        Some(Look { frame, version: known.state.version(), statuses, until, changes })
    }

    /// Reads the block if it has to be read; the others wait, or go on with what is there.
    async fn make_ready(&self, mirror: &Mirror, sheet: &Arc<EventSheet>) -> Result<(), ReadError> {
        let _one_reads = match self.standing(sheet)? {
            Standing::Good => return Ok(()),
            Standing::Ageing => match self.reading.try_lock() {
                Ok(guard) if self.standing(sheet)? == Standing::Ageing => guard,
                Ok(_) | Err(_) => return Ok(()),
            },
            Standing::Missing => {
                let guard = self.reading.lock().await;
                if self.standing(sheet)? != Standing::Missing {
                    return Ok(());
                }
                guard
            }
        };
        match self.read(mirror, sheet).await {
            Err(ReadError::Store(error)) => {
                let mut known = lock(&self.known);
                let now = Monotonic::now();
                known.state.abandon_reading(now);
                known.failed = Some((now + FAILED_FOR, Arc::clone(&error)));
                match known.state.standing(now) {
                    Standing::Good | Standing::Ageing => Ok(()),
                    Standing::Missing => Err(ReadError::Store(error)),
                }
            }
            read => read,
        }
    }

    fn standing(&self, sheet: &EventSheet) -> Result<Standing, ReadError> {
        let known = lock(&self.known);
        let now = Monotonic::now();
        let is_same_map = Arc::ptr_eq(&known.sheet.map, &sheet.map);
        let standing = if is_same_map { known.state.standing(now) } else { Standing::Missing };
        match &known.failed {
            Some((until, error)) if standing != Standing::Good && now < *until => match standing {
                Standing::Missing => Err(ReadError::Store(Arc::clone(error))),
                Standing::Good | Standing::Ageing => Ok(Standing::Good),
            },
            _ => Ok(standing),
        }
    }

    async fn read(&self, mirror: &Mirror, sheet: &Arc<EventSheet>) -> Result<(), ReadError> {
        let block = sheet.map.block(&self.label).ok_or(ReadError::UnknownBlock)?;
        self.await_subscription(mirror).await;
        let _turn = mirror.readings.acquire().await;
        for _ in 0..READINGS_MAX {
            {
                let mut known = lock(&self.known);
                if !Arc::ptr_eq(&known.sheet.map, &sheet.map) {
                    known.state.distrust();
                    known.sheet = Arc::clone(sheet);
                }
                known.state.begin_reading();
            }
            let offset_ms = mirror.stores.redis.clock().offset_ms();
            let reading = read_block(&mirror.stores, sheet, block).await;
            let reading = reading.map_err(|error| ReadError::Store(Arc::new(error)))?;
            let clock = StoreClock { now_ms: reading.now_ms, at: Monotonic::now(), offset_ms };
            let mut known = lock(&self.known);
            // Time was moved meanwhile: nobody can say which of the two the store's clock was read in.
            let is_sound = mirror.stores.redis.clock().offset_ms() == offset_ms;
            let continues = known.state.end_reading(reading, clock);
            known.failed = None;
            self.bump();
            if continues && is_sound {
                return Ok(());
            }
            known.state.distrust();
            metrics::counter!("holdfast_mirror_gaps_total").increment(1);
        }
        lock(&self.known).state.make_do(Monotonic::now());
        self.bump();
        Ok(())
    }

    /// Waits until every change is told, unless Redis is away.
    async fn await_subscription(&self, mirror: &Mirror) {
        let subscribed = self.on_subscribed.notified();
        if lock(&self.known).state.is_subscribed() || !mirror.feed.is_connected() {
            return;
        }
        let _read_without_it = tokio::time::timeout(SUBSCRIBE_TIMEOUT, subscribed).await;
    }

    fn hear(&self, notice: ChangeNotice<'_>) {
        let mut known = lock(&self.known);
        let applied = match notice {
            ChangeNotice::Subscribed => {
                known.state.subscribed();
                self.on_subscribed.notify_waiters();
                Applied::Yes
            }
            ChangeNotice::Lost => {
                known.state.lost();
                Applied::Yes
            }
            ChangeNotice::Unreadable => {
                known.state.distrust();
                Applied::ReadAgain
            }
            ChangeNotice::Changed(change) => {
                let change = self.find_seats(&known.sheet, change);
                known.state.apply(change)
            }
        };
        match applied {
            Applied::Known => {}
            Applied::Yes => self.bump(),
            Applied::ReadAgain => {
                metrics::counter!("holdfast_mirror_gaps_total").increment(1);
                self.bump();
            }
        }
    }

    /// The change with its seats found; a seat that the map does not have means that the map is old.
    fn find_seats(&self, sheet: &EventSheet, change: &BlockChange) -> Change {
        let what = match &change.what {
            ChangedSeats::Reload => What::Reload,
            ChangedSeats::Now { status, deadline_ms, seats } => {
                let first = sheet.map.block(&self.label).map_or(0, |block| block.seats.start);
                let find = |seat: &SeatKey| {
                    let index = sheet.map.index_at(&self.label, &seat.column, &seat.row)?;
                    u32::try_from(index.checked_sub(first)?).ok()
                };
                let seat = SeatReading { status: *status, deadline_ms: *deadline_ms };
                match seats.iter().map(find).collect::<Option<Vec<u32>>>() {
                    Some(indices) => What::Now { seat, indices },
                    None => What::Reload,
                }
            }
        };
        Change { version: change.version, what }
    }

    /// Called with `known` locked, after it changed.
    fn bump(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        self.event_changes.fetch_add(1, Ordering::Release);
    }
}

fn stamp<T>(made: T, look: &Look, offset_ms: i64, kept_until: Monotonic) -> Stamped<T> {
    let Look { frame, version: _, statuses: _, until, changes } = look;
    Stamped { made, frame: Arc::clone(frame), changes: *changes, offset_ms, until: *until, kept_until }
}
