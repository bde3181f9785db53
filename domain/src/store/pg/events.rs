//! Events and their prices.

use std::collections::BTreeMap;

use sqlx::types::Json;

use crate::event::{Event, EventRules, EventStatus};
use crate::id::{EventId, VenueId};
use crate::time::{VenueZone, WallClock};

use super::{Pg, PgError, Tx};

struct EventRow {
    id: uuid::Uuid,
    venue_id: uuid::Uuid,
    time_zone: String,
    block_count: i32,
    title: String,
    date_key: String,
    starts_at: crate::time::Instant,
    starts_local: String,
    sales_open_at: Option<crate::time::Instant>,
    sales_open_local: Option<String>,
    sales_close_at: Option<crate::time::Instant>,
    sales_close_local: Option<String>,
    currency: String,
    hold_ttl_ms: i64,
    payment_window_ms: i64,
    extensions_max: i32,
    seats_per_reservation_max: i32,
    seats_per_buyer_max: Option<i32>,
    status: String,
    revision: i32,
    blocks_prepared: i32,
    prices: Json<BTreeMap<String, i64>>,
}

impl TryFrom<EventRow> for Event {
    type Error = PgError;
    fn try_from(row: EventRow) -> Result<Self, PgError> {
        let unreadable = |column| PgError::unreadable("events", column, row.id);
        let clock = |local: Option<String>, at| local.zip(at).map(|(local, at)| WallClock { local, at });
        Ok(Self {
            id: EventId(row.id),
            venue: VenueId(row.venue_id),
            zone: VenueZone::parse(&row.time_zone).map_err(|_| unreadable("time_zone"))?,
            currency: row.currency.parse().map_err(|_| unreadable("currency"))?,
            status: EventStatus::from_word(&row.status).ok_or_else(|| unreadable("status"))?,
            title: row.title,
            date_key: row.date_key,
            starts_at: WallClock { local: row.starts_local, at: row.starts_at },
            sales_open_at: clock(row.sales_open_local, row.sales_open_at),
            sales_close_at: clock(row.sales_close_local, row.sales_close_at),
            prices: row.prices.0,
            rules: EventRules {
                hold_ttl_ms: row.hold_ttl_ms,
                payment_window_ms: row.payment_window_ms,
                extensions_max: row.extensions_max,
                seats_per_reservation_max: row.seats_per_reservation_max,
                seats_per_buyer_max: row.seats_per_buyer_max,
            },
            revision: row.revision,
            blocks_prepared: row.blocks_prepared,
            blocks_total: row.block_count,
        })
    }
}

/// The columns of [`EventRow`], in one place: `query_as!` wants a literal.
macro_rules! select_events {
    ($rest:literal, $($argument:expr),*) => {
        sqlx::query_as!(
            EventRow,
            r#"SELECT e.id, e.venue_id, v.time_zone, v.block_count, e.title, e.date_key, e.starts_at, e.starts_local,
                      e.sales_open_at, e.sales_open_local, e.sales_close_at, e.sales_close_local, e.currency,
                      e.hold_ttl_ms, e.payment_window_ms, e.extensions_max, e.seats_per_reservation_max,
                      e.seats_per_buyer_max, e.status, e.revision, e.blocks_prepared,
                      (SELECT coalesce(jsonb_object_agg(p.category, p.amount), '{}') FROM prices p
                       WHERE p.event_id = e.id) AS "prices!: Json<BTreeMap<String, i64>>"
               FROM events e JOIN venues v ON v.id = e.venue_id "# + $rest,
            $($argument),*
        )
    };
}

impl Pg {
    /// The event with that id.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn find_event(&self, id: EventId) -> Result<Option<Event>, PgError> {
        let row = select_events!("WHERE e.id = $1", id.0).fetch_optional(self.pool()).await?;
        row.map(Event::try_from).transpose()
    }

    /// The database's clock, and whether an event still has that revision; none where there is no such event.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn now_if_event(
        &self,
        id: EventId,
        revision: Option<i32>,
    ) -> Result<Option<(crate::time::Instant, bool)>, PgError> {
        let offset_ms = self.offset_ms();
        let row = sqlx::query!(r#"SELECT hf_now($2) AS "now!", revision FROM events WHERE id = $1"#, id.0, offset_ms)
            .fetch_optional(self.pool())
            .await?;
        if let Some(row) = &row {
            self.clock().hear(row.now, offset_ms);
        }
        Ok(row.map(|row| (row.now, Some(row.revision) == revision)))
    }

    /// A page of events, oldest first, after `after`.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn list_events(&self, after: Option<EventId>, most: i64) -> Result<Vec<Event>, PgError> {
        let rows =
            select_events!("WHERE $1::uuid IS NULL OR e.id > $1 ORDER BY e.id LIMIT $2", after.map(|id| id.0), most)
                .fetch_all(self.pool())
                .await?;
        rows.into_iter().map(Event::try_from).collect()
    }

    /// The events whose picture Redis must show: preparing, on sale, or closed but not yet a day over.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn events_in_redis(&self) -> Result<Vec<Event>, PgError> {
        let rows = select_events!(
            "WHERE e.status IN ('preparing', 'on_sale')
                OR (e.status = 'closed' AND e.starts_at > hf_now($1) - interval '1 day')
             ORDER BY e.starts_at, e.id",
            self.offset_ms()
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(Event::try_from).collect()
    }

    /// The categories of a venue, in its order.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn list_categories(&self, venue: VenueId) -> Result<Vec<String>, PgError> {
        let categories =
            sqlx::query_scalar!("SELECT category FROM categories WHERE venue_id = $1 ORDER BY ordinal", venue.0)
                .fetch_all(self.pool())
                .await?;
        Ok(categories)
    }

    /// Moves an event from one of `from` to `to`. False where it is in none of them.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn move_event(&self, id: EventId, from: &[EventStatus], to: EventStatus) -> Result<bool, PgError> {
        let mut tx = self.begin().await?;
        let moved = move_event(&mut tx, id, from, to).await?;
        super::commit(tx).await?;
        Ok(moved)
    }

    /// Notes how many of a preparing event's blocks are written. Never goes back.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn note_blocks_prepared(&self, id: EventId, blocks: i32) -> Result<(), PgError> {
        sqlx::query!(
            "UPDATE events SET blocks_prepared = $2 WHERE id = $1 AND status = 'preparing' AND blocks_prepared < $2",
            id.0,
            blocks
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}

