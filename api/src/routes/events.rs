//! Events: making, reading, changing, opening and closing them.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::Response;
use domain::event::Event;
use domain::flow::Answered;
use domain::flow::set_up_event::{self, SetUpEventError};
use domain::id::EventId;

use super::events_body::{EventBody, EventPage, EventPatch, NewEvent};
use crate::answer;
use crate::app::{App, repeatable};
use crate::auth::{Admin, Caller};
use crate::extract::{Json as JsonBody, NoBody, Path, Query};
use crate::idempotency::Idempotency;
use crate::problem::{FieldError, Problem, ProblemCode};
use crate::wire::{Page, cut_page};

impl From<SetUpEventError> for Problem {
    fn from(error: SetUpEventError) -> Self {
        match error {
            SetUpEventError::NotFound => Self::no_such("event"),
            SetUpEventError::Invalid(faults) => {
                Self::invalid_all(faults.into_iter().map(|it| FieldError::new(it.field, it.message)).collect())
            }
            SetUpEventError::WrongStatus(_) => Self::with_detail(ProblemCode::InvalidTransition, error.to_string()),
            SetUpEventError::KeyReused => Self::new(ProblemCode::IdempotencyKeyReused),
            SetUpEventError::Pg(error) => error.into(),
        }
    }
}

/// Makes an event, as a draft.
#[utoipa::path(post, path = "/v1/events", tag = "Events", request_body = NewEvent, security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable", min_length = 1, max_length = 255)),
    responses(
        (status = 201, description = "The draft", body = EventBody, headers(("Location" = String, description = "Where it is"))),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 422, description = "`validation_failed`: `errors` names every field at fault; or `idempotency_key_reused`")))]
pub async fn create_event(
    _: Admin,
    caller: Caller,
    State(app): State<App>,
    idempotency: Idempotency,
    JsonBody(new, digest): JsonBody<NewEvent>,
) -> Result<Response, Problem> {
    let stores = app.stores().clone();
    let outcome = match repeatable(idempotency.bind(&caller, digest), 201, body_of) {
        Some(repeat) => {
            app.write(async move { set_up_event::create_event_once(&stores, new.into(), repeat).await }).await?
        }
        None => Answered::New(app.write(async move { set_up_event::create_event(&stores, new.into()).await }).await?),
    };
    match &outcome {
        Answered::New(event) => Ok(located(StatusCode::CREATED, event)),
        Answered::Replayed(_) => Ok(answer::answered(&outcome, StatusCode::CREATED, body_of)),
    }
}

fn body_of(event: &Event) -> EventBody {
    EventBody::from(event)
}

fn located(status: StatusCode, event: &Event) -> Response {
    let mut response = answer::json(status, &EventBody::from(event));
    if let Ok(location) = format!("/v1/events/{}", event.id).parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The events, oldest first.
#[utoipa::path(get, path = "/v1/events", tag = "Events", params(Page),
    responses((status = 200, description = "A page of events", body = EventPage)))]
pub async fn list_events(State(app): State<App>, Query(page): Query<Page>) -> Result<Json<EventPage>, Problem> {
    let mut events = app.stores().pg.list_events(page.after()?, page.limit() + 1).await?;
    let next_cursor = cut_page(&mut events, page.limit(), |event| event.id.to_string());
    Ok(Json(EventPage { events: events.iter().map(EventBody::from).collect(), next_cursor }))
}

/// An event.
#[utoipa::path(get, path = "/v1/events/{id}", tag = "Events",
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses((status = 200, description = "The event", body = EventBody)))]
pub async fn get_event(State(app): State<App>, Path(id): Path<EventId>) -> Result<Json<EventBody>, Problem> {
    let event = app.stores().pg.find_event(id).await?.ok_or_else(|| Problem::no_such("event"))?;
    Ok(Json(EventBody::from(&event)))
}

/// Changes an event that is neither closed nor called off. Holds that stand keep their price and deadline.
#[utoipa::path(patch, path = "/v1/events/{id}", tag = "Events", request_body = EventPatch, security(("api_key" = [])),
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses(
        (status = 200, description = "The changed event", body = EventBody),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 409, description = "`invalid_transition`: it is closed or called off"),
        (status = 422, description = "`validation_failed`: `errors` names every field at fault")))]
pub async fn change_event(
    _: Admin,
    State(app): State<App>,
    Path(id): Path<EventId>,
    JsonBody(patch, _): JsonBody<EventPatch>,
) -> Result<Json<EventBody>, Problem> {
    let stores = app.stores().clone();
    let event = app.write(async move { set_up_event::change_event(&stores, id, patch.into()).await }).await?;
    Ok(Json(EventBody::from(&event)))
}

/// Opens an event's sale: a job writes its seats, then it is on sale.
///
/// `progress` tells how far the job is. An event that is preparing or on sale is answered as it is.
#[utoipa::path(post, path = "/v1/events/{id}/open", tag = "Events", security(("api_key" = [])),
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses(
        (status = 202, description = "It is being prepared, or is on sale already", body = EventBody),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 409, description = "`invalid_transition`: it is called off")))]
pub async fn open_event(
    _: Admin,
    State(app): State<App>,
    Path(id): Path<EventId>,
    NoBody: NoBody,
) -> Result<Response, Problem> {
    let stores = app.stores().clone();
    let event = app.write(async move { set_up_event::start_sale(&stores, id).await }).await?;
    let mut response = located(StatusCode::ACCEPTED, &event);
    // How soon it is worth looking again.
    response.headers_mut().insert(HeaderName::from_static("retry-after"), 1.into());
    Ok(response)
}

/// Closes an event's sale: no further holds. What is held may still be paid for.
#[utoipa::path(post, path = "/v1/events/{id}/close", tag = "Events", security(("api_key" = [])),
    params(("id" = String, Path, description = "The event's id", max_length = 64)),
    responses(
        (status = 200, description = "The closed event", body = EventBody),
        (status = 403, description = "`forbidden`: not an API key of scope admin"),
        (status = 409, description = "`invalid_transition`: it is called off")))]
pub async fn close_event(
    _: Admin,
    State(app): State<App>,
    Path(id): Path<EventId>,
    NoBody: NoBody,
) -> Result<Json<EventBody>, Problem> {
    let stores = app.stores().clone();
    let event = app.write(async move { set_up_event::end_sale(&stores, id).await }).await?;
    Ok(Json(EventBody::from(&event)))
}
