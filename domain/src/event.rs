//! An event: what people attend, where, for how much, and by which rules.

use std::collections::BTreeMap;

use crate::id::{EventId, VenueId};
use crate::money::Currency;
use crate::time::{Instant, VenueZone, WallClock};

/// Where an event stands. `draft` → `preparing` → `on_sale` → `closed`; `cancelled` from anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventStatus {
    /// Being set up; nothing is in Redis.
    Draft,
    /// A job writes lists and buckets.
    Preparing,
    /// Seats can be held within the sales window.
    OnSale,
    /// No further holds; what is paid for is finished.
    Closed,
    /// Called off.
    Cancelled,
}

impl EventStatus {
    /// The word in SQL and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Preparing => "preparing",
            Self::OnSale => "on_sale",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "draft" => Some(Self::Draft),
            "preparing" => Some(Self::Preparing),
            "on_sale" => Some(Self::OnSale),
            "closed" => Some(Self::Closed),
            "cancelled" => Some(Self::Cancelled),
            _ => None,
        }
    }
}

/// The rules of holding and paying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRules {
    /// How long a hold lasts, ms (1 s to 24 h).
    pub hold_ttl_ms: i64,
    /// How long a payment may take from its start, ms (1 s to 24 h).
    pub payment_window_ms: i64,
    /// How often a buyer may extend a hold by another TTL; 0 forbids it.
    pub extensions_max: i32,
    /// Seats in one reservation (1 to 100).
    pub seats_per_reservation_max: i32,
    /// Seats of one buyer, held, being paid for and sold together; none = no limit.
    pub seats_per_buyer_max: Option<i32>,
}

/// Held against an event at the instant of a hold: why it may not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaleState {
    /// Seats can be held.
    Open,
    /// Not yet: it opens then, if that is known.
    NotYet(Option<Instant>),
    /// No longer.
    Over,
}

/// An event with its prices.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its id; the `matchId` of its seat buckets.
    pub id: EventId,
    /// Where.
    pub venue: VenueId,
    /// The venue's zone.
    pub zone: VenueZone,
    /// What people read.
    pub title: String,
    /// `{date}` of its Redis keys: unique in the installation.
    pub date_key: String,
    /// When it starts.
    pub starts_at: WallClock,
    /// When holds begin; none = as soon as it is opened.
    pub sales_open_at: Option<WallClock>,
    /// When holds end; none = when it is closed.
    pub sales_close_at: Option<WallClock>,
    /// The currency of its prices.
    pub currency: Currency,
    /// The price of each category, minor units.
    pub prices: BTreeMap<String, i64>,
    /// The rules.
    pub rules: EventRules,
    /// Where it stands.
    pub status: EventStatus,
    /// Grows with every change that a hold must notice.
    pub revision: i32,
    /// Blocks whose list and buckets are written; of [`Event::blocks_total`].
    pub blocks_prepared: i32,
    /// Blocks of the venue.
    pub blocks_total: i32,
}

impl Event {
    /// Whether seats can be held at `now`. Half-open: at `sales_close_at` it is over.
    #[must_use]
    pub fn sale_at(&self, now: Instant) -> SaleState {
        let opens = self.sales_open_at.as_ref().map(|clock| clock.at);
        match self.status {
            EventStatus::Draft | EventStatus::Preparing => SaleState::NotYet(opens),
            EventStatus::Closed | EventStatus::Cancelled => SaleState::Over,
            EventStatus::OnSale => match (opens, self.sales_close_at.as_ref()) {
                (_, Some(closes)) if now >= closes.at => SaleState::Over,
                (Some(opens), _) if now < opens => SaleState::NotYet(Some(opens)),
                _ => SaleState::Open,
            },
        }
    }

    /// The deadline of a hold placed at `now`: its TTL later, at most the sales' close.
    #[must_use]
    pub fn hold_deadline(&self, now: Instant) -> Instant {
        let deadline = now + chrono::Duration::milliseconds(self.rules.hold_ttl_ms);
        self.sales_close_at.as_ref().map_or(deadline, |close| deadline.min(close.at))
    }

    /// The absolute cap of a hold's extensions.
    #[must_use]
    pub fn extends_until(&self, now: Instant) -> Instant {
        let span = self.rules.hold_ttl_ms.saturating_mul(i64::from(self.rules.extensions_max) + 1);
        let cap = now + chrono::Duration::milliseconds(span);
        self.sales_close_at.as_ref().map_or(cap, |close| cap.min(close.at))
    }
}
