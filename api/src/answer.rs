//! Answers that are made or repeated: JSON bodies, and the first answers of repeated requests byte for byte.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::flow::Answered;
use domain::store::pg::idempotency::StoredAnswer;
use serde::Serialize;

use crate::idempotency::{IDEMPOTENCY_REPLAYED, RESOURCE_STATE};

/// A JSON answer with its status.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
        Ok(text) => raw_json(status, text),
        Err(error) => crate::problem::Problem::internal(&error).into_response(),
    }
}

fn raw_json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// What was done now as `status` with `body`, or the first answer as it was.
pub fn answered<T, B: Serialize>(outcome: &Answered<T>, status: StatusCode, body: fn(&T) -> B) -> Response {
    match outcome {
        Answered::New(value) => json(status, &body(value)),
        Answered::Replayed(stored) => replayed(stored),
    }
}

fn replayed(stored: &StoredAnswer) -> Response {
    let status = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::OK);
    let mut response = raw_json(status, stored.body.clone());
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED.clone(), HeaderValue::from_static("true"));
    response
}

/// Says on a repeated answer what has become of its resource since.
pub fn set_resource_state(response: &mut Response, state: &'static str) {
    response.headers_mut().insert(RESOURCE_STATE.clone(), HeaderValue::from_static(state));
}
