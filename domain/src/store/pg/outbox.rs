//! The outbox: a job exists because a row here says so.

use serde_json::Value;

use crate::id::{EventId, OutboxId};
use crate::queue::{JobId, NewJob, Queue};

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
    pub kind: JobKind,
    /// What the job needs to know: ids.
    pub payload: Value,
}

/// The kinds of jobs. Their names outlive every type: they stand in rows and in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Brings a payment to its end.
    FinalizePayment,
    /// Ends reservations whose deadline has passed, and makes Redis show what Postgres has of them.
    ExpireReservations,
    /// Writes an event's lists and buckets.
    OpenEvent,
    /// Rebuilds Redis from Postgres.
    WarmUp,
}

impl JobKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::FinalizePayment, Self::ExpireReservations, Self::OpenEvent, Self::WarmUp];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FinalizePayment => "finalize-payment",
            Self::ExpireReservations => "expire-reservations",
            Self::OpenEvent => "open-event",
            Self::WarmUp => "warm-up",
        }
    }

    /// Reads the name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl OutboxRow {
    /// The job that this row causes: the same id wherever it is pushed from, so that it is queued once.
    #[must_use]
    pub fn job(&self) -> NewJob {
        let prefix = match self.kind {
            JobKind::FinalizePayment => "pay",
            JobKind::ExpireReservations => "expire",
            JobKind::OpenEvent => "open",
            JobKind::WarmUp => "warm-up",
        };
        // A row that is open again wants its job again, though a former one of that id is done.
        NewJob::new(self.queue, JobId::new(prefix, self.id.0), self.kind.name(), self.payload.clone())
            .again_after_done()
    }
}

impl Pg {
    /// A page of open rows by key, after `after`.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn outbox_page(&self, after: Option<(EventId, OutboxId)>, most: i64) -> Result<Vec<OutboxRow>, PgError> {
        let (event, id) = after.map_or((uuid::Uuid::nil(), uuid::Uuid::nil()), |(event, id)| (event.0, id.0));
        let rows = sqlx::query_as!(
            Row,
            "SELECT event_id, id, queue, kind, payload FROM outbox WHERE (event_id, id) > ($1, $2)
             ORDER BY event_id, id LIMIT $3",
            event,
            id,
            most
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(OutboxRow::try_from).collect()
    }

    /// Those of an event's rows that are open.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn outbox_rows(&self, event: EventId, ids: &[OutboxId]) -> Result<Vec<OutboxRow>, PgError> {
        let ids: Vec<uuid::Uuid> = ids.iter().map(|id| id.0).collect();
        let rows = sqlx::query_as!(
            Row,
            "SELECT event_id, id, queue, kind, payload FROM outbox WHERE event_id = $1 AND id = ANY ($2)",
            event.0,
            &ids
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(OutboxRow::try_from).collect()
    }

    /// The open rows about the events themselves: few.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn outbox_of_events(&self, events: &[EventId]) -> Result<Vec<OutboxRow>, PgError> {
        let events: Vec<uuid::Uuid> = events.iter().map(|event| event.0).collect();
        let rows = sqlx::query_as!(
            Row,
            "SELECT event_id, id, queue, kind, payload FROM outbox WHERE event_id = ANY ($1) AND id = event_id",
            &events
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(OutboxRow::try_from).collect()
    }
}

struct Row {
    event_id: uuid::Uuid,
    id: uuid::Uuid,
    queue: String,
    kind: String,
    payload: Value,
}

impl TryFrom<Row> for OutboxRow {
    type Error = PgError;
    fn try_from(row: Row) -> Result<Self, PgError> {
        Ok(Self {
            event: EventId(row.event_id),
            id: OutboxId(row.id),
            queue: Queue::parse(&row.queue).ok_or_else(|| PgError::unreadable("outbox", "queue", row.id))?,
            kind: JobKind::parse(&row.kind).ok_or_else(|| PgError::unreadable("outbox", "kind", row.id))?,
            payload: row.payload,
        })
    }
}

/// Writes a row: the job will be, once the transaction commits. A row that stands already is the same job.
pub(crate) async fn insert_outbox(tx: &mut Tx, row: &OutboxRow) -> Result<(), PgError> {
    sqlx::query!(
        "INSERT INTO outbox (event_id, id, queue, kind, payload, created_at) VALUES ($1, $2, $3, $4, $5, now())
         ON CONFLICT ON CONSTRAINT outbox_pkey DO NOTHING",
        row.event.0,
        row.id.0,
        row.queue.name(),
        row.kind.name(),
        row.payload
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Closes a row in the transaction of its job's effect.
pub(crate) async fn close_outbox(tx: &mut Tx, event: EventId, id: OutboxId) -> Result<(), PgError> {
    sqlx::query!("DELETE FROM outbox WHERE event_id = $1 AND id = $2", event.0, id.0).execute(&mut **tx).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_jobs_are_frozen() {
        let names: Vec<_> = JobKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names, ["finalize-payment", "expire-reservations", "open-event", "warm-up"]);
    }
}
