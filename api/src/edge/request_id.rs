//! The request's id: the caller's own where it is sane, else a new one.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The header it travels in.
pub static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id taken over, in bytes.
const LENGTH_MAX: usize = 128;

/// A request's id: 1 to 128 visible ASCII characters, so that it can stand in a log line and in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The caller's id if it sent exactly one and it is sane; else a new one.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut sent = headers.get_all(&X_REQUEST_ID).iter();
        match (sent.next(), sent.next()) {
            (Some(value), None) if is_sane(value) => Self(value.clone()),
            _ => Self::new(),
        }
    }

    fn new() -> Self {
        let id = format!("{:032x}", rand::random::<u128>());
        Self(HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("none")))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// The id as a header's value.
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

fn is_sane(value: &HeaderValue) -> bool {
    (1..=LENGTH_MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
}
