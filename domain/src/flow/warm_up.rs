//! Warming up: rebuilds Redis from Postgres, page by page, while everything else goes on. Safe to run twice, by two
//! workers, and to break off anywhere: what it writes is what Postgres says, by compare-and-set.
//!
//! First the deadlines, so that nothing lives too long; then the jobs of open outbox rows; then the picture. The epoch
//! is set last: until then the sweep of any worker asks for another warm-up.
//!
//! How far it is stands in Redis, for the readiness of every process, in the log, and in gauges. It needs little memory:
//! a page of rows, and the seat map of one event at a time.

use std::fmt;
use std::time::{Duration, Instant as Monotonic};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::id::ReservationId;
use crate::queue::{JobId, NewJob, Queue, QueueError};
use crate::runtime::clock::new_uuid;
use crate::store::pg::PgError;
use crate::store::pg::outbox::{JobKind, OutboxRow};
use crate::store::redis::RedisUnavailable;
use crate::time::to_ms;

use super::read_block::{HealBlockError, rebuild_block};
use super::{FaultPoint, Stores};

/// Rows in one page.
const PAGE: i64 = 1_000;
/// How long the right to warm up lasts unless it is renewed, ms: longer than any one step.
const LEASE_MS: i64 = 15_000;

/// How often the log is told how far a warm-up is.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// What a warm-up has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WarmUpReport {
    /// Deadlines registered.
    pub deadlines: u64,
    /// Jobs that were not queued any more.
    pub jobs: u64,
    /// Events whose blocks are all done.
    pub events: u64,
    /// Events to do; 0 until it comes to the blocks.
    pub events_all: u64,
    /// Blocks looked at.
    pub blocks: u64,
    /// Buckets written.
    pub buckets: u64,
}

impl fmt::Display for WarmUpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deadlines, jobs, events, events_all, blocks, buckets } = self;
        write!(f, "{deadlines} deadlines, {jobs} jobs")?;
        if *events_all > 0 {
            write!(f, ", {events} of {events_all} events ({blocks} blocks, {buckets} buckets)")?;
        }
        Ok(())
    }
}

/// Why a warm-up broke off: it begins again.
#[derive(Debug, thiserror::Error)]
pub enum WarmUpError {
    /// Another worker is at it, or Redis was lost again.
    #[error("another worker is warming up, or Redis was lost meanwhile")]
    Elsewhere,
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
    /// Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisUnavailable),
    /// The queues' Redis failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A block failed.
    #[error(transparent)]
    Heal(#[from] HealBlockError),
}

/// Rebuilds Redis from Postgres.
///
/// # Errors
/// [`WarmUpError`].
pub async fn warm_up(stores: &Stores) -> Result<WarmUpReport, WarmUpError> {
    let holder = new_uuid().to_string();
    if !stores.redis.lease_warm_up(&holder, LEASE_MS).await? {
        return Err(WarmUpError::Elsewhere);
    }
    let mut run = WarmUp { stores, holder: &holder, said: Monotonic::now() };
    let result = run.run().await;
    metrics::gauge!("holdfast_warm_up_running").set(0.0);
    let _lapses = stores.redis.release_warm_up(&holder).await;
    result
}

/// Asks for a warm-up. Requests with the same `why` are one job while Redis remembers it.
///
/// # Errors
/// The queues' Redis failed.
pub async fn request_warm_up(stores: &Stores, why: &str) -> Result<(), QueueError> {
    let text: String = why.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(80).collect();
    let Ok(id) = JobId::parse(&format!("warm-up-{text}")) else { return Ok(()) };
    tracing::info!(why, "asking for a warm-up");
    let job = NewJob::new(Queue::WarmUp, id, JobKind::WarmUp.name(), json!({ "why": why })).again_after_done();
    stores.jobs.enqueue(&[job]).await?;
    Ok(())
}

/// Asks for a warm-up when a process starts: whoever died may have made changes that it could not show in Redis, and
/// with it went the knowledge of that. Asks again until Redis is there. Processes that start with the same `name` share
/// the warm-up that waits.
pub async fn warm_up_at_start(stores: Stores, name: String, shutdown: CancellationToken) {
    const ASK_AGAIN: Duration = Duration::from_secs(1);
    while let Err(error) = request_warm_up(&stores, &format!("start-{name}")).await {
        tracing::warn!(error = &error as &dyn std::error::Error, "the warm-up at start waits for Redis");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
    }
}

/// Asks for a warm-up whenever this process has made changes that it could not show in Redis, once Redis is back. Runs
/// until `shutdown`.
pub async fn repair_missed(stores: Stores, shutdown: CancellationToken) {
    const LOOK_EVERY: Duration = Duration::from_secs(1);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        repair_if_missed(&stores).await;
    }
}

