//! Keeps the queues moving and small in every worker process.

use std::time::Duration;

use domain::queue::{QueueError, QueueRedis, Retention, promote_due, trim_history};
use tokio_util::sync::CancellationToken;

use super::handling::error_chain;

/// What a delayed job that was enqueued by another process may be late, at most.
const PROMOTE_INTERVAL: Duration = Duration::from_millis(100);
/// Even a dense schedule costs at most 200 calls a second.
const PROMOTE_INTERVAL_MIN: Duration = Duration::from_millis(5);
const TRIM_INTERVAL: Duration = Duration::from_secs(2);
/// Between two slices of a long history: other clients come first.
const TRIM_SLICE_PAUSE: Duration = Duration::from_millis(10);
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// Promotes due jobs and trims history of all queues until `shutdown`. Any number of processes may do so at once.
pub async fn tend_queues(redis: QueueRedis, retention: Retention, shutdown: CancellationToken) {
    let tending = async { tokio::join!(promote(&redis), trim(&redis, &retention)) };
    tokio::select! {
        _ = tending => {}
        () = shutdown.cancelled() => {}
    }
}

async fn promote(redis: &QueueRedis) {
    let mut away = false;
    loop {
        let round = promote_due(redis).await;
        let pause = match &round {
            Ok(promoted) if promoted.more => Duration::ZERO,
            Ok(promoted) => promoted.next_due.unwrap_or(PROMOTE_INTERVAL).clamp(PROMOTE_INTERVAL_MIN, PROMOTE_INTERVAL),
            Err(_) => AWAY_PAUSE,
        };
        say_once(&mut away, "promote", &round);
        tokio::time::sleep(pause).await;
    }
}

async fn trim(redis: &QueueRedis, retention: &Retention) {
    let mut away = false;
    loop {
        let round = trim_history(redis, retention).await;
        let pause = match &round {
            Ok(0) => TRIM_INTERVAL,
            Ok(_removed) => TRIM_SLICE_PAUSE,
            Err(_) => TRIM_INTERVAL,
        };
        say_once(&mut away, "trim", &round);
        tokio::time::sleep(pause).await;
    }
}

/// One line when Redis goes and one when it is back, not one per round.
fn say_once<T>(away: &mut bool, what: &'static str, round: &Result<T, QueueError>) {
    match round {
        Err(error) if !*away => {
            tracing::warn!(what, error = %error_chain(error), "the queues' Redis does not answer; tending waits");
            *away = true;
        }
        Ok(_) if *away => {
            tracing::info!(what, "the queues' Redis answers again");
            *away = false;
        }
        Ok(_) | Err(_) => {}
    }
}
