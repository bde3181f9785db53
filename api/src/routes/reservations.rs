//! Reservations: holding seats, reading, extending and cancelling.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::Response;
use domain::flow::place_hold::{HoldRequest, place_hold as place};
use domain::flow::{self, Access, Answered, unhold};
use domain::id::{Buyer, EventId, ReservationId};
use domain::reservation::{CancelReason, Reservation, ReservationState, ReservationStatus};
use domain::seat::SeatRef;
use domain::store::pg::reservations::ReservationFilter;
use garde::Validate;
use serde::Deserialize;
use utoipa::IntoParams;

use super::reservations_body::{HoldBody, ReservationBody, ReservationPage, ReservationStatusWord};
use crate::answer;
use crate::app::{App, repeatable};
use crate::auth::Shopper;
use crate::extract::{BodyDigest, Json as JsonBody, NoBody, Path, Query};
use crate::idempotency::Idempotency;
use crate::problem::{Problem, ProblemCode};
use crate::wire::{LIMIT_DEFAULT, cut_page, read_cursor};

fn body_of(reservation: &Reservation) -> ReservationBody {
    ReservationBody::from(reservation)
}

/// Holds seats: all of them or none.
///
/// The seats belong to the buyer until `expires_at`. A refusal names every seat in the way. With an `Idempotency-Key`
/// the same request can be sent again after a lost answer.
#[utoipa::path(post, path = "/v1/events/{id}/reservations", tag = "Reservations", request_body = HoldBody,
    security(("api_key" = []), ("buyer_token" = [])),
    params(
        ("id" = String, Path, description = "The event's id", max_length = 64),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable", min_length = 1, max_length = 255)),
    responses(
        (status = 201, description = "The seats are held", body = ReservationBody,
            headers(("Location" = String, description = "Where the reservation is"))),
        (status = 403, description = "`not_on_sale` (with `opens_at`), `sales_closed`, or `forbidden`: a buyer names another, or a key of scope ops"),
        (status = 409, description = "`seat_unavailable` (with every one of the `conflicts`), or `request_in_progress`"),
        (status = 422, description = "`validation_failed`, `unknown_seat` (with `errors`), `limit_exceeded` (with `limit`), or `idempotency_key_reused`")))]
pub async fn place_hold(
    shopper: Shopper,
    State(app): State<App>,
    Path(event): Path<EventId>,
    idempotency: Idempotency,
    JsonBody(body, digest): JsonBody<HoldBody>,
) -> Result<Response, Problem> {
    let buyer = shopper.caller.buyer_of_hold(body.buyer)?;
    let request = HoldRequest {
        event,
        buyer,
        seats: body.seats.iter().map(SeatRef::from).collect(),
        idempotency: repeatable(idempotency.bind(&shopper.caller, digest), 201, body_of),
    };
    let stores = app.stores().clone();
    let outcome = app.write(async move { place(&stores, request).await }).await?;
    let mut response = answer::answered(&outcome, StatusCode::CREATED, body_of);
    let id = match &outcome {
        Answered::New(reservation) => Some(reservation.id),
        Answered::Replayed(stored) => stored.resource.map(ReservationId),
    };
    if let Some(id) = id {
        if let Ok(location) = format!("/v1/reservations/{id}").parse() {
            response.headers_mut().insert(header::LOCATION, location);
        }
        if matches!(outcome, Answered::Replayed(_)) {
            tell_present_state(&app, id, &mut response).await?;
        }
    }
    Ok(response)
}

/// A first answer may be old: its repetition says whether the reservation has died since.
async fn tell_present_state(app: &App, id: ReservationId, response: &mut Response) -> Result<(), Problem> {
    let head = app.stores().pg.find_reservation_head(id).await?;
    if let Some(ReservationState::Cancelled { reason, .. }) = head.map(|head| head.state()) {
        let state = if reason == CancelReason::Expired { "expired" } else { "cancelled" };
        answer::set_resource_state(response, state);
    }
    Ok(())
}

/// Which reservations a list shows.
#[derive(Debug, Deserialize, Validate, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReservationQuery {
    /// Of this event only.
    #[garde(inner(length(max = 64)))]
    #[param(max_length = 64)]
    event: Option<String>,
    /// In this status only, as it is now.
    #[garde(skip)]
    #[param(inline)]
    status: Option<ReservationStatusWord>,
    /// Of this buyer only. A buyer's token sees its own anyway.
    #[garde(inner(length(min = 1, max = 128)))]
    #[param(min_length = 1, max_length = 128)]
    buyer: Option<String>,
    /// How many at most.
    #[garde(inner(range(min = 1, max = 200)))]
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<i64>,
    /// Where to go on: the `next_cursor` of the page before.
    #[garde(inner(length(min = 1, max = 64)))]
    #[param(min_length = 1, max_length = 64)]
    cursor: Option<String>,
}

