//! What the clients of a run were told, and what its readers saw.

use serde::Serialize;

/// Everything that was seen from outside.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Each request for a hold, with all that followed from it.
    pub holds: Vec<Hold>,
    /// Seats that a reader was shown as held though no client knows of a reservation that still holds them.
    pub sightings: Vec<Sighting>,
    /// When no worker, or a store, could be reached, with the grace that follows: what looks held then is excused.
    pub outages: Vec<Span>,
}

/// A span of time, in ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Its first moment.
    pub from_ms: i64,
    /// The first moment after it.
    pub until_ms: i64,
}

impl Span {
    /// Whether a moment lies in it.
    #[must_use]
    pub fn contains(&self, at_ms: i64) -> bool {
        (self.from_ms..self.until_ms).contains(&at_ms)
    }
}

/// A seat of an event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatOf {
    /// The event's id.
    pub event: String,
    /// The seat's id.
    pub seat: i64,
}

/// A seat that looked held.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// Which.
    pub seat: SeatOf,
    /// When the reader asked.
    pub at_ms: i64,
}

/// One request for a hold. Its buyer's name is used for no other request.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The buyer's name.
    pub buyer: String,
    /// The event's id.
    pub event: String,
    /// The seats' ids.
    pub seats: Vec<i64>,
    /// When it was first sent.
    pub sent_ms: i64,
    /// When its last answer came, or was given up.
    pub done_ms: i64,
    /// How it ended.
    pub answer: Answer,
}

/// How a request for a hold ended.
#[derive(Debug, Clone)]
pub enum Answer {
    /// 201.
    Placed(Placed),
    /// It was refused, with this code.
    Refused(String),
    /// No answer came, or none that says what happened.
    Unknown,
}

/// An acknowledged reservation.
#[derive(Debug, Clone, Default)]
pub struct Placed {
    /// Its id.
    pub reservation: String,
    /// Its price.
    pub amount: i64,
    /// When it was made, by the server.
    pub created_ms: i64,
    /// The last deadline that was told.
    pub deadline_ms: i64,
    /// What the same request, sent again, was answered: a reservation's id.
    pub repeated: Option<String>,
    /// When its cancellation was first asked for.
    pub cancel_sent_ms: Option<i64>,
    /// Whether its cancellation was acknowledged.
    pub cancel_told: bool,
    /// When a payment was first asked for.
    pub pay_sent_ms: Option<i64>,
    /// The payments that were acknowledged.
    pub payments: Vec<String>,
    /// Whether it was ever told to be CONFIRMED.
    pub confirmed_told: bool,
    /// Whether it was ever told to be CANCELLED.
    pub cancelled_told: bool,
}
