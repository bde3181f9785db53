//! Setting up an event: making it, changing it, opening and closing its sale.

use std::collections::BTreeMap;

use serde_json::json;

use crate::event::{Event, EventRules, EventStatus};
use crate::id::{EventId, OutboxId, VenueId};
use crate::limits::{EXTENSIONS_MAX, SEATS_PER_BUYER_MAX, SEATS_PER_RESERVATION_MAX, TITLE_CHARS_MAX, WINDOW_MS};
use crate::money::{Currency, Money};
use crate::queue::Queue;
use crate::runtime::clock::new_uuid;
use crate::store::pg::events::{insert_event, lock_event, move_event, update_event};
use crate::store::pg::outbox::{JobKind, OutboxRow, insert_outbox};
use crate::store::pg::venues::keep_map;
use crate::store::pg::{PgError, commit};
use crate::time::{VenueZone, WallClock};

use super::repeat::{RepeatError, first_answer, keep_answer};
use super::{Answered, FaultPoint, Idempotent, Stores};

/// What an event is made from. Times are wall-clock times of the venue, or instants.
#[derive(Debug, Clone)]
pub struct EventPlan {
    /// Where.
    pub venue: VenueId,
    /// What people read.
    pub title: String,
    /// When it starts.
    pub starts_at: String,
    /// When holds begin.
    pub sales_open_at: Option<String>,
    /// When holds end.
    pub sales_close_at: Option<String>,
    /// Of its prices.
    pub currency: Currency,
    /// Minor units for every category of the venue.
    pub prices: BTreeMap<String, i64>,
    /// The rules.
    pub rules: EventRules,
}

/// What of an event changes; the outer none leaves a field as it is, an inner none clears it.
#[derive(Debug, Clone, Default)]
pub struct EventChange {
    /// What people read.
    pub title: Option<String>,
    /// When holds begin.
    pub sales_open_at: Option<Option<String>>,
    /// When holds end.
    pub sales_close_at: Option<Option<String>>,
    /// Minor units for every category; holds that stand keep their price.
    pub prices: Option<BTreeMap<String, i64>>,
    /// How long a hold lasts, ms.
    pub hold_ttl_ms: Option<i64>,
    /// How long a payment may take, ms.
    pub payment_window_ms: Option<i64>,
    /// Extensions of a hold.
    pub extensions_max: Option<i32>,
    /// Seats in one reservation.
    pub seats_per_reservation_max: Option<i32>,
    /// Seats of one buyer.
    pub seats_per_buyer_max: Option<Option<i32>>,
}

/// A field that cannot be accepted, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    /// The field, as the API names it.
    pub field: String,
    /// What is wrong and what to write instead.
    pub message: String,
}

