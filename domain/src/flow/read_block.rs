//! Reading a block, and healing it: from Redis in one or two round trips, from Postgres where Redis is away, does not
//! know the block, or lacks buckets.
//!
//! Healing compares Redis with Postgres and writes what differs, each bucket only if it is still as it was before
//! Postgres was asked. Before an available seat it leaves a gate alone that is only seconds old: the hold behind it may be
//! about to commit. Before an owned seat no hold can commit, and a gate that nobody takes away would hide the owner.

use std::collections::HashMap;

use crate::event::EventStatus;
use crate::id::SeatId;
use crate::runtime::clock::new_uuid;
use crate::seat::SeatStatus;
use crate::seat_map::{Block, Seat};
use crate::store::pg::PgError;
use crate::store::pg::claims::{Claim, ClaimsRead};
use crate::store::redis::RedisUnavailable;
use crate::store::redis::buckets::{BlockPicture, BucketOwner, Healing, SeatBucket};
use crate::store::redis::keys::BlockKey;
use crate::time::{Instant, to_ms};

use super::event_book::EventSheet;
use super::{FaultPoint, Stores};

/// A block's seats as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockReading {
    /// The block's version; 0 where it was read from Postgres.
    pub version: u64,
    /// The clock of the store that was read, ms.
    pub now_ms: i64,
    /// Each seat's status and, where it is held and can expire, its deadline in ms; in seat order.
    pub seats: Vec<SeatReading>,
}

/// One seat of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeatReading {
    /// Its status, a deadline that has passed not yet applied.
    pub status: SeatStatus,
    /// When a held seat becomes available, ms.
    pub deadline_ms: Option<i64>,
}

impl SeatReading {
    /// An available seat.
    pub const AVAILABLE: Self = Self { status: SeatStatus::Available, deadline_ms: None };

    /// What it is at `now_ms`: a held seat whose deadline has passed is available (I3).
    #[must_use]
    pub fn status_at(self, now_ms: i64) -> SeatStatus {
        match (self.status, self.deadline_ms) {
            (SeatStatus::Held, Some(deadline)) if deadline <= now_ms => SeatStatus::Available,
            (status, _) => status,
        }
    }
}

/// Reads a block of an event.
///
/// # Errors
/// [`PgError`] where both stores are away.
pub async fn read_block(stores: &Stores, sheet: &EventSheet, block: &Block) -> Result<BlockReading, PgError> {
    match stores.redis.read_block(&sheet.block_key(block)).await {
        Ok(Some(picture)) => {
            if let Some(reading) = whole_reading(stores, sheet, block, &picture) {
                return Ok(reading);
            }
            heal_block(stores, sheet, &sheet.block_key(block)).await;
            read_from_postgres(stores, sheet, block, picture.version).await
        }
        Ok(None) | Err(_) => read_from_postgres(stores, sheet, block, 0).await,
    }
}

/// The picture as a reading, unless a bucket is absent or unreadable.
fn whole_reading(stores: &Stores, sheet: &EventSheet, block: &Block, picture: &BlockPicture) -> Option<BlockReading> {
    let key = sheet.block_key(block);
    let by_key: HashMap<&str, &SeatBucket> =
        picture.buckets.iter().filter_map(|(key, bucket)| Some((key.as_str(), bucket.as_ref()?))).collect();
    let seats = sheet.map.seats_of(block).iter().map(|seat| {
        let bucket = by_key.get(stores.redis.keys().seat(&key, &seat.column, &seat.row).as_str())?;
        Some(SeatReading { status: SeatStatus::from_word(&bucket.status)?, deadline_ms: bucket.deadline() })
    });
    let seats = seats.collect::<Option<Vec<_>>>()?;
    Some(BlockReading { version: picture.version, now_ms: picture.now_ms, seats })
}

async fn read_from_postgres(
    stores: &Stores,
    sheet: &EventSheet,
    block: &Block,
    version: u64,
) -> Result<BlockReading, PgError> {
    let seats = sheet.map.seats_of(block);
    let ids: Vec<SeatId> = seats.iter().map(|seat| seat.id).collect();
    let read = stores.pg.read_claims(sheet.event.id, &ids).await?;
    let claims: HashMap<SeatId, &Claim> = read.claims.iter().map(|claim| (claim.seat, claim)).collect();
    let seats = seats.iter().map(|seat| {
        claims.get(&seat.id).map_or(SeatReading::AVAILABLE, |claim| SeatReading {
            status: claim.state.seat_status(),
            deadline_ms: claim.expires_at.map(to_ms),
        })
    });
    Ok(BlockReading { version, now_ms: to_ms(read.read_at), seats: seats.collect() })
}

