//! Reading blocks and their seats, from this process's mirror.
//!
//! The mirror encodes the answers; the shapes here describe them.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::id::EventId;
use domain::label::Label;
use serde::Serialize;
use utoipa::ToSchema;

use super::venue_maps::matches_etag;
use crate::app::App;
use crate::extract::Path;
use crate::mirror::ReadError;
use crate::problem::Problem;
use crate::wire::{Money, SeatStatusWord};

/// An event's blocks with their seats in figures.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlocksBody {
    /// The event.
    #[schema(example = "0197f0a2-6a11-7c3b-9d2e-4f5a6b7c8d90")]
    event: String,
    /// Grows with every change of a seat; 0 where Redis is away.
    #[schema(minimum = 0, example = 4711)]
    version: u64,
    /// The blocks, in the venue's order.
    blocks: Vec<BlockFigures>,
}

/// A block's seats in figures.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlockFigures {
    /// Its label.
    #[schema(example = "101")]
    block: String,
    /// Seats that can be held.
    #[schema(minimum = 0, example = 212)]
    available: usize,
    /// Seats that are held or being paid for.
    #[schema(minimum = 0, example = 30)]
    held: usize,
    /// Seats that are sold.
    #[schema(minimum = 0, example = 258)]
    sold: usize,
    /// Seats that are kept from sale.
    #[schema(minimum = 0, example = 0)]
    blocked: usize,
    /// The lowest price of an available seat; null where none is available.
    from: Option<Money>,
}

/// A block's seats.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlockBody {
    /// The event.
    #[schema(example = "0197f0a2-6a11-7c3b-9d2e-4f5a6b7c8d90")]
    event: String,
    /// The block's label.
    #[schema(example = "101")]
    block: String,
    /// Grows with every change of a seat of the block; 0 where Redis is away.
    #[schema(minimum = 0, example = 217)]
    version: u64,
    /// The seats, in seat order.
    seats: Vec<SeatBody>,
}

/// A seat of an event. Whose it is, is nobody's business.
#[derive(Debug, Serialize, ToSchema)]
pub struct SeatBody {
    /// Its id: the same for every event of the venue.
    #[schema(example = "1042")]
    id: String,
    /// Its column.
    #[schema(example = "07")]
    column: String,
    /// Its row.
    #[schema(example = "AA")]
    row: String,
    /// What is printed on it.
    #[schema(example = "AA-07")]
    label: String,
    /// Its category.
    #[schema(example = "Orange")]
    category: String,
    /// Its price; null for a category without one, which is not for sale.
    price: Option<Money>,
    /// `available`, `held`, `sold`, `blocked`.
    status: SeatStatusWord,
}

/// An event's blocks, each with its seats in figures.
///
/// Send the answer's `ETag` as `If-None-Match` and get 304 while nothing has changed.
#[utoipa::path(get, path = "/v1/events/{id}/blocks", tag = "Seats",
    params(
        ("id" = String, Path, description = "The event's id", max_length = 64),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of blocks that the caller has")),
    responses(
        (status = 200, description = "The blocks", body = BlocksBody, headers(("ETag" = String, description = "Names these figures"))),
        (status = 304, description = "Nothing has changed")))]
pub async fn list_blocks(
    State(app): State<App>,
    Path(id): Path<EventId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let summary = app.mirror().blocks(id).await?;
    Ok(mirrored(&headers, &summary.etag, &summary.json))
}

/// A block's seats.
///
/// Send the answer's `ETag` as `If-None-Match` and get 304 while nothing has changed.
#[utoipa::path(get, path = "/v1/events/{id}/blocks/{block}/seats", tag = "Seats",
    params(
        ("id" = String, Path, description = "The event's id", max_length = 64),
        ("block" = String, Path, description = "The block's label, percent-encoded", max_length = 64, example = "101"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of seats that the caller has")),
    responses(
        (status = 200, description = "The seats", body = BlockBody, headers(("ETag" = String, description = "Names these seats"))),
        (status = 304, description = "Nothing has changed")))]
pub async fn read_block(
    State(app): State<App>,
    Path((id, block)): Path<(EventId, Label)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let view = app.mirror().block(id, &block).await?;
    Ok(mirrored(&headers, &view.etag, &view.json))
}

/// What the mirror has, or that the caller has it already.
fn mirrored(sent: &HeaderMap, etag: &str, json: &Bytes) -> Response {
    let mut response = if matches_etag(sent, etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = Response::new(Body::from(json.clone()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(etag) = HeaderValue::from_str(etag) {
        headers.insert(header::ETAG, etag);
    }
    response
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::UnknownEvent => Self::no_such("event"),
            ReadError::UnknownBlock => Self::no_such("block"),
            ReadError::Store(error) if error.is_temporary() => Self::degraded(),
            ReadError::Store(error) => Self::internal(&*error as &(dyn std::error::Error + 'static)),
        }
    }
}