/// One look of [`repair_missed`]. True where a warm-up was asked for; false where none is due, or Redis is not back.
pub async fn repair_if_missed(stores: &Stores) -> bool {
    if !stores.take_redis_missed() {
        return false;
    }
    let is_back = stores.redis.probe().await.is_ok();
    let is_asked = is_back && request_warm_up(stores, &format!("missed-{}", new_uuid())).await.is_ok();
    if !is_asked {
        stores.note_redis_missed();
    }
    is_asked
}

struct WarmUp<'a> {
    stores: &'a Stores,
    holder: &'a str,
    /// When the log was last told how far it is.
    said: Monotonic,
}

impl WarmUp<'_> {
    async fn run(&mut self) -> Result<WarmUpReport, WarmUpError> {
        let mut report = WarmUpReport::default();
        self.register_deadlines(&mut report).await?;
        self.push_jobs(&mut report).await?;
        self.rebuild_blocks(&mut report).await?;
        if !self.stores.redis.set_epoch(self.holder).await? {
            return Err(WarmUpError::Elsewhere);
        }
        tracing::info!(done = %report, "Redis shows what Postgres has");
        Ok(report)
    }

    /// Each step renews the right to go on; whoever lost it stops, since another has begun, or Redis was lost again with
    /// all that this one had written.
    async fn renew(&mut self, report: &WarmUpReport) -> Result<(), WarmUpError> {
        self.stores.faults.pass(FaultPoint::WarmUpHalfDone).await;
        if self.said.elapsed() >= SAY_EVERY {
            tracing::info!(done = %report, "warming up");
            self.said = Monotonic::now();
        }
        record(report);
        let progress = report.to_string();
        let goes_on = self.stores.redis.renew_warm_up(self.holder, LEASE_MS, &progress).await?;
        if goes_on { Ok(()) } else { Err(WarmUpError::Elsewhere) }
    }

    async fn register_deadlines(&mut self, report: &mut WarmUpReport) -> Result<(), WarmUpError> {
        let mut after = None;
        loop {
            let (pending, next) = self.stores.pg.pending_page(after, PAGE).await?;
            let mut deadlines: Vec<(ReservationId, i64)> =
                pending.iter().map(|pending| (pending.reservation, to_ms(pending.expires_at))).collect();
            deadlines.sort_unstable();
            deadlines.dedup();
            self.stores.faults.pass(FaultPoint::WarmUpPageRead).await;
            // Those that are overdue already come due for the sweep at once. Nothing is put off: a gate whose process died
            // after its commit is passed over by the blocks' rebuilding, and has only its early entry.
            self.stores.redis.register_deadlines_at_the_latest(&deadlines).await?;
            report.deadlines += u64::try_from(deadlines.len()).unwrap_or(0);
            self.renew(report).await?;
            after = next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn push_jobs(&mut self, report: &mut WarmUpReport) -> Result<(), WarmUpError> {
        let mut after = None;
        loop {
            let rows = self.stores.pg.outbox_page(after, PAGE).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some((last.event, last.id));
            let jobs: Vec<_> = rows.iter().map(OutboxRow::job).collect();
            report.jobs += self.stores.jobs.enqueue(&jobs).await?.added;
            self.renew(report).await?;
        }
    }

    async fn rebuild_blocks(&mut self, report: &mut WarmUpReport) -> Result<(), WarmUpError> {
        let events = self.stores.pg.events_in_redis().await?;
        report.events_all = u64::try_from(events.len()).unwrap_or(0);
        for event in events {
            if let Some(sheet) = self.stores.book.sheet_in_passing(event.id).await? {
                for block in sheet.map.blocks() {
                    report.buckets += rebuild_block(self.stores, &sheet, block).await?;
                    report.blocks += 1;
                    self.renew(report).await?;
                }
            }
            report.events += 1;
        }
        Ok(())
    }
}

fn record(report: &WarmUpReport) {
    let count = |count: u64| u32::try_from(count).map_or(f64::MAX, f64::from);
    metrics::gauge!("holdfast_warm_up_running").set(1.0);
    metrics::gauge!("holdfast_warm_up_deadlines").set(count(report.deadlines));
    metrics::gauge!("holdfast_warm_up_jobs").set(count(report.jobs));
    metrics::gauge!("holdfast_warm_up_blocks").set(count(report.blocks));
    metrics::gauge!("holdfast_warm_up_events_left").set(count(report.events_all.saturating_sub(report.events)));
}
