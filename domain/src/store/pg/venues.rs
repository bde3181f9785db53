//! Venues, their blocks and seats.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::id::{BlockId, SeatId, VenueId};
use crate::label::Label;
use crate::runtime::clock::new_uuid;
use crate::seat::{ClaimState, SeatStatus};
use crate::seat_map::{Block, Seat, SeatMap};
use crate::time::{Instant, VenueZone};
use crate::venue::{MapBlock, VenueMap};

use super::{Pg, PgError, Tx, commit};

/// A venue without its seats.
#[derive(Debug, Clone)]
pub struct Venue {
    /// Its id.
    pub id: VenueId,
    /// What people call it; unique.
    pub name: String,
    /// Its zone.
    pub zone: VenueZone,
    /// Grows with each change of its map.
    pub version: i32,
    /// SHA-256 of its map.
    pub content_hash: String,
    /// How many blocks it has.
    pub block_count: i32,
    /// How many seats it has.
    pub seat_count: i32,
    /// When it was first imported.
    pub created_at: Instant,
}

/// What storing a map came to.
#[derive(Debug, Clone)]
pub enum StoredMap {
    /// A new venue.
    Created(Venue),
    /// The venue had this very map: nothing changed.
    Unchanged(Venue),
    /// The map of a venue that no event uses was replaced; its seats have new ids.
    Replaced(Venue),
    /// Events use the venue with another map; with the seats that somebody owns and which the new map would drop or
    /// sell under another category.
    InUse(Venue, Vec<TakenSeat>),
    /// The venue is in another zone.
    OtherZone(Venue),
}

/// A seat that somebody owns and that a new map would not leave as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenSeat {
    /// The seat.
    pub id: SeatId,
    /// Its block.
    pub block: Label,
    /// Its row.
    pub row: Label,
    /// Its column.
    pub column: Label,
    /// How it is shown in the event that has it furthest: sold before held before blocked.
    pub status: SeatStatus,
    /// The category that the new map gives it; none where it has no such seat.
    pub new_category: Option<String>,
}

macro_rules! venue {
    ($row:expr) => {
        Venue {
            id: VenueId($row.id),
            zone: VenueZone::parse(&$row.time_zone).map_err(|_| PgError::unreadable("venues", "time_zone", $row.id))?,
            name: $row.name,
            version: $row.version,
            content_hash: $row.content_hash,
            block_count: $row.block_count,
            seat_count: $row.seat_count,
            created_at: $row.created_at,
        }
    };
}

impl Pg {
    /// The venue with that id.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn find_venue(&self, id: VenueId) -> Result<Option<Venue>, PgError> {
        let row = sqlx::query!(
            "SELECT id, name, time_zone, version, content_hash, block_count, seat_count, created_at
             FROM venues WHERE id = $1",
            id.0
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(match row {
            Some(row) => Some(venue!(row)),
            None => None,
        })
    }

    /// A page of venues, oldest first, after `after`.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn list_venues(&self, after: Option<VenueId>, most: i64) -> Result<Vec<Venue>, PgError> {
        let rows = sqlx::query!(
            "SELECT id, name, time_zone, version, content_hash, block_count, seat_count, created_at
             FROM venues WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT $2",
            after.map(|id| id.0),
            most
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(|row| Ok(venue!(row))).collect()
    }

