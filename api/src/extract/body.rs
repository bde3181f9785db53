//! Reading a body within a limit of bytes and of time.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::problem::{Problem, ProblemCode};

/// The largest JSON body, in bytes: some thousand seats by label.
pub const JSON_BODY_BYTES_MAX: usize = 256 * 1024;

/// How long a JSON body may take to arrive: less than a request may, so that a slow sender is told that it was slow.
pub const BODY_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the whole body.
///
/// # Errors
/// `payload_too_large` beyond `bytes_max` (at once where `Content-Length` says so), `request_timeout` where it does not
/// arrive within `timeout`, `validation_failed` where the connection breaks.
pub async fn read_body(request: Request<Body>, bytes_max: usize, timeout: Duration) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(ProblemCode::PayloadTooLarge).limit(bytes_max as u64);
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > bytes_max as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(timeout, Limited::new(request.into_body(), bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::invalid("", "The body could not be read to its end.")),
        Err(_) => Err(Problem::new(ProblemCode::RequestTimeout)),
    }
}

/// For commands that have nothing to say: the body is empty or `{}`. Anything else is refused rather than ignored,
/// since its sender expected it to matter.
#[derive(Debug)]
pub struct NoBody;

impl<S: Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let bytes = read_body(request, JSON_BODY_BYTES_MAX, BODY_READ_TIMEOUT).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self);
        }
        match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&bytes) {
            Ok(fields) => match fields.keys().next() {
                None => Ok(Self),
                Some(field) => Err(Problem::invalid(field.as_str(), "unknown field: this request takes no fields")),
            },
            Err(_) => Err(Problem::invalid("", "This request takes no body, or an empty object.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_never_ends_is_given_up_in_time() {
        let first = futures::stream::once(async { Ok::<_, std::io::Error>(Bytes::from_static(b"{")) });
        let body = Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending()));
        let problem = read_body(Request::new(body), 100, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(problem.code(), ProblemCode::RequestTimeout);
    }

    #[tokio::test]
    async fn a_body_that_is_announced_or_found_too_large_is_refused() {
        let announced = Request::builder().header("content-length", "101").body(Body::empty()).unwrap();
        let streamed = Request::new(Body::from_stream(futures::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 64]))
        })));
        for request in [announced, streamed] {
            let problem = read_body(request, 100, Duration::from_secs(5)).await.unwrap_err();
            assert_eq!(problem.code(), ProblemCode::PayloadTooLarge);
        }
    }
}
