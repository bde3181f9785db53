//! The operations board: apalis-board's pages over our queues, read-only.
//!
//! Its pages are compiled for the root of an origin (`/` and `/api/v1`), so it can only be mounted at the root of the
//! operators' listener; routes beside it win over its fallback.

use apalis_board::axum::{
    framework::{ApiBuilder, RegisterRoute},
    ui::ServeUI,
};
use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use domain::queue::{OpsView, Queue, QueueRedis};

use crate::problem::{Problem, ProblemCode};

/// The board's pages at `/` (as the fallback) and its API at `/api/v1`. It has no authentication of its own: the caller
/// wraps it. Requests other than GET and HEAD are refused with 405, so nobody enqueues through it.
pub fn board_router(redis: &QueueRedis) -> Router {
    let mut queues = ApiBuilder::new(Router::new());
    for queue in Queue::ALL {
        queues = RegisterRoute::<OpsView, serde_json::Value>::register(
            queues,
            queue.name(),
            OpsView::new(redis.clone(), queue),
        );
    }
    // Without a fallback of its own the nested router would take the pages': HTML and 200 for a path that is not there.
    let api = queues.build().fallback(async || Problem::with_detail(ProblemCode::NotFound, "There is no such path."));
    Router::new().nest("/api/v1", api).fallback_service(ServeUI::new()).layer(middleware::from_fn(only_look))
}

/// Lets reads pass.
async fn only_look(request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let detail = "The board only looks: jobs are enqueued by the transactions that need them.";
        let mut response = Problem::with_detail(ProblemCode::MethodNotAllowed, detail).into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if request.uri().path() == "/api/v1/events" {
        // The stream of log lines has no source here, and each of its clients would be remembered for ever. A browser
        // takes this answer as the end of the stream and does not come back.
        return StatusCode::NO_CONTENT.into_response();
    }
    next.run(request).await
}