    /// Stores a checked map under a name, whole or not at all.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn store_map(&self, name: &str, zone: &VenueZone, map: &VenueMap) -> Result<StoredMap, PgError> {
        let hash = map.content_hash();
        let mut tx = self.begin().await?;
        // 200,000 seats take longer than a statement of the hot path may.
        sqlx::query!("SELECT set_config('statement_timeout', '60000', true) AS set").fetch_one(&mut *tx).await?;
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended('venue/' || $1, 0)) AS locked", name)
            .fetch_one(&mut *tx)
            .await?;
        let row = sqlx::query!(
            "SELECT id, name, time_zone, version, content_hash, block_count, seat_count, created_at
             FROM venues WHERE name = $1 FOR UPDATE",
            name
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else {
            let id = VenueId(new_uuid());
            insert_venue(&mut tx, id, (name, zone), map, &hash).await?;
            commit(tx).await?;
            return Ok(StoredMap::Created(self.stored_venue(id).await?));
        };
        let known: Venue = venue!(row);
        if known.zone.name() != zone.name() {
            return Ok(StoredMap::OtherZone(known));
        }
        if known.content_hash == hash {
            return Ok(StoredMap::Unchanged(known));
        }
        let used =
            sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM events WHERE venue_id = $1) AS "used!""#, known.id.0)
                .fetch_one(&mut *tx)
                .await?;
        if used {
            let taken = taken_seats(&mut tx, (known.id, self.offset_ms()), map).await?;
            return Ok(StoredMap::InUse(known, taken));
        }
        replace_map(&mut tx, known.id, map, &hash).await?;
        commit(tx).await?;
        Ok(StoredMap::Replaced(self.stored_venue(known.id).await?))
    }

    async fn stored_venue(&self, id: VenueId) -> Result<Venue, PgError> {
        self.find_venue(id).await?.ok_or_else(|| PgError::unreadable("venues", "id", id))
    }

    /// All blocks and seats of a venue.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn load_seat_map(&self, venue: VenueId) -> Result<SeatMap, PgError> {
        let rows =
            sqlx::query!("SELECT id, block, names, tier FROM blocks WHERE venue_id = $1 ORDER BY ordinal", venue.0)
                .fetch_all(self.pool())
                .await?;
        let mut blocks = Vec::with_capacity(rows.len());
        let mut seats: Vec<Seat> = Vec::new();
        let mut texts = Texts::default();
        for (index, row) in rows.into_iter().enumerate() {
            let first = seats.len();
            let block_seats = sqlx::query!(
                "SELECT id, row_label, column_label, label, category, x, y FROM seats WHERE block_id = $1 ORDER BY ordinal",
                row.id
            )
            .fetch_all(self.pool())
            .await?;
            for seat in block_seats {
                #[expect(clippy::cast_possible_truncation, reason = "a drawing needs no more than single precision")]
                let (x, y) = (seat.x as f32, seat.y as f32);
                seats.push(Seat {
                    id: SeatId(seat.id),
                    block: u32::try_from(index).unwrap_or(u32::MAX),
                    row: texts
                        .label(&seat.row_label)
                        .ok_or_else(|| PgError::unreadable("seats", "row_label", seat.id))?,
                    column: texts
                        .label(&seat.column_label)
                        .ok_or_else(|| PgError::unreadable("seats", "column_label", seat.id))?,
                    label: texts.text(&seat.label),
                    category: texts.text(&seat.category),
                    x,
                    y,
                });
            }
            let names: BTreeMap<String, String> = serde_json::from_value(row.names).unwrap_or_default();
            blocks.push(Block {
                id: BlockId(row.id),
                block: Label::parse(&row.block).map_err(|_| PgError::unreadable("blocks", "block", row.id))?,
                names,
                tier: row.tier,
                seats: first..seats.len(),
            });
        }
        Ok(SeatMap::new(venue, blocks, seats))
    }

    /// The map of a venue as it was imported.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn load_map(&self, venue: VenueId) -> Result<VenueMap, PgError> {
        let categories =
            sqlx::query!("SELECT category, color FROM categories WHERE venue_id = $1 ORDER BY ordinal", venue.0)
                .fetch_all(self.pool())
                .await?;
        let categories = categories
            .into_iter()
            .map(|row| crate::venue::MapCategory { category: row.category, color: row.color })
            .collect();
        let rows =
            sqlx::query!("SELECT id, block, names, tier FROM blocks WHERE venue_id = $1 ORDER BY ordinal", venue.0)
                .fetch_all(self.pool())
                .await?;
        let mut blocks = Vec::with_capacity(rows.len());
        for row in rows {
            let seats = sqlx::query!(
                "SELECT id, row_label, column_label, label, category, x, y, neighbours FROM seats
                 WHERE block_id = $1 ORDER BY ordinal",
                row.id
            )
            .fetch_all(self.pool())
            .await?;
            let seats = seats.into_iter().map(|seat| {
                Ok(crate::venue::MapSeat {
                    row: Label::parse(&seat.row_label)
                        .map_err(|_| PgError::unreadable("seats", "row_label", seat.id))?,
                    column: Label::parse(&seat.column_label)
                        .map_err(|_| PgError::unreadable("seats", "column_label", seat.id))?,
                    label: seat.label,
                    category: seat.category,
                    x: seat.x,
                    y: seat.y,
                    neighbours: seat.neighbours.into_iter().filter_map(|index| u32::try_from(index).ok()).collect(),
                })
            });
            blocks.push(MapBlock {
                block: Label::parse(&row.block).map_err(|_| PgError::unreadable("blocks", "block", row.id))?,
                names: serde_json::from_value(row.names).unwrap_or_default(),
                tier: row.tier,
                seats: seats.collect::<Result<_, PgError>>()?,
            });
        }
        Ok(VenueMap { categories, blocks })
    }
}

