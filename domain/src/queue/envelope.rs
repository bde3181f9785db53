//! What stands in Redis for a job: `{"v":1,"kind":"finalize-payment","payload":{…},"enqueued_ms":1764547200000}`.
//! Frozen: processes of two releases run side by side while one replaces the other.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::NewJob;

/// The version that is written.
const VERSION: u32 = 1;

/// A job's envelope, opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// Which handler runs it.
    pub kind: String,
    /// What the handler gets.
    pub payload: Value,
    /// When it was enqueued, in ms since 1970 by Redis's clock.
    pub enqueued_ms: i64,
}

/// An envelope that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenEnvelopeError {
    /// It is not an envelope at all, and will never be one.
    #[error("undecodable: {0}")]
    Undecodable(#[from] serde_json::Error),
    /// A newer release wrote it: a worker of that release can open it.
    #[error("the envelope has version {0}; this worker knows {VERSION}")]
    Newer(u32),
}

#[derive(Serialize)]
struct Start<'a> {
    v: u32,
    kind: &'a str,
    payload: &'a Value,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct Whole {
    kind: String,
    payload: Value,
    enqueued_ms: i64,
}

impl Envelope {
    /// Opens an envelope.
    ///
    /// # Errors
    /// `OpenEnvelopeError::Undecodable` for anything that is none, `Newer` for one of a later version.
    pub fn open(bytes: &[u8]) -> Result<Self, OpenEnvelopeError> {
        let Version { v } = serde_json::from_slice(bytes)?;
        if v > VERSION {
            return Err(OpenEnvelopeError::Newer(v));
        }
        let Whole { kind, payload, enqueued_ms } = serde_json::from_slice(bytes)?;
        Ok(Self { kind, payload, enqueued_ms })
    }
}

/// An envelope without its end: the enqueue script adds `enqueued_ms` by Redis's clock and closes it.
pub(crate) fn envelope_start(job: &NewJob) -> String {
    // A `Value` has string keys and finite numbers only, so writing it cannot fail; an empty text would be found and
    // reported by the worker that opens it.
    let mut text =
        serde_json::to_string(&Start { v: VERSION, kind: job.kind, payload: &job.payload }).unwrap_or_default();
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::{
        super::{JobId, Queue},
        *,
    };

    #[test]
    fn the_envelope_on_the_wire_is_frozen() {
        let id = JobId::parse("pay-1").unwrap();
        let job = NewJob::new(Queue::Payments, id, "finalize-payment", serde_json::json!({"payment_id": "x"}));
        let text = envelope_start(&job) + r#","enqueued_ms":5}"#;
        assert_eq!(text, r#"{"v":1,"kind":"finalize-payment","payload":{"payment_id":"x"},"enqueued_ms":5}"#);
        let envelope = Envelope::open(text.as_bytes()).unwrap();
        assert_eq!(envelope, Envelope { kind: job.kind.to_owned(), payload: job.payload, enqueued_ms: 5 });
    }

    #[test]
    fn an_envelope_of_a_later_release_is_told_from_rubbish() {
        assert!(matches!(Envelope::open(br#"{"v":2,"parts":[]}"#), Err(OpenEnvelopeError::Newer(2))));
        for rubbish in
            [&b""[..], b"\xff\xfe", b"null", b"{}", br#"{"v":1}"#, br#"{"v":1,"kind":7,"payload":{},"enqueued_ms":1}"#]
        {
            assert!(matches!(Envelope::open(rubbish), Err(OpenEnvelopeError::Undecodable(_))), "{rubbish:?}");
        }
    }
}
