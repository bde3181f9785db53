//! The sweep: looks at the deadline index every few milliseconds, in Redis alone (I7). Touches the keys that just came
//! due, so that Redis expires them at once and the bridge hears of it; claims what no bridge has claimed; and notices
//! that Redis has been lost or replaced. In a burst, when more is due than one look takes, it claims all of it by itself:
//! announcing each key to every bridge costs Redis more than the claim.

use std::time::Duration;

use domain::flow::Stores;
use domain::flow::warm_up::request_warm_up;
use domain::store::redis::RedisUnavailable;
use domain::store::redis::deadlines::SweepSpans;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::expiry_jobs::{is_backlogged, queue_expiries};

const TICK: Duration = Duration::from_millis(10);
/// How long the sweep leaves Redis alone after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(250);
/// Deadlines touched, and claimed, in one look.
const MOST: usize = 1_000;
/// A time that does not come: nothing is touched.
const NOTHING_IS_DUE_AFTER_MS: i64 = 1 << 52;
/// What is found in one look from which on the workers may not keep up.
const BURST: usize = 100;
/// How often the server is asked who it is, and a missing epoch complained of.
const LOOK_AT_SERVER: Duration = Duration::from_secs(1);

/// Runs the sweep until `shutdown`.
pub async fn run_sweep(stores: Stores, shutdown: CancellationToken) {
    let mut sweep = Sweep { stores, since_ms: 0, found: 0, run: None, looked: None };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        match sweep.look().await {
            // More is due: a burst does not wait for the next tick.
            Ok(Look::Full) => ticks.reset_immediately(),
            Ok(Look::Done) => {}
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the sweep cannot reach Redis");
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(AFTER_FAILURE) => {}
                }
            }
        }
    }
}

/// What a look left.
enum Look {
    /// Nothing.
    Done,
    /// As much as one look may take came due, and there may be more.
    Full,
}

struct Sweep {
    stores: Stores,
    since_ms: i64,
    /// What the last look found, or had to leave where it was.
    found: usize,
    /// The server's run when it was last looked at.
    run: Option<String>,
    looked: Option<Instant>,
}

impl Sweep {
    async fn look(&mut self) -> Result<Look, RedisUnavailable> {
        let timing = self.stores.timing;
        let is_backlogged = self.found >= BURST && is_backlogged(&self.stores).await.unwrap_or(true);
        let is_burst = self.found >= MOST;
        let spans = SweepSpans {
            since_ms: if is_burst { NOTHING_IS_DUE_AFTER_MS } else { self.since_ms },
            grace_ms: if is_burst { 0 } else { timing.sweep_grace_ms },
            lease_ms: timing.lease_ms,
            most: if is_backlogged { 0 } else { MOST },
        };
        let seen = self.stores.redis.sweep(spans).await?;
        self.stores.redis.touch_expired(&seen.due).await?;
        if !is_backlogged {
            self.since_ms = seen.looked_until_ms;
            self.found = seen.due.len().max(seen.claimed.len());
        }
        if let Err(error) = queue_expiries(&self.stores, &seen.claimed, "sweep").await {
            tracing::warn!(error = &error as &dyn std::error::Error, "expiries wait for their lease to run out");
        }
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AT_SERVER) {
            self.look_at_server(seen.epoch.is_none()).await?;
            self.looked = Some(Instant::now());
        }
        Ok(if self.found >= MOST && !is_backlogged { Look::Full } else { Look::Done })
    }

    async fn look_at_server(&mut self, is_lost: bool) -> Result<(), RedisUnavailable> {
        let run = self.stores.redis.server_run().await?;
        let is_other = self.run.is_some() && run != self.run;
        let asked = if is_lost {
            request_warm_up(&self.stores, "lost").await
        } else if is_other {
            request_warm_up(&self.stores, &format!("run-{}", run.as_deref().unwrap_or_default())).await
        } else {
            Ok(())
        };
        match asked {
            Ok(()) => self.run = run,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the warm-up is asked for again soon")
            }
        }
        Ok(())
    }
}
