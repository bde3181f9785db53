//! `Idempotency-Key`: which request a key belongs to.
//!
//! A key is bound to its caller, method, path and the meaning of the body. The record itself is written by the flow, in
//! the transaction of the effect: nothing is remembered here.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, Method};
use domain::store::pg::idempotency::IdempotencyKey;
use sha2::{Digest as _, Sha256};

use crate::auth::Caller;
use crate::extract::BodyDigest;
use crate::problem::Problem;

/// The request header.
pub static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// On the answer to a repeated request: `true`.
pub static IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// On such an answer, where the reservation has died since: `expired`.
pub static RESOURCE_STATE: HeaderName = HeaderName::from_static("resource-state");

/// The longest key, in characters.
pub const KEY_CHARS_MAX: usize = 255;

/// A request's idempotency key, if it has one, with the method and path that it was sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    key: Option<String>,
    method: Method,
    path: String,
}

impl<S: Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let wrong = |message: &str| Problem::invalid("Idempotency-Key", message);
        let mut sent = parts.headers.get_all(&IDEMPOTENCY_KEY).iter();
        let key = match sent.next() {
            None => None,
            Some(_) if sent.next().is_some() => return Err(wrong("send one key, not several")),
            Some(value) => {
                let text = value.to_str().map_err(|_| wrong("only visible ASCII characters"))?.trim();
                if text.is_empty() || text.len() > KEY_CHARS_MAX {
                    return Err(wrong("1 to 255 characters"));
                }
                Some(text.to_owned())
            }
        };
        // The path as routed to, with its query: `?dry_run=true` is another request.
        let path = parts.uri.path_and_query().map_or_else(|| parts.uri.path().to_owned(), ToString::to_string);
        Ok(Self { key, method: parts.method.clone(), path })
    }
}

impl Idempotency {
    /// The key bound to what it was sent with; none if no key was sent.
    pub fn bind(&self, caller: &Caller, body: BodyDigest) -> Option<IdempotencyKey> {
        let key = self.key.clone()?;
        let caller = caller.idempotency_name();
        let mut hasher = Sha256::new();
        for part in [self.method.as_str(), &self.path, &caller] {
            // The length first, so that no two ways of cutting the same text are equal.
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.update(body.0);
        let fingerprint = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(IdempotencyKey { key, caller, fingerprint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use domain::id::Buyer;

    async fn read(method: &str, uri: &str, keys: &[&str]) -> Result<Idempotency, Problem> {
        let mut request = Request::builder().method(method).uri(uri);
        for key in keys {
            request = request.header("idempotency-key", *key);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        Idempotency::from_request_parts(&mut parts, &()).await
    }

    fn buyer(name: &str) -> Caller {
        Caller::Buyer { buyer: Buyer::parse(name).unwrap(), anonymous: false }
    }

    #[tokio::test]
    async fn a_key_is_one_bounded_visible_text() {
        assert!(read("POST", "/x", &["k"]).await.unwrap().bind(&buyer("u"), BodyDigest::of_nothing()).is_some());
        assert!(read("POST", "/x", &[]).await.unwrap().bind(&buyer("u"), BodyDigest::of_nothing()).is_none());
        assert!(read("POST", "/x", &[&"k".repeat(255)]).await.is_ok());
        for bad in [&["" as &str] as &[&str], &[" "], &[&"k".repeat(256)], &["ключ"], &["a", "b"]] {
            assert_eq!(read("POST", "/x", bad).await.unwrap_err().places()[0].path, "Idempotency-Key", "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_fingerprint_belongs_to_method_path_caller_and_body() {
        let body = BodyDigest::of(&serde_json::json!({"seats": ["1"]}));
        let first = read("POST", "/v1/a", &["k"]).await.unwrap().bind(&buyer("u1"), body).unwrap();
        let again = read("POST", "/v1/a", &["k"]).await.unwrap().bind(&buyer("u1"), body).unwrap();
        assert_eq!(first, again);
        let other_body = BodyDigest::of(&serde_json::json!({"seats": ["2"]}));
        for (method, path, caller, body) in [
            ("DELETE", "/v1/a", "u1", body),
            ("POST", "/v1/b", "u1", body),
            ("POST", "/v1/a?x=1", "u1", body),
            ("POST", "/v1/a", "u2", body),
            ("POST", "/v1/a", "u1", other_body),
        ] {
            let other = read(method, path, &["k"]).await.unwrap().bind(&buyer(caller), body).unwrap();
            assert_ne!(other.fingerprint, first.fingerprint, "{method} {path} {caller}");
        }
    }
}
