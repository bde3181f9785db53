//! Watching an event's seats.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use domain::id::EventId;
use domain::label::Label;
use garde::Validate;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::auth::ClientAddress;
use crate::extract::{Path, Query};
use crate::problem::Problem;
use crate::stream::{Form, Scope};

/// What is watched, and how it is told.
#[derive(Debug, Deserialize, Validate, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// The block's label. Without it the whole event, in the compact form.
    #[garde(skip)]
    #[param(value_type = Option<String>, min_length = 1, max_length = 64, example = "101")]
    block: Option<Label>,
    /// How it is told: `json` where a block is named, else `compact`.
    #[garde(skip)]
    #[param(inline)]
    form: Option<FormWord>,
}

/// How seats are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormWord {
    /// Seats by id, statuses in words.
    Json,
    /// Two bits a seat, in seat order.
    Compact,
}

/// An event's seats, live: server-sent events.
///
/// First comes `snapshot`, then `changes` as they happen, at most ten times a second. A browser that loses the
/// connection comes back by itself and sends `Last-Event-ID`: it is told what it has missed in one event, or `reset` and
/// a new `snapshot` where that cannot be known. A `snapshot` always replaces everything.
///
/// With `form=json` the data of `snapshot` is the answer of `GET /v1/events/{id}/blocks/{block}/seats`, and that of
/// `changes` is `{"event", "block", "version", "changes": [{"id", "status"}]}`.
///
/// With `form=compact` the data of `snapshot` is `{"event", "revision", "blocks": [{"block", "version", "count",
/// "seats"}]}`: `seats` is base64 of two bits for each seat (0 available, 1 held, 2 sold, 3 blocked), four seats a byte,
/// the first in the lowest bits, in the order of the venue's map. That of `changes` is `{"blocks": [{"block", "version",
/// "changes": [[index, status]]}]}`.
#[utoipa::path(get, path = "/v1/events/{id}/stream", tag = "Seats",
    params(
        ("id" = String, Path, description = "The event's id", max_length = 64),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that the caller has seen"),
        StreamQuery),
    responses(
        (status = 200, description = "Events without end", content_type = "text/event-stream", body = String)))]
pub async fn stream_seats(
    State(app): State<App>,
    Path(id): Path<EventId>,
    address: Option<Extension<ClientAddress>>,
    headers: HeaderMap,
    Query(query): Query<StreamQuery>,
) -> Result<Response, Problem> {
    let (scope, form) = match (query.block, query.form) {
        (Some(block), None | Some(FormWord::Json)) => (Scope::Block(block), Form::Json),
        (Some(block), Some(FormWord::Compact)) => (Scope::Block(block), Form::Compact),
        (None, None | Some(FormWord::Compact)) => (Scope::Event, Form::Compact),
        (None, Some(FormWord::Json)) => {
            return Err(Problem::invalid("form", "`json` is told of one block: name it, or take `compact`."));
        }
    };
    // A header that is there but no text is an id that cannot be continued.
    let last_event_id = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let address = address.map(|Extension(ClientAddress(address))| address);
    let events = app.streams().open(address, (id, scope, form), last_event_id).await?;
    let mut response = Response::new(Body::from_stream(events));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        // nginx would keep events back until its buffer is full.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}
