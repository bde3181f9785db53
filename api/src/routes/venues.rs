//! Venues: importing and listing them.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use domain::flow::import_venue::{ImportMode, ImportVenueError, VenueFile, VenueImport};
use domain::id::VenueId;
use domain::import::{MAP_BYTES_MAX, MapFormat};
use domain::store::pg::venues::Venue;
use domain::time::Instant;
use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::answer;
use crate::app::App;
use crate::auth::Admin;
use crate::extract::{Path, Query, read_body};
use crate::problem::{Conflict, FieldError, Problem, ProblemCode};
use crate::wire::{Page, cut_page};

/// How long a file may take to arrive.
const UPLOAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(240);

/// The most seats that a refused file's answer names.
const TAKEN_SHOWN_MAX: usize = 200;

/// A venue without its seats.
#[derive(Debug, Serialize, ToSchema)]
pub struct VenueBody {
    /// Its id.
    #[schema(value_type = String, example = "0197f0a2-5c1e-7d7e-8f3e-1b2c3d4e5f60")]
    id: VenueId,
    /// What people call it; unique.
    #[schema(example = "Jamsil Stadium")]
    name: String,
    /// Its IANA time zone, in which wall-clock times of its events are read.
    #[schema(example = "Asia/Seoul")]
    time_zone: String,
    /// Grows with each change of its map.
    #[schema(minimum = 1, example = 1)]
    version: i32,
    /// How many blocks it has.
    #[schema(minimum = 0, example = 60)]
    blocks: i32,
    /// How many seats it has.
    #[schema(minimum = 0, maximum = 200000, example = 23750)]
    seats: i32,
    /// When it was first imported.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:00:00.000Z")]
    created_at: Instant,
}

impl From<&Venue> for VenueBody {
    fn from(venue: &Venue) -> Self {
        Self {
            id: venue.id,
            name: venue.name.clone(),
            time_zone: venue.zone.name().to_owned(),
            version: venue.version,
            blocks: venue.block_count,
            seats: venue.seat_count,
            created_at: venue.created_at,
        }
    }
}

/// A page of venues, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct VenuePage {
    /// The venues.
    venues: Vec<VenueBody>,
    /// The `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

/// What is known beside the file.
#[derive(Debug, Deserialize, Validate, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportQuery {
    /// The file's format.
    #[garde(skip)]
    #[param(inline, example = "csv")]
    format: FormatWord,
    /// The venue's name: the same name is the same venue.
    #[garde(length(chars, min = 1, max = 200))]
    #[param(min_length = 1, max_length = 200, example = "Jamsil Stadium")]
    name: String,
    /// The venue's IANA time zone.
    #[garde(length(min = 1, max = 64))]
    #[param(min_length = 1, max_length = 64, example = "Asia/Seoul")]
    time_zone: String,
    /// Only look: store nothing.
    #[garde(skip)]
    #[serde(default)]
    #[param(default = false)]
    dry_run: bool,
}

/// The formats that an import reads.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FormatWord {
    /// Our own table, one seat a line.
    Csv,
    /// The chart JSON of seats.io.
    Seatsio,
    /// The seating plan JSON of pretix.
    Pretix,
}

impl From<FormatWord> for MapFormat {
    fn from(word: FormatWord) -> Self {
        match word {
            FormatWord::Csv => Self::Csv,
            FormatWord::Seatsio => Self::Seatsio,
            FormatWord::Pretix => Self::Pretix,
        }
    }
}

/// What an import found and did.
#[derive(Debug, Serialize, ToSchema)]
pub struct ImportBody {
    /// The venue's id; null after a dry run.
    #[schema(value_type = Option<String>, example = "0197f0a2-5c1e-7d7e-8f3e-1b2c3d4e5f60")]
    venue: Option<VenueId>,
    /// Its version; null after a dry run.
    version: Option<i32>,
    /// Whether anything is stored now that was not before.
    changed: bool,
    /// How many blocks the file has.
    #[schema(minimum = 0, example = 60)]
    blocks: usize,
    /// How many seats the file has.
    #[schema(minimum = 0, example = 23750)]
    seats: usize,
    /// The categories, each of which an event gives a price.
    #[schema(example = json!(["Table", "Orange", "Outfield"]))]
    categories: Vec<String>,
    /// What of the file has no counterpart here.
    skipped: Vec<SkippedBody>,
    /// What deserves a look.
    warnings: Vec<String>,
}

/// One object of the file that is not in the venue.
#[derive(Debug, Serialize, ToSchema)]
pub struct SkippedBody {
    /// Where it stands in the file.
    #[schema(example = "$.subChart.shapes[3]")]
    path: String,
    /// What it is, in the format's own word.
    #[schema(example = "shapes")]
    kind: String,
    /// Why it is left out.
    reason: String,
}

