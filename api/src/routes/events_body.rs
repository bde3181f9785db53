//! The shapes of events: as they are answered, made and changed.

use std::collections::BTreeMap;

use domain::event::{Event, EventRules, EventStatus};
use domain::flow::set_up_event::{EventChange, EventPlan};
use domain::id::{EventId, VenueId};
use domain::money::Currency;
use domain::time::Instant;
use garde::Validate;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// An event.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventBody {
    /// Its id.
    #[schema(value_type = String, example = "0197f0a2-6a11-7c3b-9d2e-4f5a6b7c8d90")]
    id: EventId,
    /// Where.
    #[schema(value_type = String, example = "0197f0a2-5c1e-7d7e-8f3e-1b2c3d4e5f60")]
    venue: VenueId,
    /// What people read.
    #[schema(example = "Bears - Twins")]
    title: String,
    /// `{date}` of its Redis keys; unique in the installation.
    #[schema(example = "20261205")]
    date_key: String,
    /// Where it stands: `draft`, `preparing`, `on_sale`, `closed`, `cancelled`.
    status: EventStatusWord,
    /// How far its opening has come.
    progress: ProgressBody,
    /// When it starts.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-05T05:00:00.000Z")]
    starts_at: Instant,
    /// The same on the wall clock of the venue.
    #[schema(example = "2026-12-05T14:00:00")]
    starts_at_local: String,
    /// When holds begin; null = as soon as it is opened.
    #[serde(with = "domain::time::serde_ms_option")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2026-12-01T05:00:00.000Z")]
    sales_open_at: Option<Instant>,
    /// When holds end; null = when it is closed.
    #[serde(with = "domain::time::serde_ms_option")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2026-12-05T04:00:00.000Z")]
    sales_close_at: Option<Instant>,
    /// The venue's IANA time zone.
    #[schema(example = "Asia/Seoul")]
    time_zone: String,
    /// The currency of its prices.
    #[schema(example = "KRW")]
    currency: &'static str,
    /// Minor units by category.
    #[schema(example = json!({"Orange": 25000, "Table": 55000}))]
    prices: BTreeMap<String, i64>,
    /// How long a hold lasts.
    #[schema(minimum = 1, maximum = 86400, example = 600)]
    hold_ttl_seconds: i64,
    /// How long a payment may take.
    #[schema(minimum = 1, maximum = 86400, example = 300)]
    payment_window_seconds: i64,
    /// How often a hold may be extended.
    #[schema(minimum = 0, maximum = 10, example = 0)]
    extensions_max: i32,
    /// Seats in one reservation.
    #[schema(minimum = 1, maximum = 100, example = 8)]
    seats_per_reservation_max: i32,
    /// Seats of one buyer; null = no limit.
    #[schema(minimum = 1, example = 16)]
    seats_per_buyer_max: Option<i32>,
}

/// How far an opening has come.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProgressBody {
    /// Blocks whose seats are written.
    #[schema(minimum = 0, example = 60)]
    blocks_prepared: i32,
    /// Blocks of the venue.
    #[schema(minimum = 0, example = 60)]
    blocks_total: i32,
}

/// Where an event stands.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(example = "on_sale")]
pub enum EventStatusWord {
    /// Being set up.
    Draft,
    /// A job writes its seats.
    Preparing,
    /// Seats can be held within the sales window.
    OnSale,
    /// No further holds.
    Closed,
    /// Called off.
    Cancelled,
}

impl From<EventStatus> for EventStatusWord {
    fn from(status: EventStatus) -> Self {
        match status {
            EventStatus::Draft => Self::Draft,
            EventStatus::Preparing => Self::Preparing,
            EventStatus::OnSale => Self::OnSale,
            EventStatus::Closed => Self::Closed,
            EventStatus::Cancelled => Self::Cancelled,
        }
    }
}

