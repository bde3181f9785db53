//! Errors as the outside sees them: RFC 9457 `application/problem+json`, built from [`ProblemCode`]'s table.
//!
//! A handler returns a [`Problem`]; the edge (see [`crate::edge`]) writes it out, because only the edge knows the
//! request's id. A 5xx carries no detail: what went wrong inside is in the log under that id.

pub mod code;
pub mod pages;
mod stores;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

pub use code::{ProblemCode, ProblemEntry};

/// The media type of every error.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// One seat that stands in the way of a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Conflict {
    /// The seat's id.
    #[schema(example = "0197f0a2-5c1e-7d7e-8f3e-1b2c3d4e5f60")]
    pub seat: String,
    /// Its status: `held`, `sold` or `blocked`.
    #[schema(example = "held")]
    pub status: String,
}

/// One place in a request and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Where: a path into the body (`seats[0].block`), the name of a parameter or header, or `line 12`.
    #[schema(example = "seats[0].block")]
    pub path: String,
    /// What is wrong there.
    #[schema(example = "unknown field `blok`, expected one of `block`, `column`, `row`")]
    pub message: String,
}

impl FieldError {
    /// A place and what is wrong with it.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// An answer that says why not.
#[derive(Debug, Clone)]
pub struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    code: ProblemCode,
    detail: Option<String>,
    conflicts: Vec<Conflict>,
    errors: Vec<FieldError>,
    opens_at: Option<DateTime<Utc>>,
    limit: Option<u64>,
    retry_after_s: Option<u64>,
}

/// The problem document, as it is sent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDocument<'a> {
    /// Where the code is explained: `/problems/{code}`.
    #[serde(rename = "type")]
    #[schema(example = "/problems/seat_unavailable")]
    kind: String,
    /// The code's title.
    #[schema(example = "A seat is not available")]
    title: &'a str,
    /// The HTTP status.
    #[schema(example = 409, minimum = 400, maximum = 599)]
    status: u16,
    /// What happened this time. Absent in every 5xx.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<&'a str>,
    /// The stable name of the error, to branch on.
    code: ProblemCode,
    /// The `X-Request-Id` of this answer.
    #[schema(example = "0b9f3c1d2e4a5b6c7d8e9f0a1b2c3d4e")]
    request_id: &'a str,
    /// Whether the same request, sent again unchanged, may succeed.
    retryable: bool,
    /// With `seat_unavailable`: every seat in the way. With `conflict` about a venue's file: the seats that somebody owns
    /// and which it would change, the first 200.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<Conflict>, required = false)]
    conflicts: &'a [Conflict],
    /// With `validation_failed` and `unknown_seat`: every place that is wrong. With `conflict` about a venue's file: the
    /// seats in words.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<FieldError>, required = false)]
    errors: &'a [FieldError],
    /// With `not_on_sale`, where it is known: when sales open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, format = DateTime, example = "2026-12-01T05:00:00.000Z")]
    opens_at: Option<String>,
    /// With `limit_exceeded` and `payload_too_large`: what is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 8)]
    limit: Option<u64>,
}

impl Problem {
    /// A problem of this code, without further words.
    pub fn new(code: ProblemCode) -> Self {
        Self(Box::new(Inner {
            code,
            detail: None,
            conflicts: Vec::new(),
            errors: Vec::new(),
            opens_at: None,
            limit: None,
            retry_after_s: None,
        }))
    }

    /// A problem of this code with what happened this time, for the caller to read. Dropped from a 5xx.
    pub fn with_detail(code: ProblemCode, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(code);
        problem.0.detail = Some(detail.into());
        problem
    }

