//! Keeping seats from sale, and giving them back to it.
//!
//! Crash window: after the commit Redis still shows the seats as they were. A hold that is let through by it is refused
//! by Postgres, which heals the block; a seat that was given back shows as blocked until a warm-up. Neither is sold
//! wrongly: the claim decides.

use std::collections::BTreeMap;

use crate::id::{EventId, SeatId};
use crate::label::Label;
use crate::seat::{SeatRef, SeatStatus};
use crate::seat_map::Block;
use crate::store::pg::PgError;
use crate::store::pg::claims::Blocking;

use super::Stores;
use super::event_book::EventSheet;
use super::read_block::rebuild_block;

/// Which seats, and why.
#[derive(Debug, Clone)]
pub struct BlockSeatsOrder {
    /// The event.
    pub event: EventId,
    /// The seats, as the caller names them.
    pub seats: Vec<SeatRef>,
    /// Kept from sale, or given back.
    pub blocking: Blocking,
    /// Who says so.
    pub actor: String,
    /// Why.
    pub reason: String,
}

/// What has become of the seats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSeatsReport {
    /// Those that changed, in the order of the request.
    pub changed: Vec<SeatId>,
    /// Those that did not, with what they are instead: somebody owns them, or there was nothing to change.
    pub unchanged: Vec<(SeatId, SeatStatus)>,
}

/// Why no seat was changed.
#[derive(Debug, thiserror::Error)]
pub enum BlockSeatsError {
    /// There is no such event.
    #[error("there is no such event")]
    UnknownEvent,
    /// Seats that the event does not have: indices into the request's seats.
    #[error("the event does not have these seats")]
    UnknownSeats(Vec<usize>),
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

/// Keeps seats that nobody owns from sale, or gives such seats back to it. A seat that somebody owns stays as it is: an
/// operator never takes a seat from a buyer this way.
///
/// # Errors
/// [`BlockSeatsError`].
pub async fn block_seats(stores: &Stores, order: BlockSeatsOrder) -> Result<BlockSeatsReport, BlockSeatsError> {
    let sheet = stores.book.sheet(order.event).await?.ok_or(BlockSeatsError::UnknownEvent)?;
    let (ids, blocks) = find_seats(&sheet, &order.seats)?;
    let how = (order.blocking, order.actor.as_str(), order.reason.as_str());
    let changed = stores.pg.block_seats(order.event, &ids, how).await?;
    for block in blocks {
        if let Err(error) = rebuild_block(stores, &sheet, block).await {
            stores.note_redis_missed();
            tracing::warn!(error = &error as &dyn std::error::Error, "the change is not shown in Redis yet");
        }
    }
    let read = stores.pg.read_claims(order.event, &ids).await?;
    let status = |id: SeatId| {
        let claim = read.claims.iter().find(|claim| claim.seat == id);
        let alive = claim.filter(|claim| claim.expires_at.is_none_or(|deadline| deadline > read.read_at));
        alive.map_or(SeatStatus::Available, |claim| claim.state.seat_status())
    };
    let (changed, unchanged): (Vec<SeatId>, Vec<SeatId>) = ids.into_iter().partition(|id| changed.contains(id));
    Ok(BlockSeatsReport { changed, unchanged: unchanged.into_iter().map(|id| (id, status(id))).collect() })
}

/// The seats' ids, each once, and the blocks they are in.
fn find_seats<'a>(sheet: &'a EventSheet, asked: &[SeatRef]) -> Result<(Vec<SeatId>, Vec<&'a Block>), BlockSeatsError> {
    let found: Vec<_> = asked.iter().map(|seat| sheet.map.resolve(seat)).collect();
    let unknown = |(index, seat): (usize, &Option<_>)| seat.is_none().then_some(index);
    let unknown: Vec<usize> = found.iter().enumerate().filter_map(unknown).collect();
    if !unknown.is_empty() {
        return Err(BlockSeatsError::UnknownSeats(unknown));
    }
    let mut ids = Vec::new();
    let mut blocks: BTreeMap<&Label, &Block> = BTreeMap::new();
    for seat in found.into_iter().flatten() {
        if !ids.contains(&seat.id) {
            ids.push(seat.id);
        }
        let block = sheet.map.block_of(seat);
        blocks.insert(&block.block, block);
    }
    Ok((ids, blocks.into_values().collect()))
}
