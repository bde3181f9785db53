//! A seat's status, and how callers name a seat.

use serde::{Deserialize, Serialize};

use crate::id::SeatId;
use crate::label::Label;

/// The four words of a seat's status: the same in SQL, Redis, JSON and on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeatStatus {
    /// It can be held.
    Available,
    /// A reservation holds it until its deadline, or is paying for it.
    Held,
    /// A confirmed reservation owns it.
    Sold,
    /// An operator keeps it from sale.
    Blocked,
}

impl SeatStatus {
    /// The word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Held => "held",
            Self::Sold => "sold",
            Self::Blocked => "blocked",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "available" => Some(Self::Available),
            "held" => Some(Self::Held),
            "sold" => Some(Self::Sold),
            "blocked" => Some(Self::Blocked),
            _ => None,
        }
    }
}

/// What a claim in Postgres says of its seat; no claim means available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClaimState {
    /// Until the deadline.
    Held,
    /// Being paid for: it cannot expire.
    Committed,
    /// Sold.
    Sold,
    /// Kept from sale.
    Blocked,
}

impl ClaimState {
    /// The word that SQL stores.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Committed => "committed",
            Self::Sold => "sold",
            Self::Blocked => "blocked",
        }
    }

    /// Reads the word that SQL stores.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "held" => Some(Self::Held),
            "committed" => Some(Self::Committed),
            "sold" => Some(Self::Sold),
            "blocked" => Some(Self::Blocked),
            _ => None,
        }
    }

    /// How it is shown: a committed seat shows as held.
    #[must_use]
    pub fn seat_status(self) -> SeatStatus {
        match self {
            Self::Held | Self::Committed => SeatStatus::Held,
            Self::Sold => SeatStatus::Sold,
            Self::Blocked => SeatStatus::Blocked,
        }
    }
}

/// How a caller names a seat of an event: by its id, or by its place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SeatRef {
    /// The id that the block's answer gave.
    Id(SeatId),
    /// Block, column and row labels.
    Place {
        /// The block's label.
        block: Label,
        /// The column's label.
        column: Label,
        /// The row's label.
        row: Label,
    },
}