/// Why an event cannot be set up so.
#[derive(Debug, thiserror::Error)]
pub enum SetUpEventError {
    /// There is no such event.
    #[error("there is no such event")]
    NotFound,
    /// Fields that cannot be accepted, all of them.
    #[error("some fields cannot be accepted")]
    Invalid(Vec<FieldFault>),
    /// The event is in a status from which this cannot be done.
    #[error("this cannot be done while the event is {}", .0.as_str())]
    WrongStatus(EventStatus),
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

impl From<RepeatError> for SetUpEventError {
    fn from(error: RepeatError) -> Self {
        match error {
            RepeatError::KeyReused => Self::KeyReused,
            RepeatError::Pg(error) => Self::Pg(error),
        }
    }
}

/// Makes an event, as a draft.
///
/// # Errors
/// [`SetUpEventError`].
pub async fn create_event(stores: &Stores, plan: EventPlan) -> Result<Event, SetUpEventError> {
    let mut tx = stores.pg.begin().await?;
    keep_map(&mut tx, plan.venue).await?;
    let event = plan_event(stores, plan).await?;
    let date_key = insert_event(&mut tx, &event).await?;
    commit(tx).await?;
    Ok(Event { date_key, ..event })
}

/// Makes an event once for each key, however often it is asked for.
///
/// # Errors
/// [`SetUpEventError`].
pub async fn create_event_once(
    stores: &Stores,
    plan: EventPlan,
    repeat: Idempotent<Event>,
) -> Result<Answered<Event>, SetUpEventError> {
    let repeat = Some(&repeat);
    if let Some(answer) = first_answer(stores, repeat).await? {
        return Ok(answer);
    }
    let mut tx = stores.pg.begin().await?;
    keep_map(&mut tx, plan.venue).await?;
    let event = plan_event(stores, plan).await?;
    let date_key = insert_event(&mut tx, &event).await?;
    let event = Event { date_key, ..event };
    if keep_answer(&mut tx, repeat, &event, (event.id, event.id.0)).await? {
        commit(tx).await?;
        return Ok(Answered::New(event));
    }
    drop(tx);
    first_answer(stores, repeat).await?.ok_or(SetUpEventError::KeyReused)
}

/// The event that a plan describes, once nothing is wrong with it.
async fn plan_event(stores: &Stores, plan: EventPlan) -> Result<Event, SetUpEventError> {
    let Some(venue) = stores.pg.find_venue(plan.venue).await? else {
        let message = "there is no such venue: import it first".to_owned();
        return Err(SetUpEventError::Invalid(vec![FieldFault { field: "venue".to_owned(), message }]));
    };
    let categories = stores.pg.list_categories(plan.venue).await?;
    let mut faults = Faults::default();
    let starts_at = faults.read_clock(&venue.zone, "starts_at", Some(&plan.starts_at));
    let sales_open_at = faults.read_clock(&venue.zone, "sales_open_at", plan.sales_open_at.as_deref());
    let sales_close_at = faults.read_clock(&venue.zone, "sales_close_at", plan.sales_close_at.as_deref());
    let event = Event {
        id: EventId(new_uuid()),
        venue: venue.id,
        title: plan.title.trim().to_owned(),
        date_key: starts_at.as_ref().map(|clock| venue.zone.date_text(clock.at)).unwrap_or_default(),
        starts_at: starts_at.unwrap_or(WallClock { local: String::new(), at: crate::time::from_ms(0) }),
        sales_open_at,
        sales_close_at,
        currency: plan.currency,
        prices: plan.prices,
        rules: plan.rules,
        status: EventStatus::Draft,
        revision: 1,
        blocks_prepared: 0,
        blocks_total: venue.block_count,
        zone: venue.zone,
    };
    faults.check(&event, &categories);
    faults.end()?;
    Ok(event)
}

/// Changes an event that is neither closed nor called off.
///
/// # Errors
/// [`SetUpEventError`].
pub async fn change_event(stores: &Stores, id: EventId, change: EventChange) -> Result<Event, SetUpEventError> {
    let known = stores.pg.find_event(id).await?.ok_or(SetUpEventError::NotFound)?;
    let categories = stores.pg.list_categories(known.venue).await?;
    let mut tx = stores.pg.begin().await?;
    let mut event = lock_event(&mut tx, id).await?.ok_or(SetUpEventError::NotFound)?;
    if matches!(event.status, EventStatus::Closed | EventStatus::Cancelled) {
        return Err(SetUpEventError::WrongStatus(event.status));
    }
    let mut faults = Faults::default();
    if let Some(title) = change.title {
        event.title = title.trim().to_owned();
    }
    if let Some(opens) = change.sales_open_at {
        event.sales_open_at = faults.read_clock(&event.zone, "sales_open_at", opens.as_deref());
    }
    if let Some(closes) = change.sales_close_at {
        event.sales_close_at = faults.read_clock(&event.zone, "sales_close_at", closes.as_deref());
    }
    let rules = &mut event.rules;
    event.prices = change.prices.unwrap_or(event.prices);
    rules.hold_ttl_ms = change.hold_ttl_ms.unwrap_or(rules.hold_ttl_ms);
    rules.payment_window_ms = change.payment_window_ms.unwrap_or(rules.payment_window_ms);
    rules.extensions_max = change.extensions_max.unwrap_or(rules.extensions_max);
    rules.seats_per_reservation_max = change.seats_per_reservation_max.unwrap_or(rules.seats_per_reservation_max);
    rules.seats_per_buyer_max = change.seats_per_buyer_max.unwrap_or(rules.seats_per_buyer_max);
    faults.check(&event, &categories);
    faults.end()?;
    update_event(&mut tx, &event).await?;
    commit(tx).await?;
    stores.pg.find_event(id).await?.ok_or(SetUpEventError::NotFound)
}

/// Begins the sale: a job writes lists and buckets, then the event is on sale. An event that is preparing or on sale is
/// answered as it is.
///
/// # Errors
/// [`SetUpEventError`].
pub async fn start_sale(stores: &Stores, id: EventId) -> Result<Event, SetUpEventError> {
    // Whatever becomes of this process after the commit, the sweep finds the job.
    if stores.redis.mark_unsettled(id.0).await.is_err() {
        stores.note_redis_missed();
    }
    let mut tx = stores.pg.begin().await?;
    let event = lock_event(&mut tx, id).await?.ok_or(SetUpEventError::NotFound)?;
    match event.status {
        EventStatus::OnSale => return Ok(event),
        EventStatus::Cancelled => return Err(SetUpEventError::WrongStatus(event.status)),
        EventStatus::Draft | EventStatus::Preparing | EventStatus::Closed => {}
    }
    let from = [EventStatus::Draft, EventStatus::Closed];
    move_event(&mut tx, id, &from, EventStatus::Preparing).await?;
    let row = OutboxRow {
        event: id,
        id: OutboxId(id.0),
        queue: Queue::Events,
        kind: JobKind::OpenEvent,
        payload: json!({ "event": id }),
    };
    insert_outbox(&mut tx, &row).await?;
    commit(tx).await?;
    stores.faults.pass(FaultPoint::SaleStarted).await;
    if let Err(error) = stores.jobs.enqueue(&[row.job()]).await {
        stores.note_redis_missed();
        tracing::warn!(error = &error as &dyn std::error::Error, "the job waits in the outbox");
    }
    stores.pg.find_event(id).await?.ok_or(SetUpEventError::NotFound)
}

/// Ends the sale. What is held may still be paid for.
///
/// # Errors
/// [`SetUpEventError`].
pub async fn end_sale(stores: &Stores, id: EventId) -> Result<Event, SetUpEventError> {
    let from = [EventStatus::Draft, EventStatus::Preparing, EventStatus::OnSale];
    let moved = stores.pg.move_event(id, &from, EventStatus::Closed).await?;
    let event = stores.pg.find_event(id).await?.ok_or(SetUpEventError::NotFound)?;
    match event.status {
        EventStatus::Closed => Ok(event),
        status if moved => Err(SetUpEventError::WrongStatus(status)),
        status => Err(SetUpEventError::WrongStatus(status)),
    }
}

#[derive(Default)]
struct Faults(Vec<FieldFault>);

impl Faults {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(FieldFault { field: field.to_owned(), message: message.into() });
    }

