//! Where holds share commits: a fixed number of lanes, each running one transaction at a time. While all lanes are busy,
//! holds wait in one queue, and the lane that is free first takes all that wait into its next transaction. So a lone
//! hold waits for nobody, and under load the cost of a commit is shared by many.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::store::pg::holds::{HoldOutcome, NewHold};
use crate::store::pg::{Pg, PgError};

/// Holds that may wait; further ones are told to come back.
const WAITING_MAX: usize = 4_096;
/// Holds in one transaction.
const BATCH_MAX: usize = 64;

struct Waiting {
    hold: NewHold,
    answer: oneshot::Sender<Result<HoldOutcome, PlaceError>>,
}

/// Why a hold has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Too many holds wait, or Postgres cannot serve: nothing was changed.
    #[error("Postgres cannot take this hold now")]
    Unavailable,
    /// Postgres did not say whether it committed.
    #[error("Postgres did not say whether it committed the hold")]
    Unknown,
    /// A fault of ours.
    #[error("Postgres refused the hold")]
    Refused,
}

/// The lanes. Cheap to clone.
#[derive(Clone)]
pub struct HoldLanes(mpsc::Sender<Waiting>);

impl HoldLanes {
    /// Starts `lanes` of them; they end with the last handle.
    #[must_use]
    pub fn start(pg: Pg, lanes: u32) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..lanes {
            tokio::spawn(run_lane(pg.clone(), Arc::clone(&receiver)));
        }
        Self(sender)
    }

    /// Places a hold.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub async fn place(&self, hold: NewHold) -> Result<HoldOutcome, PlaceError> {
        let (answer, outcome) = oneshot::channel();
        self.0.try_send(Waiting { hold, answer }).map_err(|_| PlaceError::Unavailable)?;
        outcome.await.unwrap_or(Err(PlaceError::Unknown))
    }
}

async fn run_lane(pg: Pg, receiver: Arc<Mutex<mpsc::Receiver<Waiting>>>) {
    let mut waiting = Vec::with_capacity(BATCH_MAX);
    loop {
        if receiver.lock().await.recv_many(&mut waiting, BATCH_MAX).await == 0 {
            return;
        }
        while !waiting.is_empty() {
            let batch = take_disjoint(&mut waiting);
            metrics::histogram!("holdfast_hold_batch_size").record(f64::from(u32::try_from(batch.len()).unwrap_or(0)));
            place_batch(&pg, batch).await;
        }
    }
}

/// Takes the holds that do not get in each other's way; the others follow in the next transaction.
fn take_disjoint(waiting: &mut Vec<Waiting>) -> Vec<Waiting> {
    let mut batch: Vec<Waiting> = Vec::with_capacity(waiting.len());
    let mut later = Vec::new();
    for next in waiting.drain(..) {
        if batch.iter().any(|taken| taken.hold.collides_with(&next.hold)) {
            later.push(next);
        } else {
            batch.push(next);
        }
    }
    *waiting = later;
    batch
}

async fn place_batch(pg: &Pg, batch: Vec<Waiting>) {
    let (holds, answers): (Vec<_>, Vec<_>) = batch.into_iter().map(|waiting| (waiting.hold, waiting.answer)).unzip();
    match place_patiently(pg, &holds).await {
        Ok(outcomes) => {
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                let _buyer_gone = answer.send(Ok(outcome));
            }
        }
        Err(error) if holds.len() > 1 && is_of_one(&error) => {
            // One of them is at fault, or waits for a lock: alone, the others succeed.
            for (hold, answer) in holds.into_iter().zip(answers) {
                let outcome = place_patiently(pg, std::slice::from_ref(&hold)).await;
                let outcome = outcome.map_err(|error| place_error(&error));
                let outcome = outcome.and_then(|mut outcomes| outcomes.pop().ok_or(PlaceError::Refused));
                let _buyer_gone = answer.send(outcome);
            }
        }
        Err(error) => {
            let error = place_error(&error);
            for answer in answers {
                let _buyer_gone = answer.send(Err(error));
            }
        }
    }
}

fn is_of_one(error: &PgError) -> bool {
    match error {
        PgError::Unavailable(_) => error.is_lock_timeout(),
        PgError::CommitUnknown(_) => false,
        PgError::Contended(_) | PgError::Unreadable { .. } | PgError::Refused(_) => true,
    }
}

/// A deadlock or a serialisation failure changed nothing: the same again soon succeeds.
async fn place_patiently(pg: &Pg, holds: &[NewHold]) -> Result<Vec<HoldOutcome>, PgError> {
    const TRIES: u32 = 3;
    let mut tried = 1;
    loop {
        match pg.place_holds(holds).await {
            Err(PgError::Contended(_)) if tried < TRIES => tried += 1,
            other => return other,
        }
    }
}

fn place_error(error: &PgError) -> PlaceError {
    match error {
        PgError::Unavailable(source) | PgError::Contended(source) => {
            tracing::warn!(error = source as &dyn std::error::Error, "Postgres cannot take holds");
            PlaceError::Unavailable
        }
        PgError::CommitUnknown(source) => {
            tracing::warn!(error = source as &dyn std::error::Error, "the outcome of a commit is unknown");
            PlaceError::Unknown
        }
        PgError::Unreadable { .. } | PgError::Refused(_) => {
            tracing::error!(error = error as &dyn std::error::Error, "Postgres refused a hold");
            PlaceError::Refused
        }
    }
}
