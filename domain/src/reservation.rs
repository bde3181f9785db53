//! A reservation: a buyer's seats for one event, `PENDING` → `CONFIRMED` or `CANCELLED(reason)`.

use crate::id::{Buyer, EventId, ReservationId, SeatId};
use crate::label::Label;
use crate::money::Money;
use crate::payment::{Payment, Refund};
use crate::time::Instant;

/// Why a reservation ended without its seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// Its deadline passed.
    Expired,
    /// Its buyer cancelled it.
    User,
    /// An operator did.
    Operator,
    /// The provider refused to capture what it had authorised.
    PaymentFailed,
    /// The event was called off.
    EventCancelled,
}

impl CancelReason {
    /// The word in SQL and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::User => "user",
            Self::Operator => "operator",
            Self::PaymentFailed => "payment_failed",
            Self::EventCancelled => "event_cancelled",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "expired" => Some(Self::Expired),
            "user" => Some(Self::User),
            "operator" => Some(Self::Operator),
            "payment_failed" => Some(Self::PaymentFailed),
            "event_cancelled" => Some(Self::EventCancelled),
            _ => None,
        }
    }
}

/// Where a reservation stands, with what only that state has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationState {
    /// Its seats are held until the deadline.
    Pending,
    /// A payment is being captured: its seats cannot expire. Still `PENDING` to the outside.
    Committed {
        /// Since when.
        at: Instant,
    },
    /// Paid; its seats are sold.
    Confirmed {
        /// Since when.
        at: Instant,
    },
    /// Over; its seats are free, or somebody else's.
    Cancelled {
        /// Since when.
        at: Instant,
        /// Why.
        reason: CancelReason,
    },
}

/// The three words of a reservation's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationStatus {
    /// Held, or being paid for.
    Pending,
    /// Paid.
    Confirmed,
    /// Over.
    Cancelled,
}

impl ReservationStatus {
    /// The word in SQL and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Confirmed => "CONFIRMED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "PENDING" => Some(Self::Pending),
            "CONFIRMED" => Some(Self::Confirmed),
            "CANCELLED" => Some(Self::Cancelled),
            _ => None,
        }
    }
}

/// One seat of a reservation, its price frozen when it was held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedSeat {
    /// The seat.
    pub id: SeatId,
    /// Its block.
    pub block: Label,
    /// Its row.
    pub row: Label,
    /// Its column.
    pub column: Label,
    /// What is printed on it.
    pub label: String,
    /// Its category.
    pub category: String,
    /// Minor units of the reservation's currency.
    pub price: i64,
}

/// A reservation as it is at `read_at` by the database's clock.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// Its id.
    pub id: ReservationId,
    /// Its event.
    pub event: EventId,
    /// Whose it is.
    pub buyer: Buyer,
    /// Where it stands. A deadline that has passed is already [`ReservationState::Cancelled`] here, even before the
    /// row says so (I3).
    pub state: ReservationState,
    /// Whether the row says so too: false only for a deadline that has passed and is not tidied up yet.
    pub is_tidy: bool,
    /// Its seats, in the venue's seat order.
    pub seats: Vec<ReservedSeat>,
    /// The sum of its seats' prices.
    pub amount: Money,
    /// When it was made.
    pub created_at: Instant,
    /// Its deadline.
    pub expires_at: Instant,
    /// No extension goes past this.
    pub extends_until: Instant,
    /// Grows with every change: what a job fences its writes by.
    pub generation: i32,
    /// Its payments, oldest first.
    pub payments: Vec<Payment>,
    /// Its refunds, oldest first.
    pub refunds: Vec<Refund>,
    /// The database's clock at the reading: what the buyer's countdown starts from.
    pub read_at: Instant,
}

impl Reservation {
    /// The word for its state.
    #[must_use]
    pub fn status(&self) -> ReservationStatus {
        match self.state {
            ReservationState::Pending | ReservationState::Committed { .. } => ReservationStatus::Pending,
            ReservationState::Confirmed { .. } => ReservationStatus::Confirmed,
            ReservationState::Cancelled { .. } => ReservationStatus::Cancelled,
        }
    }

    /// Why it is cancelled, if it is.
    #[must_use]
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        match self.state {
            ReservationState::Cancelled { reason, .. } => Some(reason),
            ReservationState::Pending | ReservationState::Committed { .. } | ReservationState::Confirmed { .. } => None,
        }
    }
}

/// Where a stored reservation stands at `now`: the one place where a deadline becomes an end (I3). Half-open: at its
/// deadline it is dead.
#[must_use]
pub fn state_at(stored: ReservationState, expires_at: Instant, now: Instant) -> ReservationState {
    match stored {
        ReservationState::Pending if expires_at <= now => {
            ReservationState::Cancelled { at: expires_at, reason: CancelReason::Expired }
        }
        ReservationState::Pending
        | ReservationState::Committed { .. }
        | ReservationState::Confirmed { .. }
        | ReservationState::Cancelled { .. } => stored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::from_ms;

    #[test]
    fn a_pending_reservation_is_dead_at_its_deadline_and_not_before() {
        let deadline = from_ms(1_000);
        assert_eq!(state_at(ReservationState::Pending, deadline, from_ms(999)), ReservationState::Pending);
        let dead = ReservationState::Cancelled { at: deadline, reason: CancelReason::Expired };
        assert_eq!(state_at(ReservationState::Pending, deadline, from_ms(1_000)), dead);
    }

    #[test]
    fn what_is_committed_or_confirmed_cannot_expire() {
        for state in [ReservationState::Committed { at: from_ms(1) }, ReservationState::Confirmed { at: from_ms(1) }] {
            assert_eq!(state_at(state, from_ms(2), from_ms(3)), state);
        }
    }
}