/// Labels and categories recur thousands of times: each is kept once.
#[derive(Default)]
struct Texts {
    labels: HashMap<String, Label>,
    texts: HashMap<String, Arc<str>>,
}

impl Texts {
    fn label(&mut self, text: &str) -> Option<Label> {
        if let Some(label) = self.labels.get(text) {
            return Some(label.clone());
        }
        let label = Label::parse(text).ok()?;
        self.labels.insert(text.to_owned(), label.clone());
        Some(label)
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(text.to_owned(), Arc::clone(&new));
        new
    }
}

async fn insert_venue(
    tx: &mut Tx,
    id: VenueId,
    (name, zone): (&str, &VenueZone),
    map: &VenueMap,
    hash: &str,
) -> Result<(), PgError> {
    let (blocks, seats) = (count(map.blocks.len()), count(map.seat_count()));
    sqlx::query!(
        "INSERT INTO venues (id, name, time_zone, content_hash, block_count, seat_count) VALUES ($1, $2, $3, $4, $5, $6)",
        id.0,
        name,
        zone.name(),
        hash,
        blocks,
        seats
    )
    .execute(&mut **tx)
    .await?;
    insert_map(tx, id, map).await
}

/// The owned seats of a venue that a new map would drop, or sell under another category; in seat order.
async fn taken_seats(
    tx: &mut Tx,
    (venue, offset_ms): (VenueId, i64),
    map: &VenueMap,
) -> Result<Vec<TakenSeat>, PgError> {
    let kept: HashMap<(&str, &str, &str), &str> = map
        .blocks
        .iter()
        .flat_map(|block| block.seats.iter().map(move |seat| (block, seat)))
        .map(|(block, seat)| ((block.block.as_str(), seat.row.as_str(), seat.column.as_str()), seat.category.as_str()))
        .collect();
    let owned = sqlx::query!(
        r#"SELECT s.id, b.block, s.row_label, s.column_label, s.category,
                  (array_agg(c.state ORDER BY array_position(ARRAY['sold', 'committed', 'held', 'blocked'], c.state)))[1]
                      AS "state!"
           FROM events e JOIN seat_claims c ON c.event_id = e.id JOIN seats s ON s.id = c.seat_id
           JOIN blocks b ON b.id = s.block_id
           WHERE e.venue_id = $1 AND (c.expires_at IS NULL OR c.expires_at > hf_now($2))
           GROUP BY s.id, b.block, b.ordinal ORDER BY b.ordinal, s.ordinal"#,
        venue.0,
        offset_ms
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut taken = Vec::new();
    for seat in owned {
        let new_category = kept.get(&(seat.block.as_str(), seat.row_label.as_str(), seat.column_label.as_str()));
        if new_category.is_some_and(|category| *category == seat.category) {
            continue;
        }
        let label = |text: &str, column| Label::parse(text).map_err(|_| PgError::unreadable("seats", column, seat.id));
        taken.push(TakenSeat {
            id: SeatId(seat.id),
            block: label(&seat.block, "block")?,
            row: label(&seat.row_label, "row_label")?,
            column: label(&seat.column_label, "column_label")?,
            status: ClaimState::from_word(&seat.state)
                .ok_or_else(|| PgError::unreadable("seat_claims", "state", seat.id))?
                .seat_status(),
            new_category: new_category.map(|category| (*category).to_owned()),
        });
    }
    Ok(taken)
}

/// Keeps a venue's map as it is until the transaction ends: what is made of it meanwhile fits it.
pub(crate) async fn keep_map(tx: &mut Tx, id: VenueId) -> Result<(), PgError> {
    sqlx::query!("SELECT id FROM venues WHERE id = $1 FOR SHARE", id.0).fetch_optional(&mut **tx).await?;
    Ok(())
}

async fn replace_map(tx: &mut Tx, id: VenueId, map: &VenueMap, hash: &str) -> Result<(), PgError> {
    sqlx::query!("DELETE FROM blocks WHERE venue_id = $1", id.0).execute(&mut **tx).await?;
    sqlx::query!("DELETE FROM categories WHERE venue_id = $1", id.0).execute(&mut **tx).await?;
    sqlx::query!(
        "UPDATE venues SET version = version + 1, content_hash = $2, block_count = $3, seat_count = $4 WHERE id = $1",
        id.0,
        hash,
        count(map.blocks.len()),
        count(map.seat_count())
    )
    .execute(&mut **tx)
    .await?;
    insert_map(tx, id, map).await
}

/// Arrays, one for each column: the number of bound values does not grow with the number of seats.
async fn insert_map(tx: &mut Tx, id: VenueId, map: &VenueMap) -> Result<(), PgError> {
    let categories: Vec<&str> = map.categories.iter().map(|category| category.category.as_str()).collect();
    let colors: Vec<Option<&str>> = map.categories.iter().map(|category| category.color.as_deref()).collect();
    sqlx::query!(
        "INSERT INTO categories (venue_id, category, color, ordinal)
         SELECT $1, category, color, ordinal::integer
         FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS category (category, color, ordinal)",
        id.0,
        &categories as &[&str],
        &colors as &[Option<&str>]
    )
    .execute(&mut **tx)
    .await?;
    for (ordinal, block) in map.blocks.iter().enumerate() {
        let names = serde_json::to_value(&block.names).unwrap_or_default();
        let block_id = sqlx::query_scalar!(
            "INSERT INTO blocks (venue_id, block, ordinal, names, tier) VALUES ($1, $2, $3, $4, $5) RETURNING id",
            id.0,
            block.block.as_str(),
            count(ordinal),
            names,
            block.tier
        )
        .fetch_one(&mut **tx)
        .await?;
        insert_seats(tx, id, block_id, block).await?;
    }
    Ok(())
}

async fn insert_seats(tx: &mut Tx, id: VenueId, block_id: i64, block: &MapBlock) -> Result<(), PgError> {
    let seats = &block.seats;
    let rows: Vec<&str> = seats.iter().map(|seat| seat.row.as_str()).collect();
    let columns: Vec<&str> = seats.iter().map(|seat| seat.column.as_str()).collect();
    let labels: Vec<&str> = seats.iter().map(|seat| seat.label.as_str()).collect();
    let categories: Vec<&str> = seats.iter().map(|seat| seat.category.as_str()).collect();
    let xs: Vec<f64> = seats.iter().map(|seat| seat.x).collect();
    let ys: Vec<f64> = seats.iter().map(|seat| seat.y).collect();
    // An array of arrays must be a rectangle in SQL: the lists of neighbours travel as text.
    let neighbours: Vec<String> = seats
        .iter()
        .map(|seat| {
            let indices: Vec<String> = seat.neighbours.iter().map(u32::to_string).collect();
            format!("{{{}}}", indices.join(","))
        })
        .collect();
    sqlx::query!(
        "INSERT INTO seats (venue_id, block_id, ordinal, row_label, column_label, label, category, x, y, neighbours)
         SELECT $1, $2, ordinal::integer - 1, row_label, column_label, label, category, x, y, neighbours::integer[]
         FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::float8[], $8::float8[], $9::text[])
             WITH ORDINALITY AS seat (row_label, column_label, label, category, x, y, neighbours, ordinal)
         ORDER BY ordinal",
        id.0,
        block_id,
        &rows as &[&str],
        &columns as &[&str],
        &labels as &[&str],
        &categories as &[&str],
        &xs,
        &ys,
        &neighbours
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
