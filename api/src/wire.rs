//! How plain values are written in JSON: times and money.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serializer;

/// RFC 3339 in UTC with milliseconds, the one form of a time: `2026-12-01T05:00:00.000Z`.
pub fn timestamp(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// `#[serde(serialize_with)]` for a time.
pub fn serialize_time<S: Serializer>(at: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&timestamp(*at))
}

/// `#[serde(serialize_with)]` for a time that may be absent.
pub fn serialize_optional_time<S: Serializer>(at: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => serialize_time(at, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_always_has_three_decimals_and_a_z() {
        let at = DateTime::from_timestamp_millis(1_764_565_200_000).unwrap();
        assert_eq!(timestamp(at), "2025-12-01T05:00:00.000Z");
        assert_eq!(timestamp(at + chrono::Duration::microseconds(7_900)), "2025-12-01T05:00:00.007Z");
    }
}
