//! The table of the public listener's routes, and nothing else.

mod blocks;
mod buyers;
mod events;
mod events_body;
mod payments;
mod reservations;
mod reservations_body;
mod seats;
mod stream;
mod time;
pub(crate) mod venue_maps;
mod venues;

use axum::Router;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::openapi;
use crate::problem::{Problem, ProblemCode, pages};

/// Every route with its description; the paths of the contract.
pub fn table() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(time::get_time))
        .routes(routes!(buyers::create_buyer))
        .routes(routes!(venues::import_venue))
        .routes(routes!(venues::list_venues))
        .routes(routes!(venues::get_venue))
        .routes(routes!(venue_maps::get_venue_map))
        .routes(routes!(events::create_event, events::list_events))
        .routes(routes!(events::get_event, events::change_event))
        .routes(routes!(events::open_event))
        .routes(routes!(events::close_event))
        .routes(routes!(blocks::list_blocks))
        .routes(routes!(blocks::read_block))
        .routes(routes!(stream::stream_seats))
        .routes(routes!(seats::block_seats))
        .routes(routes!(seats::unblock_seats))
        .routes(routes!(reservations::place_hold))
        .routes(routes!(reservations::list_reservations))
        .routes(routes!(reservations::get_reservation, reservations::cancel_reservation))
        .routes(routes!(reservations::extend_reservation))
        .routes(routes!(payments::start_payment))
        .routes(routes!(payments::get_payment))
        .routes(routes!(pages::list_problems))
        .routes(routes!(pages::explain_problem))
}

/// The router with its state, its description at `/openapi.json` and `/docs`, and problems for everything else.
pub fn router(app: App) -> Router {
    let (router, description) = table().split_for_parts();
    openapi::mount(router, &description)
        .fallback(async || Problem::with_detail(ProblemCode::NotFound, "There is no such path."))
        .method_not_allowed_fallback(async || Problem::new(ProblemCode::MethodNotAllowed))
        .with_state(app)
}