impl ReservationQuery {
    fn filter(&self, access: &Access) -> Result<ReservationFilter, Problem> {
        let event = self.event.as_deref().map(str::parse).transpose();
        let named = self.buyer.as_deref().map(Buyer::parse).transpose();
        let named = named.map_err(|error| Problem::invalid("buyer", error.to_string()))?;
        let buyer = match (access, named) {
            (Access::Any, named) => named,
            (Access::Own(own), Some(named)) if *own != named => {
                return Err(Problem::with_detail(ProblemCode::Forbidden, "A buyer sees its own reservations only."));
            }
            (Access::Own(own), _) => Some(own.clone()),
        };
        Ok(ReservationFilter {
            event: event.map_err(|_| Problem::invalid("event", "not the id of an event"))?,
            buyer,
            status: self.status.map(|status| match status {
                ReservationStatusWord::Pending => ReservationStatus::Pending,
                ReservationStatusWord::Confirmed => ReservationStatus::Confirmed,
                ReservationStatusWord::Cancelled => ReservationStatus::Cancelled,
            }),
            after: read_cursor(self.cursor.as_deref())?,
        })
    }
}

/// The caller's reservations, oldest first; with an API key, anybody's.
#[utoipa::path(get, path = "/v1/reservations", tag = "Reservations", params(ReservationQuery),
    security(("api_key" = []), ("buyer_token" = [])),
    responses(
        (status = 200, description = "A page of reservations", body = ReservationPage),
        (status = 403, description = "`forbidden`: a buyer asks for another's, or a key of scope ops")))]
pub async fn list_reservations(
    shopper: Shopper,
    State(app): State<App>,
    Query(query): Query<ReservationQuery>,
) -> Result<Json<ReservationPage>, Problem> {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    let filter = query.filter(&shopper.access)?;
    let mut found = app.stores().pg.list_reservations(&filter, limit + 1).await?;
    let next_cursor = cut_page(&mut found, limit, |reservation| reservation.id.to_string());
    Ok(Json(ReservationPage { reservations: found.iter().map(ReservationBody::from).collect(), next_cursor }))
}

/// A reservation with its payments and refunds.
#[utoipa::path(get, path = "/v1/reservations/{id}", tag = "Reservations",
    security(("api_key" = []), ("buyer_token" = [])),
    params(("id" = String, Path, description = "The reservation's id", max_length = 64)),
    responses(
        (status = 200, description = "The reservation", body = ReservationBody),
        (status = 403, description = "`forbidden`: a key of scope ops")))]
pub async fn get_reservation(
    shopper: Shopper,
    State(app): State<App>,
    Path(id): Path<ReservationId>,
) -> Result<Json<ReservationBody>, Problem> {
    let found = flow::read_reservation(app.stores(), &shopper.access, id).await?;
    Ok(Json(body_of(&found.ok_or_else(|| Problem::no_such("reservation"))?)))
}

/// Extends a hold by another `hold_ttl_seconds`, as often as the event allows and never past `extends_until`.
#[utoipa::path(post, path = "/v1/reservations/{id}/extend", tag = "Reservations",
    security(("api_key" = []), ("buyer_token" = [])),
    params(
        ("id" = String, Path, description = "The reservation's id", max_length = 64),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable", min_length = 1, max_length = 255)),
    responses(
        (status = 200, description = "The reservation with its new deadline", body = ReservationBody),
        (status = 403, description = "`forbidden`: a key of scope ops"),
        (status = 409, description = "`invalid_transition`: no further extension is allowed, or it is confirmed; `payment_in_flight`"),
        (status = 410, description = "`reservation_gone`")))]
pub async fn extend_reservation(
    shopper: Shopper,
    State(app): State<App>,
    Path(id): Path<ReservationId>,
    idempotency: Idempotency,
    NoBody: NoBody,
) -> Result<Response, Problem> {
    let stores = app.stores().clone();
    let outcome = match repeatable(idempotency.bind(&shopper.caller, BodyDigest::of_nothing()), 200, body_of) {
        Some(repeat) => {
            let write = async move { unhold::extend_reservation_once(&stores, &shopper.access, id, repeat).await };
            app.write(write).await?
        }
        None => {
            let write = async move { unhold::extend_reservation(&stores, &shopper.access, id).await };
            Answered::New(app.write(write).await?)
        }
    };
    let mut response = answer::answered(&outcome, StatusCode::OK, body_of);
    if matches!(outcome, Answered::Replayed(_)) {
        tell_present_state(&app, id, &mut response).await?;
    }
    Ok(response)
}

/// Cancels a PENDING reservation: its seats are free again. Cancelling it again changes nothing.
#[utoipa::path(delete, path = "/v1/reservations/{id}", tag = "Reservations",
    security(("api_key" = []), ("buyer_token" = [])),
    params(("id" = String, Path, description = "The reservation's id", max_length = 64)),
    responses(
        (status = 200, description = "The cancelled reservation", body = ReservationBody),
        (status = 403, description = "`forbidden`: a key of scope ops"),
        (status = 409, description = "`payment_in_flight`, or `invalid_transition`: it is confirmed"),
        (status = 410, description = "`reservation_gone`: it has expired, or was cancelled for another reason")))]
pub async fn cancel_reservation(
    shopper: Shopper,
    State(app): State<App>,
    Path(id): Path<ReservationId>,
) -> Result<Json<ReservationBody>, Problem> {
    let stores = app.stores().clone();
    let write = async move { unhold::cancel_reservation(&stores, &shopper.access, id, CancelReason::User).await };
    Ok(Json(body_of(&app.write(write).await?)))
}
