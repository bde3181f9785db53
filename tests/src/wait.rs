//! Waiting for a condition.

use std::time::{Duration, Instant};

/// How long a test waits for what should take a moment: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again until `look` finds something, for at most [`PATIENCE`].
///
/// # Panics
/// With `what`, when nothing was found.
pub async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, look).await
}

/// [`until`] with a limit that is part of the expected result.
///
/// # Panics
/// With `what`, when nothing was found.
pub async fn until_within<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < limit, "waited {limit:?} for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
