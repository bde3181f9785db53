//! A type per id, in one registry: an id of one thing cannot be given for another.
//!
//! To the outside ids are opaque strings. Places (blocks, seats) are numbered by Postgres; everything that is made
//! under load has a UUID v7, made by [`crate::runtime`], so that rows and index pages fill in order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// A text that is not an id of the kind that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind} id")]
pub struct IdError {
    kind: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "io", derive(sqlx::Type))]
        #[cfg_attr(feature = "io", sqlx(transparent))]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let id = text.parse::<$inner>().map_err(|_| IdError { kind: $kind })?;
                // One spelling only: an id is compared as text by callers and in Redis.
                if id.to_string() == text { Ok(Self(id)) } else { Err(IdError { kind: $kind }) }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// A venue.
    VenueId(Uuid) = "venue";
    /// A block of a venue.
    BlockId(i64) = "block";
    /// A seat of a venue: the same for every event there.
    SeatId(i64) = "seat";
    /// An event: what people attend.
    EventId(Uuid) = "event";
    /// A reservation.
    ReservationId(Uuid) = "reservation";
    /// A payment; also the key under which the provider is asked.
    PaymentId(Uuid) = "payment";
    /// A refund; also the key under which the provider is asked.
    RefundId(Uuid) = "refund";
    /// An API key (not its secret).
    ApiKeyId(Uuid) = "API key";
    /// A row of the outbox; also the id of the job that it causes.
    OutboxId(Uuid) = "outbox";
}

/// Who reserves: a name that the shop chose, at most 128 bytes of visible text. Never shown to other buyers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "io", derive(sqlx::Type))]
#[cfg_attr(feature = "io", sqlx(transparent))]
pub struct Buyer(String);

impl Buyer {
    /// The longest accepted name, in bytes.
    pub const BYTES_MAX: usize = 128;

    /// Accepts 1 to 128 bytes without control characters.
    ///
    /// # Errors
    /// [`BuyerError`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, BuyerError> {
        if text.is_empty() || text.len() > Self::BYTES_MAX || text.chars().any(char::is_control) {
            return Err(BuyerError);
        }
        Ok(Self(text.to_owned()))
    }

    /// The name as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Buyer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// A buyer's name that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a buyer is 1 to 128 bytes of text without control characters")]
pub struct BuyerError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        assert!("0190b0c4-0000-7000-8000-000000000001".parse::<EventId>().is_ok());
        assert!("0190B0C4-0000-7000-8000-000000000001".parse::<EventId>().is_err());
        assert!("12".parse::<SeatId>().is_ok());
        assert!("012".parse::<SeatId>().is_err());
        assert!("+12".parse::<SeatId>().is_err());
    }

    #[test]
    fn a_buyer_is_bounded_visible_text() {
        assert!(Buyer::parse("구매자 1").is_ok());
        assert!(Buyer::parse("").is_err());
        assert!(Buyer::parse("a\nb").is_err());
        assert!(Buyer::parse(&"x".repeat(129)).is_err());
    }
}
