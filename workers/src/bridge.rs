//! The bridge: turns expired keys into jobs. One in every worker process; an expiry that all of them hear is claimed by
//! one. What it hears is a hint: what it misses the sweep catches.

use std::time::Duration;

use domain::flow::Stores;
use domain::flow::warm_up::request_warm_up;
use domain::store::redis::RedisUnavailable;
use tokio_util::sync::CancellationToken;

use crate::expiry_jobs::{is_backlogged, queue_expiries};

const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Expiries heard at once from which on the workers may not keep up.
const BURST: usize = 100;
/// Bridges that reconnect within so many ms ask for one warm-up together.
const GAP_WINDOW_MS: i64 = 5_000;

/// Runs the bridge until `shutdown`.
pub async fn run_bridge(stores: Stores, configure: bool, shutdown: CancellationToken) {
    let mut delay = RETRY_MIN;
    let mut subscriptions = 0_u64;
    let mut warned = Vec::new();
    loop {
        let listening = listen(&stores, configure, &mut subscriptions, &mut warned);
        tokio::select! {
            () = shutdown.cancelled() => return,
            lost = listening => match lost {
                Ok(()) => delay = RETRY_MIN,
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "the bridge cannot subscribe");
                    delay = (delay * 2).min(RETRY_MAX);
                }
            },
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

/// Listens until the connection is lost. A restarted server has lost both its settings and the subscription, so both are
/// made anew each time.
async fn listen(
    stores: &Stores,
    configure: bool,
    subscriptions: &mut u64,
    warned: &mut Vec<String>,
) -> Result<(), RedisUnavailable> {
    let check = stores.redis.check_server(configure).await?;
    if check.warnings != *warned {
        for warning in &check.warnings {
            tracing::warn!("{warning}");
        }
        *warned = check.warnings;
    }
    metrics::gauge!("holdfast_bridge_notifications").set(if check.announces_expiries { 1.0 } else { 0.0 });
    let mut listener = stores.redis.listen_for_expiries().await?;
    *subscriptions += 1;
    metrics::counter!("holdfast_bridge_subscriptions_total").increment(1);
    if *subscriptions > 1 {
        // What expired meanwhile is in the deadline index, which the sweep reads anyway; what Redis may have lost is not.
        let window = domain::runtime::clock::system_ms() / GAP_WINDOW_MS;
        if let Err(error) = request_warm_up(stores, &format!("gap-{window}")).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the warm-up could not be asked for");
        }
    }
    while let Some(heard) = listener.next_batch().await {
        if heard.len() >= BURST && is_backlogged(stores).await.unwrap_or(true) {
            continue;
        }
        let claimed = match stores.redis.claim_deadlines(&heard, stores.timing.lease_ms).await {
            Ok((_, claimed)) => claimed,
            // Unclaimed: the sweep takes them.
            Err(_) => continue,
        };
        if let Err(error) = queue_expiries(stores, &claimed, "bridge").await {
            tracing::warn!(error = &error as &dyn std::error::Error, "expiries wait for their lease to run out");
        }
    }
    tracing::warn!("the bridge lost its connection");
    Ok(())
}
