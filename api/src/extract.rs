//! Extractors whose refusals are problems: JSON bodies, raw bodies, query strings and path parameters.
//!
//! axum's own extractors answer refusals as plain text, and do not say which field was wrong.

mod body;
mod json;
mod params;

pub use body::{BODY_READ_TIMEOUT, JSON_BODY_BYTES_MAX, NoBody, read_body};
pub use json::{BodyDigest, Json};
pub use params::{Path, Query};
