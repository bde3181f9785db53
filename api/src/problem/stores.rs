//! Failures of the stores, as the outside sees them.

use domain::flow::hold_lanes::PlaceError;
use domain::store::pg::PgError;

use super::{Problem, ProblemCode};

impl From<PgError> for Problem {
    fn from(error: PgError) -> Self {
        Self::from(&error)
    }
}

impl From<&PgError> for Problem {
    /// Whatever is Postgres's trouble is 503 and worth a repeat; whatever is ours is 500. An unknown commit is said to
    /// be one: the repeat with the same key tells.
    fn from(error: &PgError) -> Self {
        match error {
            PgError::Unavailable(_) | PgError::Contended(_) => {
                tracing::warn!(error = error as &dyn std::error::Error, "Postgres cannot serve a request");
                Self::degraded()
            }
            PgError::CommitUnknown(_) => {
                tracing::warn!(error = error as &dyn std::error::Error, "a commit's outcome is unknown");
                Self::new(ProblemCode::TimedOut).retry_after_s(1)
            }
            PgError::Unreadable { .. } | PgError::Refused(_) => Self::internal(error),
        }
    }
}

impl From<PlaceError> for Problem {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Unavailable => Self::degraded(),
            PlaceError::Unknown => Self::new(ProblemCode::TimedOut).retry_after_s(1),
            PlaceError::Refused => Self::internal(&error),
        }
    }
}