    fn end(self) -> Result<(), SetUpEventError> {
        if self.0.is_empty() { Ok(()) } else { Err(SetUpEventError::Invalid(self.0)) }
    }

    fn read_clock(&mut self, zone: &VenueZone, field: &str, text: Option<&str>) -> Option<WallClock> {
        match zone.read(text?) {
            Ok(clock) => Some(clock),
            Err(error) => {
                self.add(field, error.to_string());
                None
            }
        }
    }

    fn check(&mut self, event: &Event, categories: &[String]) {
        if event.title.is_empty()
            || event.title.chars().count() > TITLE_CHARS_MAX
            || event.title.chars().any(char::is_control)
        {
            self.add("title", format!("write 1 to {TITLE_CHARS_MAX} characters"));
        }
        if let (Some(opens), Some(closes)) = (&event.sales_open_at, &event.sales_close_at)
            && opens.at >= closes.at
        {
            self.add("sales_close_at", "must be after sales_open_at");
        }
        let rules = &event.rules;
        for (field, ms) in
            [("hold_ttl_seconds", rules.hold_ttl_ms), ("payment_window_seconds", rules.payment_window_ms)]
        {
            if !WINDOW_MS.contains(&ms) {
                self.add(field, "must be from 1 to 86400 seconds");
            }
        }
        if !(0..=EXTENSIONS_MAX).contains(&rules.extensions_max) {
            self.add("extensions_max", format!("must be from 0 to {EXTENSIONS_MAX}"));
        }
        if !(1..=SEATS_PER_RESERVATION_MAX).contains(&rules.seats_per_reservation_max) {
            self.add("seats_per_reservation_max", format!("must be from 1 to {SEATS_PER_RESERVATION_MAX}"));
        }
        if rules.seats_per_buyer_max.is_some_and(|max| !(1..=SEATS_PER_BUYER_MAX).contains(&max)) {
            self.add("seats_per_buyer_max", format!("must be from 1 to {SEATS_PER_BUYER_MAX}"));
        }
        for category in categories {
            if !event.prices.contains_key(category) {
                self.add(&format!("prices.{category}"), "every category of the venue needs a price; 0 is one");
            }
        }
        for (category, amount) in &event.prices {
            if !categories.contains(category) {
                self.add(&format!("prices.{category}"), "the venue has no such category");
            }
            if !(0..=Money::AMOUNT_MAX).contains(amount) {
                self.add(&format!("prices.{category}"), format!("must be from 0 to {} minor units", Money::AMOUNT_MAX));
            }
        }
    }
}
