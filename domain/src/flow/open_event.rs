//! Opening an event: a job writes each block's list and every seat's bucket, then puts it on sale.
//!
//! Crash window: half written. The job is delivered again and writes only what is missing; the event goes on sale in the
//! transaction that closes the job's row.

use crate::event::EventStatus;
use crate::id::{EventId, OutboxId};
use crate::store::pg::events::move_event;
use crate::store::pg::outbox::close_outbox;
use crate::store::pg::{PgError, commit};

use super::read_block::{HealBlockError, rebuild_block};
use super::{FaultPoint, Stores};

/// Why an event is not open yet: the job comes again.
#[derive(Debug, thiserror::Error)]
pub enum OpenEventError {
    /// There is no such event.
    #[error("there is no event {0}")]
    NotFound(EventId),
    /// A store failed.
    #[error(transparent)]
    Heal(#[from] HealBlockError),
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

/// Writes an event into Redis and puts it on sale.
///
/// # Errors
/// [`OpenEventError`].
pub async fn open_event(stores: &Stores, id: EventId) -> Result<(), OpenEventError> {
    /// Progress is noted after so many blocks.
    const NOTED_EVERY: usize = 10;
    let sheet = stores.book.fresh_sheet(id).await?.ok_or(OpenEventError::NotFound(id))?;
    let blocks = sheet.map.blocks();
    for (index, block) in blocks.iter().enumerate() {
        rebuild_block(stores, &sheet, block).await?;
        stores.faults.pass(FaultPoint::OpenHalfWritten).await;
        let done = index + 1;
        if done % NOTED_EVERY == 0 || done == blocks.len() {
            let done = i32::try_from(done).unwrap_or(i32::MAX);
            stores.pg.note_blocks_prepared(id, done).await?;
        }
    }
    let mut tx = stores.pg.begin().await?;
    // Closed or called off meanwhile: it stays so.
    let is_open = move_event(&mut tx, id, &[EventStatus::Preparing], EventStatus::OnSale).await?;
    close_outbox(&mut tx, id, OutboxId(id.0)).await?;
    commit(tx).await?;
    if is_open {
        tracing::info!(event = %id, date_key = sheet.event.date_key, seats = sheet.map.seats().len(), "the event is on sale");
    }
    Ok(())
}