impl From<VenueImport> for ImportBody {
    fn from(import: VenueImport) -> Self {
        Self {
            venue: import.venue.as_ref().map(|venue| venue.id),
            version: import.venue.as_ref().map(|venue| venue.version),
            changed: import.is_changed,
            blocks: import.map.blocks.len(),
            seats: import.map.seat_count(),
            categories: import.map.categories.into_iter().map(|category| category.category).collect(),
            skipped: import
                .skipped
                .into_iter()
                .map(|it| SkippedBody { path: it.path, kind: it.kind, reason: it.reason })
                .collect(),
            warnings: import.warnings,
        }
    }
}

/// Imports a venue from a file.
///
/// All or nothing: a file with a fault stores nothing, and every fault is named with its line or path. The same file
/// again changes nothing and answers the same ids.
#[utoipa::path(post, path = "/v1/venues/import", tag = "Venues", params(ImportQuery),
    security(("api_key" = [])),
    request_body(description = "The file, at most 64 MiB, of whatever content type", content_type = "application/octet-stream",
        content = Vec<u8>),
    responses(
        (status = 201, description = "Stored", body = ImportBody),
        (status = 200, description = "Nothing to store: a dry run, or the venue had this very map", body = ImportBody),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 409, description = "`conflict`: events use the venue with another map (`conflicts` and `errors` name the seats that somebody owns and which the file would change), or it is in another zone"),
        (status = 422, description = "`validation_failed`: `errors` names every fault with its line or path")))]
pub async fn import_venue(
    _: Admin,
    State(app): State<App>,
    Query(query): Query<ImportQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let bytes = read_body(request, MAP_BYTES_MAX, UPLOAD_TIMEOUT).await?.to_vec();
    let mode = if query.dry_run { ImportMode::DryRun } else { ImportMode::Store };
    let file = VenueFile { format: query.format.into(), name: query.name, time_zone: query.time_zone, bytes, mode };
    let stores = app.stores().clone();
    let import = app.write(async move { domain::flow::import_venue::import_venue(&stores, file).await }).await?;
    let status = if import.is_changed { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer::json(status, &ImportBody::from(import)))
}

impl From<ImportVenueError> for Problem {
    fn from(error: ImportVenueError) -> Self {
        match error {
            ImportVenueError::Name => Self::invalid("name", error.to_string()),
            ImportVenueError::Zone(zone) => Self::invalid("time_zone", zone.to_string()),
            ImportVenueError::Faults(faults) => {
                let more = faults.more;
                let mut errors: Vec<FieldError> =
                    faults.faults.into_iter().map(|fault| FieldError::new(fault.at, fault.message)).collect();
                if more > 0 {
                    errors.push(FieldError::new("", format!("and {more} more faults")));
                }
                Self::invalid_all(errors)
            }
            ImportVenueError::InUse { ref taken, .. } => {
                let shown = taken.iter().take(TAKEN_SHOWN_MAX);
                let conflicts = shown
                    .clone()
                    .map(|seat| Conflict { seat: seat.id.to_string(), status: seat.status.as_str().to_owned() });
                let mut errors: Vec<FieldError> = shown.map(|seat| FieldError::new("seat", seat.to_string())).collect();
                if let Some(more @ 1..) = taken.len().checked_sub(TAKEN_SHOWN_MAX) {
                    errors.push(FieldError::new("", format!("and {more} more seats")));
                }
                Self::with_detail(ProblemCode::Conflict, error.to_string())
                    .conflicts(conflicts.collect())
                    .errors(errors)
            }
            ImportVenueError::OtherZone { .. } => Self::with_detail(ProblemCode::Conflict, error.to_string()),
            ImportVenueError::Pg(error) => error.into(),
            ImportVenueError::Interrupted(error) => Self::internal(&error),
        }
    }
}

/// The venues, oldest first.
#[utoipa::path(get, path = "/v1/venues", tag = "Venues", params(Page),
    responses((status = 200, description = "A page of venues", body = VenuePage)))]
pub async fn list_venues(State(app): State<App>, Query(page): Query<Page>) -> Result<Json<VenuePage>, Problem> {
    let mut venues = app.stores().pg.list_venues(page.after()?, page.limit() + 1).await?;
    let next_cursor = cut_page(&mut venues, page.limit(), |venue| venue.id.to_string());
    Ok(Json(VenuePage { venues: venues.iter().map(VenueBody::from).collect(), next_cursor }))
}

/// A venue without its seats.
#[utoipa::path(get, path = "/v1/venues/{id}", tag = "Venues",
    params(("id" = String, Path, description = "The venue's id", max_length = 64)),
    responses((status = 200, description = "The venue", body = VenueBody)))]
pub async fn get_venue(State(app): State<App>, Path(id): Path<VenueId>) -> Result<Response, Problem> {
    let venue = app.stores().pg.find_venue(id).await?.ok_or_else(|| Problem::no_such("venue"))?;
    Ok(Json(VenueBody::from(&venue)).into_response())
}
