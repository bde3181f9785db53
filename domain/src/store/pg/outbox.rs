//! The outbox: a job exists because a row here says so.

use serde_json::Value;

use crate::id::{EventId, OutboxId};
use crate::queue::{JobId, NewJob, Queue};
use crate::runtime::clock::new_uuid;

use super::{Pg, PgError, Tx};

/// A row of the outbox: the job it causes has its id.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    /// The event it is about; nil for the installation as a whole.
    pub event: EventId,
    /// Its id.
    pub id: OutboxId,
    /// The queue.
    pub queue: Queue,
    /// What kind of job.
    pub kind: String,
    /// What the job needs to know: ids.
    pub payload: Value,
}

impl Pg {
    /// A page of open rows by key, after `after`.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn outbox_page(&self, after: Option<(EventId, OutboxId)>, most: i64) -> Result<Vec<OutboxRow>, PgError> {
        let (event, id) = after.map_or((uuid::Uuid::nil(), uuid::Uuid::nil()), |(event, id)| (event.0, id.0));
        let rows = sqlx::query!(
            "SELECT event_id, id, queue, kind, payload FROM outbox WHERE (event_id, id) > ($1, $2)
             ORDER BY event_id, id LIMIT $3",
            event,
            id,
            most
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(OutboxRow {
                    event: EventId(row.event_id),
                    id: OutboxId(row.id),
                    queue: Queue::parse(&row.queue).ok_or_else(|| PgError::unreadable("outbox", "queue", row.id))?,
                    kind: row.kind,
                    payload: row.payload,
                })
            })
            .collect()
    }
}

/// Writes a row: the job will be, once the transaction commits.
pub(crate) async fn insert_outbox(
    tx: &mut Tx,
    event: EventId,
    (queue, kind): (Queue, &str),
    payload: Value,
) -> Result<OutboxRow, PgError> {
    let row = OutboxRow { event, id: OutboxId(new_uuid()), queue, kind: kind.to_owned(), payload };
    sqlx::query!(
        "INSERT INTO outbox (event_id, id, queue, kind, payload, created_at) VALUES ($1, $2, $3, $4, $5, now())",
        row.event.0,
        row.id.0,
        row.queue.name(),
        row.kind,
        row.payload
    )
    .execute(&mut **tx)
    .await?;
    Ok(row)
}

/// Closes a row in the transaction of its job's effect.
pub(crate) async fn close_outbox(tx: &mut Tx, event: EventId, id: OutboxId) -> Result<(), PgError> {
    sqlx::query!("DELETE FROM outbox WHERE event_id = $1 AND id = $2", event.0, id.0).execute(&mut **tx).await?;
    Ok(())
}
