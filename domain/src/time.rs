//! Instants in milliseconds, and wall-clock times of a venue's zone.

use chrono::{DateTime, SubsecRound, TimeZone, Utc};
use jiff::civil;
use jiff::tz::{AmbiguousOffset, TimeZone as Zone};

/// An instant in UTC. Ours carry whole milliseconds: Redis, JSON and SQL then hold the same number.
pub type Instant = DateTime<Utc>;

/// Milliseconds since the epoch.
#[must_use]
pub fn to_ms(at: Instant) -> i64 {
    at.timestamp_millis()
}

/// The instant so many milliseconds after the epoch; times beyond chrono's range become its end.
#[must_use]
pub fn from_ms(ms: i64) -> Instant {
    Utc.timestamp_millis_opt(ms).single().unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// RFC 3339 in UTC with milliseconds, as the API writes every time: `2026-05-01T11:00:00.000Z`.
#[must_use]
pub fn rfc3339_ms(at: Instant) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// `#[serde(with = "domain::time::serde_ms")]` for [`rfc3339_ms`].
pub mod serde_ms {
    use super::{Instant, rfc3339_ms};
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes RFC 3339 in UTC with milliseconds.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(at: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339_ms(*at))
    }

    /// Reads any RFC 3339 time.
    ///
    /// # Errors
    /// The text is not RFC 3339.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Instant, D::Error> {
        Instant::deserialize(deserializer)
    }
}

/// `#[serde(with = "domain::time::serde_ms_option")]`: as [`serde_ms`], or null.
pub mod serde_ms_option {
    use super::{Instant, rfc3339_ms};
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes RFC 3339 in UTC with milliseconds, or null.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => serializer.serialize_str(&rfc3339_ms(*at)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads any RFC 3339 time, or null.
    ///
    /// # Errors
    /// The text is not RFC 3339.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Instant>, D::Error> {
        Option::<Instant>::deserialize(deserializer)
    }
}

/// A venue's IANA time zone.
#[derive(Debug, Clone)]
pub struct VenueZone(Zone);

/// A time that cannot be understood in the venue's zone. The message says the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WallClockError {
    /// Not a zone of the IANA database.
    #[error("{0:?} is not an IANA time zone such as Asia/Seoul")]
    UnknownZone(String),
    /// Neither an instant nor a wall-clock time.
    #[error("write a time as 2026-05-01T20:00 (the venue's wall clock) or 2026-05-01T20:00:00+09:00 (an instant)")]
    Malformed,
    /// The wall clock skips this time when it is put forward.
    #[error("the venue's wall clock skips {0}: choose another time, or give an instant with an offset")]
    Skipped(String),
    /// The wall clock shows this time twice when it is put back.
    #[error("the venue's wall clock shows {0} twice: give an instant with an offset")]
    Repeated(String),
}

/// What was said of a time and what it means: the wall clock of the venue, and the instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WallClock {
    /// `2026-05-01T20:00:00` in the venue's zone.
    pub local: String,
    /// The instant.
    pub at: Instant,
}

impl VenueZone {
    /// Finds a zone by its IANA name.
    ///
    /// # Errors
    /// [`WallClockError::UnknownZone`].
    pub fn parse(name: &str) -> Result<Self, WallClockError> {
        // Fixed offsets and POSIX rules are valid for jiff but are no place's wall clock.
        let known = name.contains('/') || name == "UTC";
        match Zone::get(name) {
            Ok(zone) if known => Ok(Self(zone)),
            _ => Err(WallClockError::UnknownZone(name.chars().take(64).collect())),
        }
    }

    /// The zone's IANA name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Reads a time said by an organiser: a wall-clock time of this zone, or an RFC 3339 instant.
    ///
    /// # Errors
    /// [`WallClockError`], unless the time means exactly one instant.
    pub fn read(&self, text: &str) -> Result<WallClock, WallClockError> {
        if let Ok(at) = DateTime::parse_from_rfc3339(text) {
            let at = at.with_timezone(&Utc).trunc_subsecs(3);
            return Ok(WallClock { local: self.local_text(at), at });
        }
        let local: civil::DateTime = text.parse().map_err(|_| WallClockError::Malformed)?;
        if text.contains('[') || text.len() < "2026-05-01T20:00".len() {
            return Err(WallClockError::Malformed);
        }
        let ambiguous = self.0.to_ambiguous_timestamp(local);
        let shown = || local.strftime("%Y-%m-%dT%H:%M").to_string();
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } => {}
            AmbiguousOffset::Gap { .. } => return Err(WallClockError::Skipped(shown())),
            AmbiguousOffset::Fold { .. } => return Err(WallClockError::Repeated(shown())),
        }
        let at = ambiguous.unambiguous().map_err(|_| WallClockError::Malformed)?;
        let at = from_ms(at.as_millisecond());
        Ok(WallClock { local: self.local_text(at), at })
    }

    /// The wall clock at an instant, `2026-05-01T20:00:00`.
    #[must_use]
    pub fn local_text(&self, at: Instant) -> String {
        self.format(at, "%Y-%m-%dT%H:%M:%S")
    }

    /// The source layout's form of a time in a seat bucket, `yyyyMMdd HH:mm:ss` of the venue's wall clock.
    #[must_use]
    pub fn bucket_text(&self, at: Instant) -> String {
        self.format(at, "%Y%m%d %H:%M:%S")
    }

    /// The day of an instant in this zone, `20250410`: the stem of an event's `date_key`.
    #[must_use]
    pub fn date_text(&self, at: Instant) -> String {
        self.format(at, "%Y%m%d")
    }

    fn format(&self, at: Instant, pattern: &str) -> String {
        let at = jiff::Timestamp::from_millisecond(to_ms(at)).unwrap_or(jiff::Timestamp::MAX);
        at.to_zoned_datetime(self.0.clone()).strftime(pattern).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sales_open_by_the_venues_wall_clock_whatever_the_servers_zone() {
        let seoul = VenueZone::parse("Asia/Seoul").unwrap();
        let opening = seoul.read("2026-05-01T20:00").unwrap();
        assert_eq!(rfc3339_ms(opening.at), "2026-05-01T11:00:00.000Z");
        assert_eq!(opening.local, "2026-05-01T20:00:00");
        assert_eq!(seoul.read("2026-05-01T11:00:00Z").unwrap(), opening);
    }

    #[test]
    fn a_wall_clock_time_that_is_skipped_or_repeated_is_refused() {
        let new_york = VenueZone::parse("America/New_York").unwrap();
        assert!(matches!(new_york.read("2026-03-08T02:30"), Err(WallClockError::Skipped(_))));
        assert!(matches!(new_york.read("2026-11-01T01:30"), Err(WallClockError::Repeated(_))));
        assert!(new_york.read("2026-11-01T01:30:00-05:00").is_ok());
    }

    #[test]
    fn a_zone_is_an_iana_name() {
        for bad in ["", "KST", "+09:00", "Asia/Nowhere", "EST5EDT,M3.2.0,M11.1.0"] {
            assert!(VenueZone::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(VenueZone::parse("Asia/Seoul").unwrap().name(), "Asia/Seoul");
    }

    #[test]
    fn a_time_is_malformed_unless_it_has_a_date_and_a_time() {
        let seoul = VenueZone::parse("Asia/Seoul").unwrap();
        for bad in ["", "2026-05-01", "20:00", "tomorrow", "2026-05-01T20:00[America/New_York]"] {
            assert_eq!(seoul.read(bad), Err(WallClockError::Malformed), "{bad}");
        }
    }
}
