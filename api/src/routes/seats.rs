//! Keeping seats from sale, and giving them back.

use axum::Json;
use axum::extract::State;
use domain::flow::block_seats::{BlockOrder, BlockSeatsError, block_seats as block};
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
pub struct BlockOrderBody {
    /// The seats: by id, or by block, column and row.
    #[garde(length(min = 1, max = 1_000))]
    #[schema(min_items = 1, max_items = 1_000, example = json!(["1042", {"block": "101", "column": "08", "row": "AA"}]))]
    seats: Vec<SeatName>,
    /// Why, for the log.
    #[garde(length(chars, min = 1, max = 200))]
    #[schema(min_length = 1, max_length = 200, example = "the camera stands here")]
    reason: String,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlockedBody {
    /// How many seats are as they were asked to be.
    #[schema(minimum = 1, example = 2)]
    seats: usize,
}

/// Keeps seats from sale: all of them, or none where somebody owns one.
#[utoipa::path(post, path = "/v1/events/{id}/seats/block", tag = "Seats", request_body = BlockOrderBody,
    security(("api_key" = [])),
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses(
        (status = 200, description = "They are blocked", body = BlockedBody),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 409, description = "`seat_unavailable`: `conflicts` names every seat that somebody owns"),
        (status = 422, description = "`validation_failed`, or `unknown_seat` (with `errors`)")))]
pub async fn block_seats(
    admin: Admin,
    State(app): State<App>,
    Path(event): Path<EventId>,
    JsonBody(body, _): JsonBody<BlockOrderBody>,
) -> Result<Json<BlockedBody>, Problem> {
    order(&app, admin, (event, body), Blocking::Block).await
}

/// Gives blocked seats back to sale. Seats that are not blocked stay as they are.
#[utoipa::path(post, path = "/v1/events/{id}/seats/unblock", tag = "Seats", request_body = BlockOrderBody,
    security(("api_key" = [])),
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses(
        (status = 200, description = "None of them is blocked", body = BlockedBody),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 422, description = "`validation_failed`, or `unknown_seat` (with `errors`)")))]
pub async fn unblock_seats(
    admin: Admin,
    State(app): State<App>,
    Path(event): Path<EventId>,
    JsonBody(body, _): JsonBody<BlockOrderBody>,
) -> Result<Json<BlockedBody>, Problem> {
    order(&app, admin, (event, body), Blocking::Unblock).await
}

async fn order(
    app: &App,
    admin: Admin,
    (event, body): (EventId, BlockOrderBody),
    blocking: Blocking,
) -> Result<Json<BlockedBody>, Problem> {
    let order = BlockOrder {
        event,
        seats: body.seats.iter().map(SeatRef::from).collect(),
        blocking,
        actor: format!("key:{}", admin.0),
        reason: body.reason,
    };
    let stores = app.stores().clone();
    let seats = app.write(async move { block(&stores, order).await }).await?;
    Ok(Json(BlockedBody { seats }))
}

impl From<BlockSeatsError> for Problem {
    fn from(error: BlockSeatsError) -> Self {
        match error {
            BlockSeatsError::UnknownEvent => Self::no_such("event"),
            BlockSeatsError::UnknownSeats(indices) => {
                Self::new(ProblemCode::UnknownSeat).errors(seat_errors(&indices, "the event has no such seat"))
            }
            BlockSeatsError::Owned(owned) => {
                let conflict = |(seat, status): &(domain::id::SeatId, domain::seat::SeatStatus)| Conflict {
                    seat: seat.to_string(),
                    status: status.as_str().to_owned(),
                };
                Self::new(ProblemCode::SeatUnavailable).conflicts(owned.iter().map(conflict).collect())
            }
            BlockSeatsError::Pg(error) => error.into(),
        }
    }
}
