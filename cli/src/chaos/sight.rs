//! What readers are shown, beside what clients know: how soon a seat is seen free after its deadline, and whether one
//! looks held for longer.

use std::collections::HashMap;
use std::sync::Mutex;

use simulation::chaos::books::Books;
use simulation::chaos::history::{SeatOf, Sighting};

use super::record::locked;

/// A seat may look held for so long after its deadline, in ms.
const LOOKS_HELD_MS: i64 = 1_000;
/// Sightings kept: enough for any run, and little memory.
const SIGHTINGS_MAX: usize = 500_000;

/// A seat whose buyer walked away, and when it was first seen free or another buyer's.
#[derive(Debug, Clone)]
pub struct Freed {
    /// Which.
    pub seat: SeatOf,
    /// When its reservation was over.
    pub deadline_ms: i64,
    /// When somebody was shown that it is free, or was told that it is theirs.
    pub seen_ms: i64,
}

#[derive(Debug, Default)]
struct Seats {
    /// Until when a client knows each seat to be held.
    held_until: HashMap<SeatOf, i64>,
    /// Deadlines of reservations that were left to expire, whose seats nobody has seen free yet.
    awaited: HashMap<SeatOf, i64>,
    freed: Vec<Freed>,
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
                let seen_ms = created_ms.max(deadline_ms);
                watched.freed.push(Freed { seat: seat.clone(), deadline_ms, seen_ms });
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
                watched.freed.push(Freed { seat, deadline_ms, seen_ms: done_ms });
            }
            return;
        }
        let is_known = watched.held_until.get(&seat).is_some_and(|until_ms| sent_ms <= *until_ms + LOOKS_HELD_MS);
        if !is_known && watched.sightings.len() < SIGHTINGS_MAX {
            watched.sightings.push(Sighting { seat, at_ms: sent_ms });
        }
    }

    /// What was seen: sightings in doubt, and how seats became free.
    #[must_use]
    pub fn take(&self) -> (Vec<Sighting>, Vec<Freed>) {
        let mut watched = locked(&self.0);
        (std::mem::take(&mut watched.sightings), std::mem::take(&mut watched.freed))
    }
}

/// From each deadline to when the seat was seen free, in ms. A reservation that was made after the deadline ends the wait
/// too: its own buyer may never have learned of it.
#[must_use]
pub fn lags_ms(freed: &[Freed], books: &Books) -> Vec<i64> {
    let mut made: HashMap<(&str, i64), Vec<i64>> = HashMap::new();
    for row in books.reservations.values() {
        for seat in &row.seats {
            made.entry((&row.event, *seat)).or_default().push(row.created_ms);
        }
    }
    let lag_ms = |freed: &Freed| {
        let made = made.get(&(freed.seat.event.as_str(), freed.seat.seat)).into_iter().flatten();
        let next = made.filter(|made_ms| **made_ms >= freed.deadline_ms).min().copied();
        next.unwrap_or(i64::MAX).min(freed.seen_ms) - freed.deadline_ms
    };
    freed.iter().map(lag_ms).collect()
}

#[cfg(test)]
mod tests {
    use simulation::chaos::books::Reservation;

    use super::*;

    #[test]
    fn a_lag_ends_when_a_reader_or_any_next_reservation_has_the_seat() {
        let sight = Sight::default();
        sight.held("e", &[1, 2, 3], 0, 1_000);
        sight.abandoned("e", &[1, 2, 3], 1_000);
        sight.seen("e", 1, false, (999, 1_200));
        sight.seen("e", 1, false, (1_010, 1_020));
        sight.held("e", &[2], 1_007, 2_007);
        sight.seen("e", 3, true, (1_900, 1_910));
        sight.seen("e", 3, true, (2_001, 2_010));
        sight.seen("e", 3, false, (9_000, 9_001));
        let (sightings, freed) = sight.take();
        assert_eq!(sightings.len(), 1, "one second past the deadline is in doubt");
        let mut books = Books::default();
        assert_eq!(lags_ms(&freed, &books), [20, 7, 8_001]);
        let next = Reservation { event: "e".to_owned(), seats: vec![3], created_ms: 1_003, ..Reservation::default() };
        books.reservations.insert("r".to_owned(), next);
        assert_eq!(lags_ms(&freed, &books), [20, 7, 3], "it was somebody's, who never learned of it");
    }
}
