//! Anonymous buyers.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use domain::time::{Instant, from_ms};
use serde::Serialize;
use utoipa::ToSchema;

use crate::answer;
use crate::app::App;
use crate::extract::NoBody;
use crate::problem::{Problem, ProblemCode};

/// A new buyer that nobody knows.
#[derive(Debug, Serialize, ToSchema)]
pub struct NewBuyer {
    /// Its name.
    #[schema(example = "anon_3q2-7wAAAAAAAAAAAAAAAA")]
    buyer: String,
    /// To be sent as `Authorization: Bearer …`. Whoever has it is this buyer.
    token: String,
    /// When the token ends.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-31T05:00:00.000Z")]
    expires_at: Instant,
}

/// Makes an anonymous buyer.
///
/// For shops without accounts. Each call makes another buyer, so it is not repeatable: a lost answer is followed by a
/// new call.
#[utoipa::path(post, path = "/v1/buyers", tag = "Buyers", responses(
    (status = 201, description = "The new buyer", body = NewBuyer),
    (status = 403, description = "`forbidden`: anonymous buyers are switched off")))]
pub async fn create_buyer(State(app): State<App>, NoBody: NoBody) -> Result<Response, Problem> {
    match app.identity().tokens.issue() {
        Ok(Some(issued)) => {
            let body = NewBuyer {
                buyer: issued.buyer.as_str().to_owned(),
                token: issued.token,
                expires_at: from_ms(issued.expires_s.saturating_mul(1_000)),
            };
            Ok(answer::json(StatusCode::CREATED, &body))
        }
        Ok(None) => Err(Problem::with_detail(ProblemCode::Forbidden, "Anonymous buyers are switched off here.")),
        Err(error) => Err(Problem::internal(&error)),
    }
}
