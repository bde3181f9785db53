//! What every request passes, whichever listener it came by and whether or not there is a route for it.
//!
//! From the outside in: [`envelope`] (request id, `Server-Time`, errors in our form, log line, metrics, security
//! headers), CORS, panics caught, at most so many requests at once, a time limit. Identity and rate limits come after
//! these (see [`crate::auth`], [`crate::rate`]), on the public listener only.

mod envelope;
mod request_id;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use domain::runtime::clock::Clock;
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{Any, CorsLayer};

pub use envelope::{CallerLabel, SERVER_TIME, Verbatim, envelope};
pub use request_id::RequestId;

use crate::problem::{Problem, ProblemCode};

/// What the edge has to know.
#[derive(Debug, Clone)]
pub struct Edge {
    in_flight: Arc<Semaphore>,
    request_timeout: Duration,
    upload_timeout: Duration,
    listener: &'static str,
    clock: Clock,
}

impl Edge {
    /// An edge for the listener of this name (`api` or `ops`, as in the log and the metrics).
    pub fn new(listener: &'static str, in_flight_max: usize, request_timeout: Duration, clock: Clock) -> Self {
        Self {
            in_flight: Arc::new(Semaphore::new(in_flight_max)),
            request_timeout,
            upload_timeout: request_timeout.max(Duration::from_secs(300)),
            listener,
            clock,
        }
    }

    /// Puts the guards that know nothing of callers around every route and fallback of `router`.
    pub fn guard(&self, router: Router) -> Router {
        router
            .layer(from_fn_with_state(self.clone(), limit_time))
            .layer(from_fn_with_state(self.clone(), limit_in_flight))
            .layer(CatchPanicLayer::custom(|panic: Box<dyn std::any::Any + Send>| answer_panic(&*panic)))
    }

    /// Puts the envelope around everything, CORS included.
    pub fn seal(&self, router: Router) -> Router {
        router.layer(from_fn_with_state(self.clone(), envelope))
    }
}

/// A panic ends its request, not the process, and is answered as any fault of ours.
fn answer_panic(panic: &(dyn std::any::Any + Send)) -> Response {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = message.unwrap_or("not a text"), "a handler panicked");
    Problem::new(ProblemCode::Internal).into_response()
}

/// More at once than we can carry is refused at once: a queue would only make everybody late.
async fn limit_in_flight(State(edge): State<Edge>, request: Request, next: Next) -> Response {
    match edge.in_flight.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_) => Problem::new(ProblemCode::Overloaded).retry_after_s(1).into_response(),
    }
}

async fn limit_time(State(edge): State<Edge>, request: Request, next: Next) -> Response {
    let upload = request.extensions().get::<MatchedPath>().is_some_and(|path| path.as_str().ends_with("/import"));
    let limit = if upload { edge.upload_timeout } else { edge.request_timeout };
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(ProblemCode::TimedOut).retry_after_s(1).into_response(),
    }
}

/// Cross-origin rules: `origins` is empty (none may), `["*"]`, or a list of exact origins.
///
/// # Errors
/// Names the origin that is not a header value.
pub fn cors(origins: &[String]) -> Result<Option<CorsLayer>, String> {
    if origins.is_empty() {
        return Ok(None);
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::PATCH, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            header::IF_NONE_MATCH,
            HeaderName::from_static("idempotency-key"),
            HeaderName::from_static("last-event-id"),
            HeaderName::from_static("x-request-id"),
        ])
        .expose_headers([
            header::ETAG,
            header::RETRY_AFTER,
            header::LOCATION,
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("server-time"),
            HeaderName::from_static("idempotency-replayed"),
            HeaderName::from_static("resource-state"),
        ])
        .max_age(Duration::from_secs(3600));
    if origins.iter().any(|origin| origin == "*") {
        return Ok(Some(layer.allow_origin(Any)));
    }
    let origins = origins.iter().map(|origin| HeaderValue::from_str(origin).map_err(|_| origin.clone()));
    Ok(Some(layer.allow_origin(origins.collect::<Result<Vec<_>, _>>()?)))
}

#[cfg(test)]
mod tests;
