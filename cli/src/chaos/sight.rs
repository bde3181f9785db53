//! What readers are shown, beside what clients know: how soon a seat is seen free after its deadline, and whether one
//! looks held for longer.

use std::collections::HashMap;
use std::sync::Mutex;

use simulation::chaos::history::{SeatOf, Sighting};

use super::record::locked;

/// A seat may look held for so long after its deadline, in ms.
const LOOKS_HELD_MS: i64 = 1_000;
/// Sightings kept: enough for any run, and little memory.
const SIGHTINGS_MAX: usize = 500_000;

#[derive(Debug, Default)]
struct Seats {
    /// Until when a client knows each seat to be held.
    held_until: HashMap<SeatOf, i64>,
    /// Deadlines of reservations that were left to expire, whose seats nobody has seen free yet.
    awaited: HashMap<SeatOf, i64>,
    lags_ms: Vec<i64>,
    sightings: Vec<Sighting>,
}

/// Watches the seats.
#[derive(Debug, Default)]
pub struct Sight(Mutex<Seats>);

impl Sight {
    /// A client was told that these seats are its own until then.
    pub fn held(&self, event: &str, seats: &[i64], created_ms: i64, until_ms: i64) {
        let mut watched = locked(&self.0);
        for seat in seats {
            let seat = SeatOf { event: event.to_owned(), seat: *seat };
            if let Some(deadline_ms) = watched.awaited.remove(&seat) {
                watched.lags_ms.push((created_ms - deadline_ms).max(0));
            }
            let known = watched.held_until.entry(seat).or_insert(until_ms);
            *known = until_ms.max(*known);
        }
    }

    /// A client will do nothing more about these seats: they are expected to be free at their deadline.
    pub fn abandoned(&self, event: &str, seats: &[i64], deadline_ms: i64) {
        let mut watched = locked(&self.0);
        watched.awaited.extend(seats.iter().map(|seat| (SeatOf { event: event.to_owned(), seat: *seat }, deadline_ms)));
    }

    /// A reader was shown a seat, as available or as held.
    pub fn seen(&self, event: &str, seat: i64, is_held: bool, (sent_ms, done_ms): (i64, i64)) {
        let mut watched = locked(&self.0);
        let seat = SeatOf { event: event.to_owned(), seat };
        if !is_held {
            // What was asked before the deadline and answered after it says nothing.
            if watched.awaited.get(&seat).is_some_and(|deadline_ms| *deadline_ms <= sent_ms)
                && let Some(deadline_ms) = watched.awaited.remove(&seat)
            {
                watched.lags_ms.push(done_ms - deadline_ms);
            }
            return;
        }
        let is_known = watched.held_until.get(&seat).is_some_and(|until_ms| sent_ms <= *until_ms + LOOKS_HELD_MS);
        if !is_known && watched.sightings.len() < SIGHTINGS_MAX {
            watched.sightings.push(Sighting { seat, at_ms: sent_ms });
        }
    }

    /// What was seen: sightings in doubt, and the lags from deadline to free.
    #[must_use]
    pub fn take(&self) -> (Vec<Sighting>, Vec<i64>) {
        let mut watched = locked(&self.0);
        (std::mem::take(&mut watched.sightings), std::mem::take(&mut watched.lags_ms))
    }
}
