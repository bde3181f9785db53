//! Blocking: an operator keeps seats from sale, all of those named or none, and gives them back.
//!
//! Crash window: after the commit Redis shows the seats as before. A row of the outbox, written in the same transaction,
//! says that the event must be written into Redis again; Redis is told before the commit to look for it. The row is the
//! event's one row, which an opening may share: only its job closes it.

use serde_json::json;

use crate::id::{EventId, OutboxId, SeatId};
use crate::queue::Queue;
use crate::seat::{SeatRef, SeatStatus};
use crate::store::pg::claims::{Blocking, block_claims, unblock_claims};
use crate::store::pg::outbox::{JobKind, OutboxRow, insert_outbox};
use crate::store::pg::{PgError, commit};

use super::event_book::EventSheet;
use super::read_block::heal_some;
use super::{FaultPoint, Stores};

/// What an operator wants.
pub struct BlockOrder {
    /// The event.
    pub event: EventId,
    /// Which seats.
    pub seats: Vec<SeatRef>,
    /// Keep from sale, or give back.
    pub blocking: Blocking,
    /// Who does it, for the log.
    pub actor: String,
    /// Why, for the log.
    pub reason: String,
}

/// Why seats stay as they are.
#[derive(Debug, thiserror::Error)]
pub enum BlockSeatsError {
    /// There is no such event.
    #[error("there is no such event")]
    UnknownEvent,
    /// Seats that the event does not have: indices into the order's seats.
    #[error("the event does not have these seats")]
    UnknownSeats(Vec<usize>),
    /// Somebody owns these; nothing is blocked.
    #[error("seats are owned")]
    Owned(Vec<(SeatId, SeatStatus)>),
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

/// Blocks or unblocks seats. Returns how many were named.
///
/// # Errors
/// [`BlockSeatsError`].
pub async fn block_seats(stores: &Stores, order: BlockOrder) -> Result<usize, BlockSeatsError> {
    let sheet = stores.book.sheet(order.event).await?.ok_or(BlockSeatsError::UnknownEvent)?;
    let found: Vec<Option<SeatId>> =
        order.seats.iter().map(|seat| sheet.map.resolve(seat).map(|seat| seat.id)).collect();
    let unknown: Vec<usize> =
        found.iter().enumerate().filter_map(|(index, seat)| seat.is_none().then_some(index)).collect();
    if !unknown.is_empty() {
        return Err(BlockSeatsError::UnknownSeats(unknown));
    }
    let mut seats: Vec<SeatId> = found.into_iter().flatten().collect();
    seats.sort_unstable();
    seats.dedup();
    let row = OutboxRow {
        event: order.event,
        id: OutboxId(order.event.0),
        queue: Queue::Events,
        kind: JobKind::OpenEvent,
        payload: json!({ "event": order.event }),
    };
    if stores.redis.mark_unsettled(order.event.0).await.is_err() {
        stores.note_redis_missed();
    }
    stores.faults.pass(FaultPoint::BlockMarked).await;
    let offset = stores.pg.clock().offset_ms();
    let (place, log) = ((order.event, seats.as_slice()), (order.actor.as_str(), order.reason.as_str()));
    let mut tx = stores.pg.begin().await?;
    match order.blocking {
        Blocking::Block => {
            let owned = block_claims(&mut tx, place, log, offset).await?;
            if !owned.is_empty() {
                return Err(BlockSeatsError::Owned(owned));
            }
        }
        Blocking::Unblock => unblock_claims(&mut tx, place, log, offset).await?,
    }
    insert_outbox(&mut tx, &row).await?;
    commit(tx).await?;
    stores.faults.pass(FaultPoint::BlockCommitted).await;
    // At once where that is possible; the job makes sure.
    show(stores, &sheet, &seats).await;
    stores.faults.pass(FaultPoint::BlockShown).await;
    if let Err(error) = stores.jobs.enqueue(&[row.job()]).await {
        stores.note_redis_missed();
        tracing::warn!(error = &error as &dyn std::error::Error, "the job waits in the outbox");
    }
    Ok(seats.len())
}

async fn show(stores: &Stores, sheet: &EventSheet, seats: &[SeatId]) {
    for block in sheet.map.blocks() {
        let some: Vec<SeatId> =
            sheet.map.seats_of(block).iter().map(|seat| seat.id).filter(|seat| seats.contains(seat)).collect();
        if !some.is_empty() && heal_some(stores, sheet, (block, &some)).await.is_err() {
            return;
        }
    }
}
