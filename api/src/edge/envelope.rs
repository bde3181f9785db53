//! The outermost layer: what every answer carries, and the one log line per request.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use domain::time::to_ms;

use super::Edge;
use super::request_id::{RequestId, X_REQUEST_ID};
use crate::problem::{PROBLEM_JSON, Problem};

/// The header that tells the time, Postgres's, in milliseconds since 1970.
pub static SERVER_TIME: HeaderName = HeaderName::from_static("server-time");

/// Who called, for the log: left by the identity layer in the answer's extensions. Never a secret, never a whole token.
#[derive(Debug, Clone)]
pub struct CallerLabel(pub String);

/// Left in an answer's extensions: its body is meant as it is, although its status is that of an error. For what is read
/// by probes and not by callers.
#[derive(Debug, Clone, Copy)]
pub struct Verbatim;

/// Gives the answer its id, time and security headers, brings every error into problem form, and records the request.
pub async fn envelope(State(edge): State<Edge>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let request_id = RequestId::of(request.headers());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "unmatched".to_owned());
    request.extensions_mut().insert(request_id.clone());

    let response = next.run(request).await;
    let mut response = in_problem_form(response, &request_id);
    set_headers(response.headers_mut(), &request_id, to_ms(edge.clock.told_now()));

    let caller = response.extensions_mut().remove::<CallerLabel>();
    let status = response.status().as_u16();
    record(&Seen {
        listener: edge.listener,
        method: method_name(&method),
        route,
        status,
        seconds: started.elapsed().as_secs_f64(),
        request_id: request_id.as_str(),
        caller: caller.as_ref().map_or("none", |label| label.0.as_str()),
    });
    response
}

/// Rewrites an error with the request's id. An error that some library made as plain text becomes the problem its
/// status stands for; its other headers (`Allow`, `WWW-Authenticate`, CORS) stay.
fn in_problem_form(response: Response, request_id: &RequestId) -> Response {
    let (mut parts, body) = response.into_parts();
    if parts.extensions.remove::<Verbatim>().is_some() {
        return Response::from_parts(parts, body);
    }
    let problem = match parts.extensions.remove::<Problem>() {
        Some(problem) => problem,
        None if parts.status.as_u16() >= 400 && !has_type(&parts.headers, PROBLEM_JSON) => {
            Problem::from_status(parts.status)
        }
        None => return Response::from_parts(parts, body),
    };
    let (fresh, body) = problem.respond(request_id.as_str()).into_parts();
    parts.status = fresh.status;
    parts.headers.remove(header::CONTENT_LENGTH);
    for (name, value) in &fresh.headers {
        // What the layer that answered knew better (a Retry-After, a scheme to authenticate by) is kept.
        if name == header::CONTENT_TYPE || !parts.headers.contains_key(name) {
            parts.headers.insert(name.clone(), value.clone());
        }
    }
    Response::from_parts(parts, body)
}

fn has_type(headers: &HeaderMap, essence: &str) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|it| it.starts_with(essence))
}

fn set_headers(headers: &mut HeaderMap, request_id: &RequestId, now_ms: i64) {
    headers.insert(X_REQUEST_ID.clone(), request_id.header());
    headers.insert(SERVER_TIME.clone(), HeaderValue::from(now_ms));
    let html = has_type(headers, "text/html");
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, if html { PAGE_POLICY } else { DATA_POLICY }),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// JSON is data: nothing in it may run, and no page may frame it.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// Pages of ours take nothing from elsewhere. Swagger UI and the board style their elements inline.
const PAGE_POLICY: &str = "default-src 'self'; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; style-src 'self' \
    'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; frame-ancestors 'none'";

/// What one request leaves behind in the log and the metrics.
struct Seen<'a> {
    listener: &'static str,
    method: &'static str,
    route: String,
    status: u16,
    seconds: f64,
    request_id: &'a str,
    caller: &'a str,
}

fn record(seen: &Seen<'_>) {
    let labels = [
        ("listener", seen.listener.to_owned()),
        ("method", seen.method.to_owned()),
        ("route", seen.route.clone()),
        ("status", seen.status.to_string()),
    ];
    metrics::counter!("holdfast_http_requests_total", &labels).increment(1);
    metrics::histogram!("holdfast_http_request_duration_seconds", &labels[..3]).record(seen.seconds);
    let duration_ms = seen.seconds * 1000.0;
    let Seen { listener, method, route, status, request_id, caller, .. } = seen;
    if *status >= 500 {
        tracing::warn!(listener, method, %route, status, duration_ms, request_id, caller, "request");
    } else {
        tracing::info!(listener, method, %route, status, duration_ms, request_id, caller, "request");
    }
}

/// A method's name among a fixed few: a caller may invent methods, and each would be a time series.
fn method_name(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}
