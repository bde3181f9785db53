//! What this process knows of events: rules, prices and seat maps, so that a hold or a read asks Postgres for none.
//!
//! An entry is trusted for a second; then its revision is compared, on the next use only. A hold made with an older one
//! is refused by its own statement in Postgres and repeated, so the book never decides anything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant as Monotonic};

use crate::event::Event;
use crate::id::{EventId, VenueId};
use crate::seat_map::{Seat, SeatMap};
use crate::store::pg::{Pg, PgError};
use crate::store::redis::keys::BlockKey;
use crate::time::{Instant, from_ms, to_ms};

/// How long an entry is trusted.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// Events that nobody asked for are forgotten after this.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// An event with its seat map, and what Postgres's clock said when it was looked at.
#[derive(Debug)]
pub struct EventSheet {
    /// The event.
    pub event: Event,
    /// Its venue's seats.
    pub map: Arc<SeatMap>,
    now_at_check: Instant,
    checked: Monotonic,
}

impl EventSheet {
    /// A sheet of an event, looked at just now, when Postgres's clock said `now`.
    #[must_use]
    pub fn new(event: Event, map: Arc<SeatMap>, now: Instant) -> Self {
        Self { event, map, now_at_check: now, checked: Monotonic::now() }
    }

    /// Postgres's clock, carried on by this machine's monotonic one: good for a refusal, never for an acceptance.
    #[must_use]
    pub fn now(&self) -> Instant {
        let since = i64::try_from(self.checked.elapsed().as_millis()).unwrap_or(i64::MAX);
        from_ms(to_ms(self.now_at_check).saturating_add(since))
    }

    /// Whether it was looked at before `since`.
    #[must_use]
    pub fn is_older_than(&self, since: Monotonic) -> bool {
        self.checked < since
    }

    /// A seat's price, minor units; none for a category without one, which cannot be sold.
    #[must_use]
    pub fn price(&self, seat: &Seat) -> Option<i64> {
        self.event.prices.get(&*seat.category).copied()
    }

    /// How keys name the block of a seat.
    #[must_use]
    pub fn block_key(&self, block: &crate::seat_map::Block) -> BlockKey {
        BlockKey { date: self.event.date_key.as_str().into(), block: block.block.clone() }
    }
}

struct Entry {
    sheet: Arc<EventSheet>,
    trusted_until: Monotonic,
    used: Monotonic,
}

/// A venue's map, which lives as long as an event that uses it, or as long as it is asked for.
struct KnownMap {
    version: i32,
    map: Arc<SeatMap>,
    used: Monotonic,
}

/// The book. Cheap to clone.
#[derive(Clone)]
pub struct EventBook {
    pg: Pg,
    entries: Arc<Mutex<HashMap<EventId, Entry>>>,
    maps: Arc<Mutex<HashMap<VenueId, KnownMap>>>,
    /// Held while Postgres is asked; when it last failed to answer.
    looking: Arc<tokio::sync::Mutex<Option<Monotonic>>>,
}

impl EventBook {
    /// An empty book.
    #[must_use]
    pub fn new(pg: Pg) -> Self {
        Self { pg, entries: Arc::default(), maps: Arc::default(), looking: Arc::default() }
    }

    /// An event, at most a second old; none where there is no such event.
    ///
    /// # Errors
    /// [`PgError`], unless an older entry can stand in: reading goes on while Postgres is away.
    pub async fn sheet(&self, id: EventId) -> Result<Option<Arc<EventSheet>>, PgError> {
        if let Some((sheet, true)) = self.known(id) {
            return Ok(Some(sheet));
        }
        // One looks, the others wait: a thousand readers of a second's end ask once.
        let mut failed = self.looking.lock().await;
        let known = match self.known(id) {
            Some((sheet, true)) => return Ok(Some(sheet)),
            Some((sheet, false)) => Some(sheet),
            None => None,
        };
        if failed.is_some_and(|at| at.elapsed() < TRUSTED_FOR) {
            // Those who waited behind a failure need not each find out for themselves.
            return known.map(Some).ok_or(PgError::Unavailable(sqlx::Error::PoolTimedOut));
        }
        let looked = self.look(id, known.as_deref()).await;
        let is_down = looked.as_ref().is_err_and(PgError::is_temporary);
        *failed = is_down.then(Monotonic::now);
        match known {
            Some(sheet) if is_down => {
                self.trust(id);
                Ok(Some(sheet))
            }
            _ => looked,
        }
    }

