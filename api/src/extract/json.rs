//! JSON bodies: bounded, without unknown fields, validated, and digested for idempotency.

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use garde::Validate;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::body::{BODY_READ_TIMEOUT, JSON_BODY_BYTES_MAX, read_body};
use crate::problem::{FieldError, Problem, ProblemCode};

/// SHA-256 of a JSON body's meaning: neither the order of its keys nor white space counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyDigest(pub [u8; 32]);

impl BodyDigest {
    /// The digest of an absent body.
    pub fn of_nothing() -> Self {
        Self(Sha256::digest([]).into())
    }

    /// The digest of a JSON value.
    pub fn of(value: &serde_json::Value) -> Self {
        let mut hasher = Sha256::new();
        absorb(value, &mut hasher);
        Self(hasher.finalize().into())
    }
}

/// Feeds a value in a form of its own: every object's keys sorted, every piece ended by what cannot occur in it.
fn absorb(value: &serde_json::Value, hasher: &mut Sha256) {
    match value {
        serde_json::Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                absorb(item, hasher);
                hasher.update(b",");
            }
            hasher.update(b"]");
        }
        serde_json::Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort_unstable();
            hasher.update(b"{");
            for key in keys {
                hasher.update(serde_json::Value::from(key.as_str()).to_string());
                hasher.update(b":");
                absorb(&fields[key], hasher);
                hasher.update(b",");
            }
            hasher.update(b"}");
        }
        scalar => hasher.update(scalar.to_string()),
    }
}

/// A JSON body of type `T`, validated; with the digest of what was sent.
///
/// Refusals: 415 for another content type, 413 beyond [`JSON_BODY_BYTES_MAX`], 408 where it does not arrive, 422 with
/// the path of what is wrong for everything else.
#[derive(Debug)]
pub struct Json<T>(pub T, pub BodyDigest);

impl<S, T> FromRequest<S> for Json<T>
where
    S: Sync,
    T: DeserializeOwned + Validate<Context = ()>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::with_detail(
                ProblemCode::UnsupportedMediaType,
                "Send the body with `Content-Type: application/json`.",
            ));
        }
        let bytes = read_body(request, JSON_BODY_BYTES_MAX, BODY_READ_TIMEOUT).await?;
        parse(&bytes)
    }
}

fn parse<T: DeserializeOwned + Validate<Context = ()>>(bytes: &[u8]) -> Result<Json<T>, Problem> {
    // serde would read an array as a struct's fields by position, which no caller means.
    match bytes.trim_ascii_start().first() {
        Some(b'{') => {}
        Some(_) => return Err(Problem::invalid("", "The body is not a JSON object; one is expected.")),
        None => return Err(Problem::invalid("", "The body is empty; a JSON object is expected.")),
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value: T = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| refusal(&error))?;
    deserializer.end().map_err(|error| Problem::invalid("", format!("after the body's end: {error}")))?;
    value.validate().map_err(|report| Problem::invalid_all(report_errors(&report)))?;
    let meaning = serde_json::from_slice(bytes).map_err(|error| Problem::invalid("", error.to_string()))?;
    Ok(Json(value, BodyDigest::of(&meaning)))
}

fn refusal(error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    // `.` is the whole body, `?` a place that cannot be named because the JSON breaks off there.
    let path = error.path().to_string();
    let path = path.trim_end_matches('?').trim_end_matches('.');
    Problem::invalid(path, error.inner().to_string())
}

/// garde's findings as places and messages.
pub(super) fn report_errors(report: &garde::Report) -> Vec<FieldError> {
    report.iter().map(|(path, error)| FieldError::new(path.to_string(), error.message())).collect()
}

/// `application/json` or any `…+json`, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, Validate)]
    #[serde(deny_unknown_fields)]
    #[garde(allow_unvalidated)]
    struct Seats {
        #[garde(length(min = 1, max = 2))]
        seats: Vec<Seat>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Seat {
        #[expect(dead_code, reason = "only its place in the body matters here")]
        block: String,
    }

    fn errors(body: &str) -> Vec<(String, String)> {
        let problem = parse::<Seats>(body.as_bytes()).unwrap_err();
        assert_eq!(problem.code(), ProblemCode::ValidationFailed);
        problem.places().iter().map(|place| (place.path.clone(), place.message.clone())).collect()
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_path() {
        let found = errors(r#"{"seats":[{"block":"101"},{"blok":"101"}]}"#);
        assert_eq!(found[0].0, "seats[1].blok");
        assert!(found[0].1.contains("unknown field `blok`"), "{found:?}");
    }

    #[test]
    fn a_broken_rule_is_named_with_its_path() {
        assert_eq!(errors(r#"{"seats":[]}"#)[0].0, "seats");
        assert_eq!(errors(r#"{"seats":[{"block":7}]}"#)[0].0, "seats[0].block");
    }

    #[test]
    fn broken_json_says_where_it_breaks() {
        for body in ["", "  ", "{", "nonsense", r#"{"seats":[{"block":"1"}]} x"#] {
            assert!(!errors(body)[0].1.is_empty(), "{body}");
        }
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for body in ["[]", r#"[[{"block":"1"}]]"#, "null", "7", "\"x\"", " [ ]"] {
            assert_eq!(errors(body)[0].1, "The body is not a JSON object; one is expected.", "{body}");
        }
    }

    #[test]
    fn the_digest_ignores_key_order_and_white_space_and_nothing_else() {
        let digest = |text: &str| BodyDigest::of(&serde_json::from_str(text).unwrap());
        assert_eq!(digest(r#"{"a":1,"b":[{"x":1,"y":2}]}"#), digest("{ \"b\": [ {\"y\":2, \"x\":1} ],\n \"a\": 1 }"));
        assert_ne!(digest(r#"{"a":[1,2]}"#), digest(r#"{"a":[2,1]}"#));
        assert_ne!(digest(r#"{"a":"1"}"#), digest(r#"{"a":1}"#));
        assert_ne!(digest(r#"["a","b"]"#), digest(r#"["a,b"]"#));
        assert_ne!(digest(r#"{"a":null}"#), digest("{}"));
    }
}
