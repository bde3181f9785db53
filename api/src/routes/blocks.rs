//! Reading blocks and their seats.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::flow::event_book::EventSheet;
use domain::flow::read_block::{BlockReading, read_block as read_block_now};
use domain::id::{EventId, SeatId};
use domain::label::Label;
use domain::seat::SeatStatus;
use domain::seat_map::Block;
use futures::stream::{StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::venue_maps::matches_etag;
use crate::app::App;
use crate::extract::Path;
use crate::problem::Problem;
use crate::wire::{Money, SeatStatusWord};

/// Blocks of one event that are read at the same time.
const READS_AT_ONCE: usize = 16;

/// An event's blocks with their seats in figures.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlocksBody {
    /// The event.
    #[schema(value_type = String, example = "0197f0a2-6a11-7c3b-9d2e-4f5a6b7c8d90")]
    event: EventId,
    /// Grows with every change of a seat.
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
    #[schema(value_type = String, example = "0197f0a2-6a11-7c3b-9d2e-4f5a6b7c8d90")]
    event: EventId,
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
    #[schema(value_type = String, example = "1042")]
    id: SeatId,
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
    #[schema(value_type = SeatStatusWord)]
    status: SeatStatus,
}

/// An event's blocks, each with its seats in figures.
#[utoipa::path(get, path = "/v1/events/{id}/blocks", tag = "Seats",
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses((status = 200, description = "The blocks", body = BlocksBody)))]
pub async fn list_blocks(State(app): State<App>, Path(id): Path<EventId>) -> Result<Json<BlocksBody>, Problem> {
    let sheet = sheet_of(&app, id).await?;
    let reads = (0..sheet.map.blocks().len()).map(|index| {
        let (stores, sheet) = (app.stores().clone(), Arc::clone(&sheet));
        async move { read_block_now(&stores, &sheet, &sheet.map.blocks()[index]).await }
    });
    let reads: Vec<BlockReading> = futures::stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await?;
    let version = reads.iter().map(|reading| reading.version).sum();
    let blocks =
        sheet.map.blocks().iter().zip(&reads).map(|(block, reading)| figures(&sheet, block, reading)).collect();
    Ok(Json(BlocksBody { event: id, version, blocks }))
}

async fn sheet_of(app: &App, id: EventId) -> Result<Arc<EventSheet>, Problem> {
    app.stores().book.sheet(id).await?.ok_or_else(|| Problem::no_such("event"))
}

fn figures(sheet: &EventSheet, block: &Block, reading: &BlockReading) -> BlockFigures {
    let mut figures =
        BlockFigures { block: block.block.as_str().to_owned(), available: 0, held: 0, sold: 0, blocked: 0, from: None };
    let mut lowest: Option<i64> = None;
    for (seat, read) in sheet.map.seats_of(block).iter().zip(&reading.seats) {
        match read.status_at(reading.now_ms) {
            SeatStatus::Available => {
                figures.available += 1;
                lowest = match (lowest, sheet.price(seat)) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            }
            SeatStatus::Held => figures.held += 1,
            SeatStatus::Sold => figures.sold += 1,
            SeatStatus::Blocked => figures.blocked += 1,
        }
    }
    figures.from = lowest.map(|amount| price(sheet, amount));
    figures
}

fn price(sheet: &EventSheet, amount: i64) -> Money {
    Money { amount, currency: sheet.event.currency.code() }
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
    Path((id, label)): Path<(EventId, Label)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let sheet = sheet_of(&app, id).await?;
    let block = sheet.map.block(&label).ok_or_else(|| Problem::no_such("block"))?;
    let reading = read_block_now(app.stores(), &sheet, block).await?;
    let body = block_body(&sheet, block, &reading);
    let bytes = serde_json::to_vec(&body).map_err(|error| Problem::internal(&error))?;
    let etag = etag_of(&bytes);
    let mut response = if matches_etag(&headers, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, "application/json")], Body::from(bytes)).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, etag);
    }
    Ok(response)
}

/// Over the bytes and not the version alone: a deadline that passes changes a seat without a change in Redis.
fn etag_of(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hex: String = hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

fn block_body(sheet: &EventSheet, block: &Block, reading: &BlockReading) -> BlockBody {
    let seats = sheet.map.seats_of(block).iter().zip(&reading.seats).map(|(seat, read)| SeatBody {
        id: seat.id,
        column: seat.column.as_str().to_owned(),
        row: seat.row.as_str().to_owned(),
        label: seat.label.to_string(),
        category: seat.category.to_string(),
        price: sheet.price(seat).map(|amount| price(sheet, amount)),
        status: read.status_at(reading.now_ms),
    });
    BlockBody {
        event: sheet.event.id,
        block: block.block.as_str().to_owned(),
        version: reading.version,
        seats: seats.collect(),
    }
}
