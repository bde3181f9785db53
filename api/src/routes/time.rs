//! The server's clock.

use axum::Json;
use axum::extract::State;
use domain::time::Instant;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;

/// The server's clock.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerTime {
    /// Now. The `Server-Time` header of every answer says the same in milliseconds since 1970.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:00:00.000Z")]
    server_time: Instant,
}

/// The server's clock, to count down by.
#[utoipa::path(get, path = "/v1/time", tag = "Reference", responses((status = 200, description = "Now", body = ServerTime)))]
pub async fn get_time(State(app): State<App>) -> Json<ServerTime> {
    Json(ServerTime { server_time: app.stores().pg.clock().told_now() })
}