/// Locks an event for a change. Holds do not wait for it: they notice the revision instead.
pub(crate) async fn lock_event(tx: &mut Tx, id: EventId) -> Result<Option<Event>, PgError> {
    let row = select_events!("WHERE e.id = $1 FOR UPDATE OF e", id.0).fetch_optional(&mut **tx).await?;
    row.map(Event::try_from).transpose()
}

pub(crate) async fn move_event(
    tx: &mut Tx,
    id: EventId,
    from: &[EventStatus],
    to: EventStatus,
) -> Result<bool, PgError> {
    let from: Vec<&str> = from.iter().map(|status| status.as_str()).collect();
    let done = sqlx::query!(
        "UPDATE events SET status = $3, revision = revision + 1 WHERE id = $1 AND status = ANY ($2)",
        id.0,
        &from as &[&str],
        to.as_str()
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Inserts an event (its `date_key` holds only the day) and its prices. Returns the event's `date_key`: the day, or
/// the day and the first free number from 2.
pub(crate) async fn insert_event(tx: &mut Tx, event: &Event) -> Result<String, PgError> {
    let day = &event.date_key;
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended('date_key/' || $1, 0)) AS locked", day)
        .fetch_one(&mut **tx)
        .await?;
    let taken = sqlx::query_scalar!("SELECT date_key FROM events WHERE date_key = $1 OR date_key LIKE $1 || '-%'", day)
        .fetch_all(&mut **tx)
        .await?;
    let numbered = (2_u32..).map(|number| format!("{day}-{number}"));
    let free = std::iter::once(day.clone()).chain(numbered).find(|key| !taken.contains(key));
    let date_key = free.unwrap_or_default();
    sqlx::query!(
        "INSERT INTO events (id, venue_id, title, date_key, starts_at, starts_local, sales_open_at, sales_open_local,
             sales_close_at, sales_close_local, currency, hold_ttl_ms, payment_window_ms, extensions_max,
             seats_per_reservation_max, seats_per_buyer_max, status)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
        event.id.0,
        event.venue.0,
        event.title,
        date_key,
        event.starts_at.at,
        event.starts_at.local,
        event.sales_open_at.as_ref().map(|clock| clock.at),
        event.sales_open_at.as_ref().map(|clock| clock.local.as_str()),
        event.sales_close_at.as_ref().map(|clock| clock.at),
        event.sales_close_at.as_ref().map(|clock| clock.local.as_str()),
        event.currency.code(),
        event.rules.hold_ttl_ms,
        event.rules.payment_window_ms,
        event.rules.extensions_max,
        event.rules.seats_per_reservation_max,
        event.rules.seats_per_buyer_max,
        event.status.as_str()
    )
    .execute(&mut **tx)
    .await?;
    replace_prices(tx, event).await?;
    Ok(date_key)
}

/// Writes what a change may touch; the date key, the venue and the currency stay.
pub(crate) async fn update_event(tx: &mut Tx, event: &Event) -> Result<(), PgError> {
    sqlx::query!(
        "UPDATE events SET title = $2, sales_open_at = $3, sales_open_local = $4, sales_close_at = $5,
             sales_close_local = $6, hold_ttl_ms = $7, payment_window_ms = $8, extensions_max = $9,
             seats_per_reservation_max = $10, seats_per_buyer_max = $11, revision = revision + 1
         WHERE id = $1",
        event.id.0,
        event.title,
        event.sales_open_at.as_ref().map(|clock| clock.at),
        event.sales_open_at.as_ref().map(|clock| clock.local.as_str()),
        event.sales_close_at.as_ref().map(|clock| clock.at),
        event.sales_close_at.as_ref().map(|clock| clock.local.as_str()),
        event.rules.hold_ttl_ms,
        event.rules.payment_window_ms,
        event.rules.extensions_max,
        event.rules.seats_per_reservation_max,
        event.rules.seats_per_buyer_max
    )
    .execute(&mut **tx)
    .await?;
    replace_prices(tx, event).await
}

async fn replace_prices(tx: &mut Tx, event: &Event) -> Result<(), PgError> {
    let categories: Vec<&str> = event.prices.keys().map(String::as_str).collect();
    let amounts: Vec<i64> = event.prices.values().copied().collect();
    sqlx::query!("DELETE FROM prices WHERE event_id = $1", event.id.0).execute(&mut **tx).await?;
    sqlx::query!(
        "INSERT INTO prices (event_id, category, amount)
         SELECT $1, category, amount FROM unnest($2::text[], $3::bigint[]) AS price (category, amount)",
        event.id.0,
        &categories as &[&str],
        &amounts
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
