//! What is still under way: a run is judged once nothing is.

use super::books::Books;

/// What the queues still hold, told by whoever can read them.
#[derive(Debug, Clone, Default)]
pub struct Queues {
    /// Jobs that are ready, delayed, retried or being worked on, as `3 ready in payments`.
    pub under_way: Vec<String>,
    /// Jobs that failed for good, with why.
    pub dead: Vec<String>,
}

/// What has not come to rest, in words.
#[must_use]
pub fn unsettled(books: &Books, queues: &Queues) -> Vec<String> {
    let mut left: Vec<String> = pending(books);
    left.extend(books.open_jobs.iter().map(|job| format!("the job {job} is open in the outbox")));
    left.extend(books.open_refunds.iter().cloned());
    left.extend(queues.under_way.iter().cloned());
    left.extend(books.differences.iter().cloned());
    left
}

/// Reservations that have not ended, though no client does anything any more.
pub(super) fn pending(books: &Books) -> Vec<String> {
    let open = books.reservations.values().filter(|row| row.status == "PENDING");
    let mut open: Vec<String> = open
        .map(|row| {
            let overdue = books.now_ms - row.expires_ms;
            let state = if row.committed_ms.is_some() { "committed" } else { "held" };
            format!("{} is PENDING ({state}), its deadline {overdue} ms ago", row.id)
        })
        .collect();
    open.sort();
    open
}
