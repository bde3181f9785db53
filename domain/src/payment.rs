//! A payment is one attempt to take money, a refund one attempt to give it back. The provider stands behind
//! [`PaymentGateway`](crate::gateway).

use crate::id::{EventId, PaymentId, RefundId, ReservationId};
use crate::money::Money;
use crate::time::Instant;

/// Where a payment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PaymentStatus {
    /// Asked for; the provider may not know it yet.
    Requested,
    /// The provider keeps the money ready.
    Authorized,
    /// The seats are committed; the money is being taken.
    Capturing,
    /// Taken.
    Captured,
    /// Refused. Another attempt may follow.
    Declined,
    /// Given up before any money was taken.
    Voided,
    /// Given back, whole.
    Refunded,
    /// Given back in part.
    PartlyRefunded,
    /// Parked for an operator: sum, currency or reference do not match.
    NeedsReview,
}

impl PaymentStatus {
    /// The word in SQL and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Authorized => "authorized",
            Self::Capturing => "capturing",
            Self::Captured => "captured",
            Self::Declined => "declined",
            Self::Voided => "voided",
            Self::Refunded => "refunded",
            Self::PartlyRefunded => "partly_refunded",
            Self::NeedsReview => "needs_review",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "requested" => Some(Self::Requested),
            "authorized" => Some(Self::Authorized),
            "capturing" => Some(Self::Capturing),
            "captured" => Some(Self::Captured),
            "declined" => Some(Self::Declined),
            "voided" => Some(Self::Voided),
            "refunded" => Some(Self::Refunded),
            "partly_refunded" => Some(Self::PartlyRefunded),
            "needs_review" => Some(Self::NeedsReview),
            _ => None,
        }
    }

    /// Whether it may still take money: at most one such payment stands for a reservation.
    #[must_use]
    pub fn is_open(self) -> bool {
        match self {
            Self::Requested | Self::Authorized | Self::Capturing | Self::NeedsReview => true,
            Self::Captured | Self::Declined | Self::Voided | Self::Refunded | Self::PartlyRefunded => false,
        }
    }
}

/// A payment.
#[derive(Debug, Clone)]
pub struct Payment {
    /// Its id, and the provider's idempotency key.
    pub id: PaymentId,
    /// Its event.
    pub event: EventId,
    /// What it pays for.
    pub reservation: ReservationId,
    /// Which provider.
    pub provider: Provider,
    /// What the buyer's client got from the provider.
    pub token: Option<String>,
    /// Where it stands.
    pub status: PaymentStatus,
    /// What is asked for.
    pub amount: Money,
    /// Why it was refused or parked, in the provider's words.
    pub failure: Option<String>,
    /// When the reservation dies unless it is paid by then.
    pub deadline: Instant,
    /// When it was asked for.
    pub created_at: Instant,
}

/// A refund.
#[derive(Debug, Clone)]
pub struct Refund {
    /// Its id, and the provider's idempotency key.
    pub id: RefundId,
    /// What it gives back from.
    pub payment: PaymentId,
    /// How much.
    pub amount: Money,
    /// Why.
    pub reason: String,
    /// `requested`, `done` or `failed`.
    pub status: String,
    /// When it was asked for.
    pub created_at: Instant,
}

/// A payment provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Our own, for tests and demonstrations; only where the settings allow it.
    Fake,
}

impl Provider {
    /// The word in SQL and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fake => "fake",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "fake" => Some(Self::Fake),
            _ => None,
        }
    }
}