    /// `validation_failed` for one place.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid_all(vec![FieldError::new(path, message)])
    }

    /// `validation_failed` for several places.
    pub fn invalid_all(errors: Vec<FieldError>) -> Self {
        let mut problem = Self::new(ProblemCode::ValidationFailed);
        problem.0.detail = match errors.as_slice() {
            [] => None,
            [one] if one.path.is_empty() => Some(one.message.clone()),
            [one] => Some(format!("{}: {}", one.path, one.message)),
            many => Some(format!("{} places are wrong, the first: {}: {}", many.len(), many[0].path, many[0].message)),
        };
        problem.0.errors = errors;
        problem
    }

    /// `not_found` of a kind of thing: "there is no such reservation".
    pub fn no_such(thing: &str) -> Self {
        Self::with_detail(ProblemCode::NotFound, format!("There is no such {thing}."))
    }

    /// `degraded`, to be tried again in a second.
    pub fn degraded() -> Self {
        Self::new(ProblemCode::Degraded).retry_after_s(1)
    }

    /// `internal`. The cause goes to the log here, once, and never to the caller.
    pub fn internal(cause: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = %Chain(cause), "a request failed inside");
        Self::new(ProblemCode::Internal)
    }

    /// The problem that a bare status stands for: how answers made by libraries are brought into our form.
    pub fn from_status(status: StatusCode) -> Self {
        let code = match status.as_u16() {
            401 => ProblemCode::Unauthorized,
            403 => ProblemCode::Forbidden,
            404 => ProblemCode::NotFound,
            405 => ProblemCode::MethodNotAllowed,
            408 => ProblemCode::RequestTimeout,
            409 | 412 => ProblemCode::Conflict,
            410 => ProblemCode::ReservationGone,
            413 => ProblemCode::PayloadTooLarge,
            415 => ProblemCode::UnsupportedMediaType,
            429 => ProblemCode::RateLimited,
            503 | 504 => ProblemCode::Degraded,
            400..=499 => ProblemCode::ValidationFailed,
            _ => ProblemCode::Internal,
        };
        Self::new(code)
    }

    /// Adds every seat in the way.
    pub fn conflicts(mut self, conflicts: Vec<Conflict>) -> Self {
        self.0.conflicts = conflicts;
        self
    }

    /// Adds places that are wrong.
    pub fn errors(mut self, errors: Vec<FieldError>) -> Self {
        self.0.errors = errors;
        self
    }

    /// Adds when sales open.
    pub fn opens_at(mut self, at: Option<DateTime<Utc>>) -> Self {
        self.0.opens_at = at;
        self
    }

    /// Adds the number allowed.
    pub fn limit(mut self, limit: u64) -> Self {
        self.0.limit = Some(limit);
        self
    }

    /// Adds after how many seconds to try again: the `Retry-After` header, never below 1.
    pub fn retry_after_s(mut self, seconds: u64) -> Self {
        self.0.retry_after_s = Some(seconds.max(1));
        self
    }

    /// The problem's code.
    pub fn code(&self) -> ProblemCode {
        self.0.code
    }

    /// The places that are wrong.
    pub fn places(&self) -> &[FieldError] {
        &self.0.errors
    }

    /// The problem's status.
    pub fn status(&self) -> StatusCode {
        self.0.code.entry().status
    }

    /// The finished answer, with the id of its request.
    pub fn respond(&self, request_id: &str) -> Response<Body> {
        let entry = self.0.code.entry();
        let document = ProblemDocument {
            kind: format!("/problems/{}", entry.code),
            title: entry.title,
            status: entry.status.as_u16(),
            // Where nothing more is known, the remedy that holds for every such problem.
            detail: (!entry.status.is_server_error()).then(|| self.0.detail.as_deref().unwrap_or(entry.remedy)),
            code: self.0.code,
            request_id,
            retryable: entry.retryable,
            conflicts: &self.0.conflicts,
            errors: &self.0.errors,
            opens_at: self.0.opens_at.map(domain::time::rfc3339_ms),
            limit: self.0.limit,
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = entry.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = self.0.retry_after_s.or((entry.status.as_u16() == 503).then_some(1)) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if entry.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="holdfast""#));
        }
        response
    }
}

impl IntoResponse for Problem {
    /// Leaves the problem in the answer's extensions, where the edge finds it and writes it out with the request's id.
    fn into_response(self) -> axum::response::Response {
        let mut response = self.respond("");
        response.extensions_mut().insert(self);
        response
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.code.entry().code)
    }
}

impl std::error::Error for Problem {}

/// An error with its sources, each once, on one line.
struct Chain<'a>(&'a (dyn std::error::Error + 'static));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    async fn document(problem: Problem) -> (Response<()>, serde_json::Value) {
        let (parts, body) = problem.respond("req-1").into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(parts, ()), serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn a_5xx_carries_no_detail() {
        let (answer, body) = document(Problem::with_detail(ProblemCode::Internal, "the password is wrong")).await;
        assert_eq!(answer.status(), 500);
        assert!(body.get("detail").is_none(), "{body}");
    }

    #[tokio::test]
    async fn a_refusal_names_every_seat_in_conflict_and_the_request() {
        let conflicts = vec![
            Conflict { seat: "s1".into(), status: "held".into() },
            Conflict { seat: "s2".into(), status: "sold".into() },
        ];
        let (answer, body) = document(Problem::new(ProblemCode::SeatUnavailable).conflicts(conflicts)).await;
        assert_eq!(answer.headers()["content-type"], PROBLEM_JSON);
        assert_eq!(
            body,
            serde_json::json!({
                "type": "/problems/seat_unavailable", "title": "A seat is not available", "status": 409,
                "detail": ProblemCode::SeatUnavailable.entry().remedy,
                "code": "seat_unavailable", "request_id": "req-1", "retryable": false,
                "conflicts": [{"seat": "s1", "status": "held"}, {"seat": "s2", "status": "sold"}],
            })
        );
    }

    #[tokio::test]
    async fn retry_after_is_never_below_one_second() {
        let (answer, _) = document(Problem::new(ProblemCode::RateLimited).retry_after_s(0)).await;
        assert_eq!(answer.headers()["retry-after"], "1");
        let (answer, _) = document(Problem::new(ProblemCode::Degraded)).await;
        assert_eq!(answer.headers()["retry-after"], "1");
    }

    #[tokio::test]
    async fn a_401_says_how_to_authenticate() {
        let (answer, _) = document(Problem::new(ProblemCode::Unauthorized)).await;
        assert!(answer.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    }
}