impl From<&Event> for EventBody {
    fn from(event: &Event) -> Self {
        let prepared = match event.status {
            EventStatus::OnSale => event.blocks_total,
            EventStatus::Draft | EventStatus::Preparing | EventStatus::Closed | EventStatus::Cancelled => {
                event.blocks_prepared
            }
        };
        Self {
            id: event.id,
            venue: event.venue,
            title: event.title.clone(),
            date_key: event.date_key.clone(),
            status: event.status.into(),
            progress: ProgressBody { blocks_prepared: prepared, blocks_total: event.blocks_total },
            starts_at: event.starts_at.at,
            starts_at_local: event.starts_at.local.clone(),
            sales_open_at: event.sales_open_at.as_ref().map(|clock| clock.at),
            sales_close_at: event.sales_close_at.as_ref().map(|clock| clock.at),
            time_zone: event.zone.name().to_owned(),
            currency: event.currency.code(),
            prices: event.prices.clone(),
            hold_ttl_seconds: event.rules.hold_ttl_ms / 1_000,
            payment_window_seconds: event.rules.payment_window_ms / 1_000,
            extensions_max: event.rules.extensions_max,
            seats_per_reservation_max: event.rules.seats_per_reservation_max,
            seats_per_buyer_max: event.rules.seats_per_buyer_max,
        }
    }
}

/// A page of events, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventPage {
    /// The events.
    pub(super) events: Vec<EventBody>,
    /// The `cursor` of the next page; null at the end.
    pub(super) next_cursor: Option<String>,
}

/// What an event is made from.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// The venue's id.
    #[garde(skip)]
    #[schema(value_type = String, max_length = 64, example = "0197f0a2-5c1e-7d7e-8f3e-1b2c3d4e5f60")]
    venue: VenueId,
    /// What people read.
    #[garde(length(chars, min = 1, max = 200))]
    #[schema(min_length = 1, max_length = 200, example = "Bears - Twins")]
    title: String,
    /// When it starts: the venue's wall clock (`2026-12-05T14:00`), or an instant with an offset.
    #[garde(length(min = 1, max = 64))]
    #[schema(min_length = 1, max_length = 64, example = "2026-12-05T14:00")]
    starts_at: String,
    /// When holds begin; absent = as soon as it is opened.
    #[garde(inner(length(min = 1, max = 64)))]
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64, example = "2026-12-01T14:00")]
    sales_open_at: Option<String>,
    /// When holds end; absent = when it is closed.
    #[garde(inner(length(min = 1, max = 64)))]
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64, example = "2026-12-05T13:00")]
    sales_close_at: Option<String>,
    /// ISO 4217.
    #[garde(skip)]
    #[schema(value_type = String, min_length = 3, max_length = 3, example = "KRW")]
    currency: Currency,
    /// Minor units for every category of the venue.
    #[garde(length(min = 1, max = 500))]
    #[schema(example = json!({"Orange": 25000, "Table": 55000}))]
    prices: BTreeMap<String, i64>,
    /// How long a hold lasts.
    #[garde(range(min = 1, max = 86_400))]
    #[serde(default = "hold_ttl_default")]
    #[schema(minimum = 1, maximum = 86400, default = 600)]
    hold_ttl_seconds: i64,
    /// How long a payment may take from its start.
    #[garde(range(min = 1, max = 86_400))]
    #[serde(default = "payment_window_default")]
    #[schema(minimum = 1, maximum = 86400, default = 300)]
    payment_window_seconds: i64,
    /// How often a buyer may extend a hold by another `hold_ttl_seconds`.
    #[garde(range(min = 0, max = 10))]
    #[serde(default)]
    #[schema(minimum = 0, maximum = 10, default = 0)]
    extensions_max: i32,
    /// Seats in one reservation.
    #[garde(range(min = 1, max = 100))]
    #[serde(default = "seats_default")]
    #[schema(minimum = 1, maximum = 100, default = 8)]
    seats_per_reservation_max: i32,
    /// Seats of one buyer, held, being paid for and sold together; absent = no limit.
    #[garde(inner(range(min = 1, max = 100_000)))]
    #[serde(default)]
    #[schema(minimum = 1, maximum = 100000)]
    seats_per_buyer_max: Option<i32>,
}

fn hold_ttl_default() -> i64 {
    600
}

fn payment_window_default() -> i64 {
    300
}

fn seats_default() -> i32 {
    8
}