/// Why a block could not be healed.
#[derive(Debug, thiserror::Error)]
pub enum HealBlockError {
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
    /// Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisUnavailable),
}

/// Heals a block where a reader or a refusal found it wrong. A failure is logged: the next one to find it comes again.
pub(crate) async fn heal_block(stores: &Stores, sheet: &EventSheet, key: &BlockKey) {
    let Some(block) = sheet.map.block(&key.block) else { return };
    match rebuild_block(stores, sheet, block).await {
        Ok(0) => {}
        Ok(seats) => tracing::info!(date = %key.date, block = key.block.as_str(), seats, "healed a block in Redis"),
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a block is not healed yet"),
    }
}

/// How often seats are looked at that change under the healing.
const LOOKS_MAX: usize = 8;

/// Makes a block's list and buckets in Redis what Postgres says. Returns how many buckets were written. Safe beside
/// holds, expiries and another rebuild.
///
/// # Errors
/// [`HealBlockError`]; what was written stays right.
pub async fn rebuild_block(stores: &Stores, sheet: &EventSheet, block: &Block) -> Result<u64, HealBlockError> {
    let key = sheet.block_key(block);
    let seats: Vec<&Seat> = sheet.map.seats_of(block).iter().collect();
    let keys = seat_keys(stores, &key, &seats);
    stores.redis.create_seat_list(&key, &keys, &new_uuid().to_string()).await?;
    let Some(mut picture) = stores.redis.read_block(&key).await? else { return Ok(0) };
    // A list with a key too few, too many or out of place would send every reader to Postgres, for ever.
    let is_listed = picture.buckets.iter().map(|(key, _)| key).eq(&keys);
    if !is_listed || stores.redis.list_facts(&key).await?.1 >= 0 {
        stores.redis.replace_seat_list(&key, &keys, &new_uuid().to_string()).await?;
        picture = stores.redis.read_seats(&key, keys.clone()).await?;
    }
    Ok(heal_until_right(stores, (sheet, &key), (&seats, keys), picture).await?.0)
}

/// Heals until a look finds nothing wrong. A release of a seat that is shown available leaves its bucket as it is, so that
/// who read Postgres just before it writes what is over: who has written therefore looks again. So does who was overtaken,
/// since nobody else may ever come to that seat. Returns how many buckets were written, and whether all is right now.
async fn heal_until_right(
    stores: &Stores,
    block: (&EventSheet, &BlockKey),
    (seats, keys): (&[&Seat], Vec<String>),
    mut picture: BlockPicture,
) -> Result<(u64, bool), HealBlockError> {
    let mut written = 0;
    for _ in 0..LOOKS_MAX {
        let healed = heal_seats(stores, block, (seats, keys.clone()), picture).await?;
        written += healed.written;
        if healed.wrong == 0 {
            return Ok((written, healed.gated == 0));
        }
        picture = stores.redis.read_seats(block.1, keys.clone()).await?;
    }
    Ok((written, false))
}

/// Makes some seats of a block show what Postgres says, whatever they showed. False where a seat could not be written
/// now: it changed meanwhile, or a gate stands before it. Look again when that is over.
///
/// # Errors
/// [`HealBlockError`]; what was written stays right.
pub(crate) async fn heal_some(
    stores: &Stores,
    sheet: &EventSheet,
    (block, some): (&Block, &[SeatId]),
) -> Result<bool, HealBlockError> {
    let key = sheet.block_key(block);
    let seats: Vec<&Seat> = sheet.map.seats_of(block).iter().filter(|seat| some.contains(&seat.id)).collect();
    let keys = seat_keys(stores, &key, &seats);
    let picture = stores.redis.read_seats(&key, keys.clone()).await?;
    Ok(heal_until_right(stores, (sheet, &key), (&seats, keys), picture).await?.1)
}

fn seat_keys(stores: &Stores, block: &BlockKey, seats: &[&Seat]) -> Vec<String> {
    seats.iter().map(|seat| stores.redis.keys().seat(block, &seat.column, &seat.row)).collect()
}

struct Healed {
    wrong: u64,
    written: u64,
    gated: u64,
}

