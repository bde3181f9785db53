//! Keeping seats from sale.

use axum::Json;
use axum::extract::State;
use domain::flow::block_seats::{BlockSeatsError, BlockSeatsOrder, BlockSeatsReport, block_seats as block};
use domain::id::EventId;
use domain::seat::SeatRef;
use domain::store::pg::claims::Blocking;
use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reservations_body::{SeatName, seat_errors};
use crate::app::App;
use crate::auth::Admin;
use crate::extract::{Json as JsonBody, Path};
use crate::problem::{Conflict, Problem, ProblemCode};

/// Which seats, and why.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BlockSeatsBody {
    /// The seats: by id, or by block, column and row.
    #[garde(length(min = 1, max = 1000))]
    #[schema(min_items = 1, max_items = 1000, example = json!(["1042", {"block": "101", "column": "08", "row": "AA"}]))]
    seats: Vec<SeatName>,
    /// Why, for the seats' log.
    #[garde(length(chars, min = 1, max = 200))]
    #[schema(min_length = 1, max_length = 200, example = "camera position")]
    reason: String,
}

/// What has become of the seats.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlockSeatsAnswer {
    /// The ids of those that changed.
    #[schema(example = json!(["1042"]))]
    changed: Vec<String>,
    /// Those that did not change, with what they are: a seat that somebody owns stays theirs.
    unchanged: Vec<Conflict>,
}

impl From<BlockSeatsReport> for BlockSeatsAnswer {
    fn from(report: BlockSeatsReport) -> Self {
        Self {
            changed: report.changed.iter().map(ToString::to_string).collect(),
            unchanged: report
                .unchanged
                .iter()
                .map(|(seat, status)| Conflict { seat: seat.to_string(), status: status.as_str().to_owned() })
                .collect(),
        }
    }
}

impl From<BlockSeatsError> for Problem {
    fn from(error: BlockSeatsError) -> Self {
        match error {
            BlockSeatsError::UnknownEvent => Self::no_such("event"),
            BlockSeatsError::UnknownSeats(ref indices) => {
                let errors = seat_errors(indices, "the event has no such seat");
                Self::with_detail(ProblemCode::UnknownSeat, error.to_string()).errors(errors)
            }
            BlockSeatsError::Pg(error) => error.into(),
        }
    }
}

async fn change(
    (Admin(key), app, event): (Admin, App, EventId),
    body: BlockSeatsBody,
    blocking: Blocking,
) -> Result<Json<BlockSeatsAnswer>, Problem> {
    let seats = body.seats.iter().map(SeatRef::from).collect();
    let order = BlockSeatsOrder { event, seats, blocking, actor: format!("key {key}"), reason: body.reason };
    let stores = app.stores().clone();
    let report = app.write(async move { block(&stores, order).await }).await?;
    Ok(Json(report.into()))
}

/// Keeps seats from sale. Seats that somebody owns stay as they are and are named. Doing it again changes nothing.
#[utoipa::path(post, path = "/v1/events/{id}/seats/block", tag = "Seats", request_body = BlockSeatsBody,
    security(("api_key" = [])),
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses(
        (status = 200, description = "What has become of the seats", body = BlockSeatsAnswer),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 422, description = "`validation_failed`, or `unknown_seat` (with `errors`): then no seat was changed")))]
pub async fn block_seats(
    admin: Admin,
    State(app): State<App>,
    Path(event): Path<EventId>,
    JsonBody(body, _): JsonBody<BlockSeatsBody>,
) -> Result<Json<BlockSeatsAnswer>, Problem> {
    change((admin, app, event), body, Blocking::Block).await
}

/// Gives blocked seats back to sale. Doing it again changes nothing.
#[utoipa::path(post, path = "/v1/events/{id}/seats/unblock", tag = "Seats", request_body = BlockSeatsBody,
    security(("api_key" = [])),
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses(
        (status = 200, description = "What has become of the seats", body = BlockSeatsAnswer),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 422, description = "`validation_failed`, or `unknown_seat` (with `errors`): then no seat was changed")))]
pub async fn unblock_seats(
    admin: Admin,
    State(app): State<App>,
    Path(event): Path<EventId>,
    JsonBody(body, _): JsonBody<BlockSeatsBody>,
) -> Result<Json<BlockSeatsAnswer>, Problem> {
    change((admin, app, event), body, Blocking::Unblock).await
}
