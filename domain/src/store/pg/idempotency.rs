//! Idempotency keys: the first answer, kept in the transaction of its effect.

use uuid::Uuid;

use crate::id::EventId;

use super::{Pg, PgError, Tx};

/// How an effect is made repeatable: said by the caller's `Idempotency-Key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Who sent it: keys of different callers never meet.
    pub caller: String,
    /// The key, 1 to 255 characters.
    pub key: String,
    /// SHA-256 of method, path, canonical body and caller, in hex.
    pub fingerprint: String,
}

/// The first answer to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body, byte for byte.
    pub body: String,
    /// The resource that it made.
    pub resource: Option<Uuid>,
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownKey {
    /// Nothing.
    New,
    /// The same request was answered.
    Answered(StoredAnswer),
    /// It was used for another request.
    Reused,
}

/// An answer about to be kept.
#[derive(Debug, Clone)]
pub struct NewAnswer<'a> {
    /// The key.
    pub key: &'a IdempotencyKey,
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: &'a str,
    /// The event it is about.
    pub event: Option<EventId>,
    /// The resource it made.
    pub resource: Option<Uuid>,
}

impl Pg {
    /// What is known of a key.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn known_key(&self, key: &IdempotencyKey) -> Result<KnownKey, PgError> {
        let row = sqlx::query!(
            "SELECT fingerprint, status, body, resource_id FROM idempotency_keys WHERE caller = $1 AND key = $2",
            key.caller,
            key.key
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(match row {
            None => KnownKey::New,
            Some(row) if row.fingerprint != key.fingerprint => KnownKey::Reused,
            Some(row) => KnownKey::Answered(StoredAnswer {
                status: u16::try_from(row.status).unwrap_or(200),
                body: row.body,
                resource: row.resource_id,
            }),
        })
    }

    /// Forgets keys older than two days, at most `most` of them. Returns how many.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn forget_old_keys(&self, most: i64) -> Result<u64, PgError> {
        let done = sqlx::query!(
            "DELETE FROM idempotency_keys WHERE (caller, key) IN
                 (SELECT caller, key FROM idempotency_keys WHERE created_at < now() - interval '48 hours' LIMIT $1)",
            most
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }
}

/// Keeps answers. Returns, for each, whether its key was new: where it was not, the effect must be undone. Waits for
/// transactions that are keeping the same key.
pub(crate) async fn keep_answers(tx: &mut Tx, answers: &[NewAnswer<'_>]) -> Result<Vec<bool>, PgError> {
    if answers.is_empty() {
        return Ok(Vec::new());
    }
    let callers: Vec<&str> = answers.iter().map(|answer| answer.key.caller.as_str()).collect();
    let keys: Vec<&str> = answers.iter().map(|answer| answer.key.key.as_str()).collect();
    let fingerprints: Vec<&str> = answers.iter().map(|answer| answer.key.fingerprint.as_str()).collect();
    let statuses: Vec<i16> = answers.iter().map(|answer| i16::try_from(answer.status).unwrap_or(200)).collect();
    let bodies: Vec<&str> = answers.iter().map(|answer| answer.body).collect();
    let events: Vec<Option<Uuid>> = answers.iter().map(|answer| answer.event.map(|event| event.0)).collect();
    let resources: Vec<Option<Uuid>> = answers.iter().map(|answer| answer.resource).collect();
    let kept = sqlx::query!(
        "INSERT INTO idempotency_keys (caller, key, fingerprint, status, body, event_id, resource_id)
         SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::uuid[], $7::uuid[])
             AS answer (caller, key, fingerprint, status, body, event_id, resource_id)
         ORDER BY caller, key
         ON CONFLICT ON CONSTRAINT idempotency_keys_pkey DO NOTHING
         RETURNING caller, key",
        &callers as &[&str],
        &keys as &[&str],
        &fingerprints as &[&str],
        &statuses,
        &bodies as &[&str],
        &events as &[Option<Uuid>],
        &resources as &[Option<Uuid>],
    )
    .fetch_all(&mut **tx)
    .await?;
    let is_kept =
        |answer: &NewAnswer<'_>| kept.iter().any(|row| row.caller == answer.key.caller && row.key == answer.key.key);
    Ok(answers.iter().map(is_kept).collect())
}
