//! Making a flow repeatable by its caller's key: the first answer is kept in the transaction of the effect.

use uuid::Uuid;

use crate::id::EventId;
use crate::store::pg::idempotency::{KnownKey, NewAnswer, keep_answers};
use crate::store::pg::{PgError, Tx};

use super::{Answered, Idempotent, Stores};

/// Why a repeated request has no first answer.
#[derive(Debug, thiserror::Error)]
pub enum RepeatError {
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

/// The first answer to a key, if there is one.
pub(super) async fn first_answer<T>(
    stores: &Stores,
    repeat: Option<&Idempotent<T>>,
) -> Result<Option<Answered<T>>, RepeatError> {
    let Some(repeat) = repeat else { return Ok(None) };
    match stores.pg.known_key(&repeat.key).await? {
        KnownKey::New => Ok(None),
        KnownKey::Answered(answer) => Ok(Some(Answered::Replayed(answer))),
        KnownKey::Reused => Err(RepeatError::KeyReused),
    }
}

/// Keeps the answer of what the transaction does. False where another request with the same key was faster: then the
/// transaction must be given up, and its answer is [`first_answer`].
pub(super) async fn keep_answer<T>(
    tx: &mut Tx,
    repeat: Option<&Idempotent<T>>,
    value: &T,
    (event, resource): (EventId, Uuid),
) -> Result<bool, PgError> {
    let Some(repeat) = repeat else { return Ok(true) };
    let (status, body) = (repeat.respond)(value);
    let answer = NewAnswer { key: &repeat.key, status, body: &body, event: Some(event), resource: Some(resource) };
    Ok(keep_answers(tx, &[answer]).await? == [true])
}
