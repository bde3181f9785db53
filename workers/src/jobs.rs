//! The jobs, one file each: load, flow, verdict.

pub mod expire_reservations;
pub mod finalize_payment;
pub mod open_event;
pub mod warm_up;

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use domain::store::pg::PgError;

use crate::outcome::JobError;

/// An error and its causes, in one line, for the dead list.
fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _infallible = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// The verdict on a failure of Postgres: its absence says nothing about the job.
fn pg_verdict(error: &PgError) -> JobError {
    match error {
        // One row's lock: no reason to let other jobs wait.
        error if error.is_lock_timeout() => JobError::later(Duration::from_secs(1), reasons(error)),
        PgError::Unavailable(_) => JobError::store_down(reasons(error)),
        PgError::CommitUnknown(_) | PgError::Contended(_) | PgError::Refused(_) => JobError::retry(reasons(error)),
        PgError::Unreadable { .. } => JobError::never(reasons(error)),
    }
}