impl From<NewEvent> for EventPlan {
    fn from(new: NewEvent) -> Self {
        Self {
            venue: new.venue,
            title: new.title,
            starts_at: new.starts_at,
            sales_open_at: new.sales_open_at,
            sales_close_at: new.sales_close_at,
            currency: new.currency,
            prices: new.prices,
            rules: EventRules {
                hold_ttl_ms: new.hold_ttl_seconds * 1_000,
                payment_window_ms: new.payment_window_seconds * 1_000,
                extensions_max: new.extensions_max,
                seats_per_reservation_max: new.seats_per_reservation_max,
                seats_per_buyer_max: new.seats_per_buyer_max,
            },
        }
    }
}

/// What of an event changes. What is absent stays; null clears what may be absent.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EventPatch {
    /// What people read.
    #[garde(inner(length(chars, min = 1, max = 200)))]
    #[serde(deserialize_with = "not_null")]
    #[schema(min_length = 1, max_length = 200, nullable = false, example = "Bears - Twins (moved)")]
    title: Option<String>,
    /// When holds begin.
    #[garde(inner(inner(length(min = 1, max = 64))))]
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 64, example = "2026-12-01T14:00")]
    sales_open_at: Option<Option<String>>,
    /// When holds end.
    #[garde(inner(inner(length(min = 1, max = 64))))]
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 64, example = "2026-12-05T13:00")]
    sales_close_at: Option<Option<String>>,
    /// Minor units for every category; holds that stand keep their price.
    #[garde(inner(length(min = 1, max = 500)))]
    #[serde(deserialize_with = "not_null")]
    #[schema(nullable = false, example = json!({"Orange": 27000, "Table": 55000}))]
    prices: Option<BTreeMap<String, i64>>,
    /// How long a hold lasts.
    #[garde(inner(range(min = 1, max = 86_400)))]
    #[serde(deserialize_with = "not_null")]
    #[schema(minimum = 1, maximum = 86400, nullable = false)]
    hold_ttl_seconds: Option<i64>,
    /// How long a payment may take.
    #[garde(inner(range(min = 1, max = 86_400)))]
    #[serde(deserialize_with = "not_null")]
    #[schema(minimum = 1, maximum = 86400, nullable = false)]
    payment_window_seconds: Option<i64>,
    /// How often a hold may be extended.
    #[garde(inner(range(min = 0, max = 10)))]
    #[serde(deserialize_with = "not_null")]
    #[schema(minimum = 0, maximum = 10, nullable = false)]
    extensions_max: Option<i32>,
    /// Seats in one reservation.
    #[garde(inner(range(min = 1, max = 100)))]
    #[serde(deserialize_with = "not_null")]
    #[schema(minimum = 1, maximum = 100, nullable = false)]
    seats_per_reservation_max: Option<i32>,
    /// Seats of one buyer; null = no limit.
    #[garde(inner(inner(range(min = 1, max = 100_000))))]
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 100000)]
    seats_per_buyer_max: Option<Option<i32>>,
}

/// A field that is there, perhaps as null; an absent one is the default, none.
fn present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// A field that is there and not null: null would be read as "leave it", which is not what its sender meant.
fn not_null<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

impl From<EventPatch> for EventChange {
    fn from(patch: EventPatch) -> Self {
        Self {
            title: patch.title,
            sales_open_at: patch.sales_open_at,
            sales_close_at: patch.sales_close_at,
            prices: patch.prices,
            hold_ttl_ms: patch.hold_ttl_seconds.map(|seconds| seconds * 1_000),
            payment_window_ms: patch.payment_window_seconds.map(|seconds| seconds * 1_000),
            extensions_max: patch.extensions_max,
            seats_per_reservation_max: patch.seats_per_reservation_max,
            seats_per_buyer_max: patch.seats_per_buyer_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_clears_what_may_be_absent_and_is_refused_elsewhere() {
        let patch: EventPatch = serde_json::from_str(r#"{"sales_open_at": null, "seats_per_buyer_max": 4}"#).unwrap();
        let change = EventChange::from(patch);
        assert_eq!(change.sales_open_at, Some(None));
        assert_eq!(change.sales_close_at, None);
        assert_eq!(change.seats_per_buyer_max, Some(Some(4)));
        assert!(serde_json::from_str::<EventPatch>(r#"{"title": null}"#).is_err());
        assert!(serde_json::from_str::<EventPatch>(r#"{"status": "on_sale"}"#).is_err());
    }
}
