//! Which events the demo opens, where, when and for how much.

use std::collections::BTreeMap;

use chrono::{DateTime, Days, NaiveTime, TimeDelta, Utc};
use domain::demo::{cinema, demo_prices, stadium};
use domain::venue::VenueMap;

/// Korea keeps no summer time, so its zone is a constant here; the engine itself knows every zone.
pub(super) const TIME_ZONE: &str = "Asia/Seoul";
const SEOUL_AHEAD_OF_UTC: TimeDelta = TimeDelta::hours(9);

/// A demo event and the venue it is in.
pub(super) struct Plan {
    pub(super) venue: &'static str,
    pub(super) title: &'static str,
    pub(super) map: fn() -> VenueMap,
    pub(super) prices: BTreeMap<String, i64>,
    days_ahead: u64,
    /// By the wall clock of the venue's zone.
    starts_at: NaiveTime,
}

impl Plan {
    /// When it starts, seen from `now`.
    pub(super) fn starts_at(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        let day = (now + SEOUL_AHEAD_OF_UTC).date_naive() + Days::new(self.days_ahead);
        day.and_time(self.starts_at).and_utc() - SEOUL_AHEAD_OF_UTC
    }
}

/// The demo's events.
pub(super) fn plans() -> [Plan; 2] {
    let prices = demo_prices();
    let at = |hour, minute| NaiveTime::from_hms_opt(hour, minute, 0).unwrap_or_default();
    [
        Plan {
            venue: "Hangang Stadium",
            title: "Han River Herons v Harbour Hawks",
            map: stadium,
            prices: prices.stadium,
            days_ahead: 30,
            starts_at: at(18, 30),
        },
        Plan {
            venue: "Cinema Onnuri",
            title: "The Last Tram",
            map: cinema,
            prices: prices.cinema,
            days_ahead: 7,
            starts_at: at(20, 0),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    #[test]
    fn a_demo_event_starts_at_its_time_by_the_wall_clock_of_seoul() {
        let [match_day, screening] = plans();
        let late_evening_in_utc = time("2026-12-01T16:00:00Z");
        // In Seoul it is the second of December already.
        assert_eq!(match_day.starts_at(late_evening_in_utc), time("2027-01-01T18:30:00+09:00"));
        assert_eq!(screening.starts_at(late_evening_in_utc), time("2026-12-09T20:00:00+09:00"));
    }

    #[test]
    fn every_category_of_a_demo_venue_has_a_price() {
        for plan in plans() {
            let map = (plan.map)();
            assert!(map.categories.iter().all(|category| plan.prices.contains_key(&category.category)));
        }
    }
}
