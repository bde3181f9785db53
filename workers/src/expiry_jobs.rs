//! What bridge and sweep both do with deadlines that they have claimed: one path for both.

use domain::flow::Stores;
use domain::flow::expire_reservations::RESERVATIONS_PER_JOB_MAX;
use domain::queue::{JobId, NewJob, Queue, QueueError};
use domain::runtime::clock::new_uuid;
use domain::store::pg::outbox::JobKind;
use domain::store::redis::deadlines::ClaimedDeadline;
use serde_json::json;

/// Expire jobs that may wait before no more deadlines are claimed. What is claimed and not done when its lease runs out
/// is claimed again: more than the workers do in a lease would be queued twice, and the queue grow faster than they work.
const JOBS_WAITING_MAX: u64 = 64;

/// Whether the workers have as much to expire as they can do in a lease. What is not claimed meanwhile stays in the
/// index, where the sweep finds it.
///
/// # Errors
/// The queues' Redis failed.
pub async fn is_backlogged(stores: &Stores) -> Result<bool, QueueError> {
    Ok(stores.jobs.count_waiting(Queue::Expiries).await? >= JOBS_WAITING_MAX)
}

/// Queues the expiry of claimed reservations. Where this fails, the lease on them runs out and the sweep comes again.
///
/// # Errors
/// The queues' Redis failed.
pub async fn queue_expiries(stores: &Stores, claimed: &[ClaimedDeadline], by: &'static str) -> Result<(), QueueError> {
    if claimed.is_empty() {
        return Ok(());
    }
    metrics::counter!("holdfast_deadlines_claimed_total", "by" => by).increment(claimed.len() as u64);
    let job = |due: &[ClaimedDeadline]| {
        let id = JobId::new("expire", new_uuid());
        NewJob::new(Queue::Expiries, id, JobKind::ExpireReservations.name(), json!({ "due": due }))
    };
    let jobs: Vec<NewJob> = claimed.chunks(RESERVATIONS_PER_JOB_MAX).map(job).collect();
    stores.jobs.enqueue(&jobs).await?;
    Ok(())
}
