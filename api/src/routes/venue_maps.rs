//! A venue's map as it is sent: made once per version, then the same bytes for everybody.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::flow::Stores;
use domain::id::{SeatId, VenueId};
use domain::store::pg::venues::Venue;
use domain::venue::MapBlock;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

use crate::app::App;
use crate::extract::Path;
use crate::problem::Problem;

/// The most maps kept; a map of 25,000 seats has some 4 MB.
const KEPT_MAX: usize = 8;

/// A venue's map.
#[derive(Debug, Serialize, ToSchema)]
pub struct MapBody {
    /// The venue.
    #[schema(value_type = String, example = "0197f0a2-5c1e-7d7e-8f3e-1b2c3d4e5f60")]
    venue: VenueId,
    /// The map's version.
    #[schema(minimum = 1, example = 1)]
    version: i32,
    /// The categories.
    categories: Vec<CategoryBody>,
    /// The blocks with their seats.
    blocks: Vec<MapBlockBody>,
}

/// A category of seats.
#[derive(Debug, Serialize, ToSchema)]
pub struct CategoryBody {
    /// Its name.
    #[schema(example = "Orange")]
    category: String,
    /// The colour to draw it in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "#f08c00")]
    color: Option<String>,
}

/// A block of the map.
#[derive(Debug, Serialize, ToSchema)]
pub struct MapBlockBody {
    /// Its label.
    #[schema(example = "101")]
    block: String,
    /// Its name by language.
    #[schema(example = json!({"ko": "1루 내야 101", "en": "First base 101"}))]
    names: BTreeMap<String, String>,
    /// Its tier, stand or floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "Infield")]
    tier: Option<String>,
    /// Its seats, in seat order.
    seats: Vec<MapSeatBody>,
}

/// A seat of the map.
#[derive(Debug, Serialize, ToSchema)]
pub struct MapSeatBody {
    /// Its id: the same for every event of the venue.
    #[schema(value_type = String, example = "1042")]
    id: SeatId,
    /// Its row.
    #[schema(example = "AA")]
    row: String,
    /// Its column.
    #[schema(example = "07")]
    column: String,
    /// What is printed on it.
    #[schema(example = "AA-07")]
    label: String,
    /// Its category.
    #[schema(example = "Orange")]
    category: String,
    /// Position from the left, in the map's own unit.
    #[schema(example = 120.5)]
    x: f64,
    /// Position from the top, in the map's own unit.
    #[schema(example = 48.0)]
    y: f64,
    /// The seats right beside it.
    #[schema(value_type = Vec<String>, example = json!(["1041", "1043"]))]
    neighbours: Vec<SeatId>,
}

/// The maps that were sent lately.
#[derive(Debug, Default)]
pub(crate) struct VenueMaps(Mutex<HashMap<VenueId, (String, Bytes)>>);

impl VenueMaps {
    async fn bytes_of(&self, stores: &Stores, venue: &Venue) -> Result<Bytes, Problem> {
        let known = self.lock().get(&venue.id).filter(|(hash, _)| *hash == venue.content_hash).cloned();
        if let Some((_, bytes)) = known {
            return Ok(bytes);
        }
        let body = make_map(stores, venue).await?;
        let bytes = serde_json::to_vec(&body).map(Bytes::from).map_err(|error| Problem::internal(&error))?;
        let mut kept = self.lock();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(venue.id, (venue.content_hash.clone(), bytes.clone()));
        Ok(bytes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<VenueId, (String, Bytes)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn make_map(stores: &Stores, venue: &Venue) -> Result<MapBody, Problem> {
    let map = stores.pg.load_map(venue.id).await?;
    let ids = stores.book.seat_map(venue.id).await?;
    let blocks = map.blocks.into_iter().map(|block| {
        let seat_ids = ids.block(&block.block).map(|known| ids.seats_of(known)).unwrap_or_default();
        block_body(block, &seat_ids.iter().map(|seat| seat.id).collect::<Vec<_>>())
    });
    let categories = map.categories.into_iter().map(|it| CategoryBody { category: it.category, color: it.color });
    Ok(MapBody { venue: venue.id, version: venue.version, categories: categories.collect(), blocks: blocks.collect() })
}

/// Both readings stand in seat order, so a seat's index is its place in both.
fn block_body(block: MapBlock, ids: &[SeatId]) -> MapBlockBody {
    let seats = block.seats.into_iter().zip(ids).map(|(seat, id)| MapSeatBody {
        id: *id,
        row: seat.row.as_str().to_owned(),
        column: seat.column.as_str().to_owned(),
        label: seat.label,
        category: seat.category,
        x: seat.x,
        y: seat.y,
        neighbours: seat.neighbours.iter().filter_map(|index| ids.get(*index as usize).copied()).collect(),
    });
    MapBlockBody {
        block: block.block.as_str().to_owned(),
        names: block.names,
        tier: block.tier,
        seats: seats.collect(),
    }
}

/// A venue's map: blocks, seats, positions, categories.
///
/// The map of a version never changes, so it can be kept: send its `ETag` as `If-None-Match` and get 304.
#[utoipa::path(get, path = "/v1/venues/{id}/map", tag = "Venues",
    params(
        ("id" = String, Path, description = "The venue's id", max_length = 64),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of a map that the caller has")),
    responses(
        (status = 200, description = "The map", body = MapBody, headers(("ETag" = String, description = "Names this map"))),
        (status = 304, description = "The caller's map is the present one")))]
pub async fn get_venue_map(
    State(app): State<App>,
    Path(id): Path<VenueId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let venue = app.stores().pg.find_venue(id).await?.ok_or_else(|| Problem::no_such("venue"))?;
    let etag = format!("\"{}\"", venue.content_hash);
    let mut response = if matches_etag(&headers, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let bytes = app.maps().bytes_of(app.stores(), &venue).await?;
        ([(header::CONTENT_TYPE, "application/json")], Body::from(bytes)).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=60"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, etag);
    }
    Ok(response)
}

/// Whether `If-None-Match` names this entity tag (RFC 9110, 13.1.2; weak comparison).
pub(crate) fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == etag || tag == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_tag_is_found_among_several_and_weakly() {
        let matches = |sent: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, sent.parse().unwrap());
            matches_etag(&headers, "\"a\"")
        };
        assert!(matches("\"a\"") && matches("\"b\", W/\"a\"") && matches("*"));
        assert!(!matches("\"b\"") && !matches("a"));
        assert!(!matches_etag(&HeaderMap::new(), "\"a\""));
    }
}