async fn heal_seats(
    stores: &Stores,
    (sheet, key): (&EventSheet, &BlockKey),
    (seats, keys): (&[&Seat], Vec<String>),
    picture: BlockPicture,
) -> Result<Healed, HealBlockError> {
    // Redis is read before Postgres: whatever changes in between fails the compare-and-set.
    let ids: Vec<SeatId> = seats.iter().map(|seat| seat.id).collect();
    let read = stores.pg.read_claims(sheet.event.id, &ids).await?;
    let (healings, gated) = compare(stores, (sheet, seats), (keys, picture), &read);
    stores.faults.pass(FaultPoint::HealRead).await;
    if sheet.event.status != EventStatus::Preparing {
        let wrong = healings.iter().filter(|healing| healing.seen.is_some()).count();
        let count = |seats: usize| u64::try_from(seats).unwrap_or(0);
        metrics::counter!("holdfast_drift_seats_total", "bucket" => "wrong").increment(count(wrong));
        metrics::counter!("holdfast_drift_seats_total", "bucket" => "absent").increment(count(healings.len() - wrong));
    }
    let written = stores.redis.heal_seats(key, &healings).await?;
    Ok(Healed { wrong: u64::try_from(healings.len()).unwrap_or(u64::MAX), written, gated })
}

/// What is to be written, and how many seats look held only by the gate before them.
fn compare(
    stores: &Stores,
    (sheet, seats): (&EventSheet, &[&Seat]),
    (keys, picture): (Vec<String>, BlockPicture),
    read: &ClaimsRead,
) -> (Vec<Healing>, u64) {
    let claims: HashMap<SeatId, &Claim> = read.claims.iter().map(|claim| (claim.seat, claim)).collect();
    let mut buckets: HashMap<String, Option<SeatBucket>> = picture.buckets.into_iter().collect();
    let mut healings = Vec::new();
    let mut gated = 0;
    for (seat, key) in seats.iter().zip(keys) {
        let shown = buckets.remove(&key).flatten();
        let (wanted, deadline) = wanted_bucket(sheet, claims.get(&seat.id).copied(), read.read_at);
        let is_right = shown.as_ref().is_some_and(|shown| {
            shown.status == wanted.status
                && shown.match_id == wanted.match_id
                && shown.user_id == wanted.user_id
                && shown.reservation_id == wanted.reservation_id
                && shown.deadline_ms == wanted.deadline_ms
        });
        if is_right {
            continue;
        }
        // A seat that is somebody else's for sure has no gate: the hold behind it will be refused.
        let may_commit = |shown: &SeatBucket| {
            wanted.status == SeatStatus::Available.as_str() || wanted.reservation_id == shown.reservation_id
        };
        let waits = |shown: &SeatBucket| is_gate(shown, picture.now_ms, stores.timing.gate_ms) && may_commit(shown);
        if shown.as_ref().is_some_and(waits) {
            gated += 1;
            continue;
        }
        healings.push(Healing {
            key,
            seen: shown.map(|shown| shown.version.unwrap_or_else(|| "?".to_owned())),
            bucket: wanted,
            vanishes_at_ms: deadline.map(|at| to_ms(at) + stores.timing.bucket_grace_ms),
        });
    }
    (healings, gated)
}

/// A gate is shown as held with a deadline only seconds away; it opens by itself.
fn is_gate(shown: &SeatBucket, now_ms: i64, gate_ms: i64) -> bool {
    let near = |deadline: i64| deadline > now_ms && deadline <= now_ms + gate_ms;
    shown.status == SeatStatus::Held.as_str() && shown.created_at.is_none() && shown.deadline().is_some_and(near)
}

fn wanted_bucket(sheet: &EventSheet, claim: Option<&Claim>, now: Instant) -> (SeatBucket, Option<Instant>) {
    let event = sheet.event.id;
    let alive = claim.filter(|claim| claim.expires_at.is_none_or(|deadline| deadline > now));
    let Some(claim) = alive else { return (SeatBucket::unowned(event, SeatStatus::Available), None) };
    let status = claim.state.seat_status();
    match &claim.owner {
        None => (SeatBucket::unowned(event, status), None),
        Some(owner) => {
            let owner = BucketOwner {
                reservation: owner.reservation,
                buyer: owner.buyer.clone(),
                created_at: owner.created_at,
                deadline: claim.expires_at,
            };
            (SeatBucket::owned(event, status, &owner, &sheet.event.zone), claim.expires_at)
        }
    }
}