    /// An event that this process will not soon be asked for again: known already, or read and not kept. A seat map of
    /// 200,000 seats is many megabytes.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn sheet_in_passing(&self, id: EventId) -> Result<Option<Arc<EventSheet>>, PgError> {
        if self.known(id).is_some() {
            return self.sheet(id).await;
        }
        let checked = Monotonic::now();
        let Some((now_at_check, _)) = self.pg.now_if_event(id, None).await? else { return Ok(None) };
        let Some(event) = self.pg.find_event(id).await? else { return Ok(None) };
        let map = match self.known_map(event.venue).await?.1 {
            Some(map) => map,
            None => Arc::new(self.pg.load_seat_map(event.venue).await?),
        };
        Ok(Some(Arc::new(EventSheet { event, map, now_at_check, checked })))
    }

    /// An event as it was at `since` or later: what a refusal needs that an older look would have to answer for. Those
    /// who ask together share one look.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn sheet_since(&self, id: EventId, since: Monotonic) -> Result<Option<Arc<EventSheet>>, PgError> {
        let _one_looks = self.looking.lock().await;
        match self.known(id) {
            Some((sheet, _)) if !sheet.is_older_than(since) => Ok(Some(sheet)),
            Some((sheet, _)) => self.look(id, Some(&sheet)).await,
            None => self.look(id, None).await,
        }
    }

    /// An event as it is now.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn fresh_sheet(&self, id: EventId) -> Result<Option<Arc<EventSheet>>, PgError> {
        self.look(id, None).await
    }

    /// The seat map of a venue.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn seat_map(&self, venue: VenueId) -> Result<Arc<SeatMap>, PgError> {
        let (version, known) = self.known_map(venue).await?;
        if let Some(map) = known {
            return Ok(map);
        }
        let map = Arc::new(self.pg.load_seat_map(venue).await?);
        let mut maps = lock(&self.maps);
        maps.retain(|_, known| Arc::strong_count(&known.map) > 1 || known.used.elapsed() < FORGOTTEN_AFTER);
        maps.insert(venue, KnownMap { version, map: Arc::clone(&map), used: Monotonic::now() });
        Ok(map)
    }

    /// The version of a venue's map, and the map itself if that one is known.
    async fn known_map(&self, venue: VenueId) -> Result<(i32, Option<Arc<SeatMap>>), PgError> {
        let version = self.pg.find_venue(venue).await?.map_or(0, |venue| venue.version);
        let mut maps = lock(&self.maps);
        let known = maps.get_mut(&venue).filter(|known| known.version == version);
        let map = known.map(|known| {
            known.used = Monotonic::now();
            Arc::clone(&known.map)
        });
        Ok((version, map))
    }

    /// What is known of an event, and whether it is still trusted.
    fn known(&self, id: EventId) -> Option<(Arc<EventSheet>, bool)> {
        let mut entries = lock(&self.entries);
        let entry = entries.get_mut(&id)?;
        let now = Monotonic::now();
        entry.used = now;
        Some((Arc::clone(&entry.sheet), now < entry.trusted_until))
    }

    fn trust(&self, id: EventId) {
        if let Some(entry) = lock(&self.entries).get_mut(&id) {
            entry.trusted_until = Monotonic::now() + TRUSTED_FOR;
        }
    }

    async fn look(&self, id: EventId, known: Option<&EventSheet>) -> Result<Option<Arc<EventSheet>>, PgError> {
        let checked = Monotonic::now();
        let Some(now_at_check) = self.pg.now_if_event(id, known.map(|sheet| sheet.event.revision)).await? else {
            lock(&self.entries).remove(&id);
            return Ok(None);
        };
        let (now_at_check, unchanged) = now_at_check;
        let sheet = match known {
            Some(known) if unchanged => {
                EventSheet { event: known.event.clone(), map: Arc::clone(&known.map), now_at_check, checked }
            }
            _ => {
                let Some(event) = self.pg.find_event(id).await? else { return Ok(None) };
                let map = self.seat_map(event.venue).await?;
                EventSheet { event, map, now_at_check, checked }
            }
        };
        let sheet = Arc::new(sheet);
        let mut entries = lock(&self.entries);
        entries.retain(|_, entry| entry.used.elapsed() < FORGOTTEN_AFTER);
        let used = Monotonic::now();
        entries.insert(id, Entry { sheet: Arc::clone(&sheet), trusted_until: used + TRUSTED_FOR, used });
        Ok(Some(sheet))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
