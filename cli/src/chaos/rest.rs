//! Waiting for the end: when nobody could tidy up, and when everything has come to rest.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use domain::flow::Stores as EngineStores;
use domain::flow::audit::{AuditPlan, audit};
use domain::queue::{Queue, list_dead, queue_stats};
use domain::runtime::clock::{Clock, system_ms};
use domain::runtime::settings::StoreSettings;
use simulation::chaos::books::{Books, Stores};
use simulation::chaos::history::Span;
use simulation::chaos::rest::{Queues, unsettled};
use simulation::chaos::verdict::Check;
use tokio_util::sync::CancellationToken;

use super::house::House;
use super::record::locked;
use crate::output::tell;

/// For so long after an outage what looks held is excused.
const GRACE_MS: i64 = 1_000;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Dead jobs that are read.
const DEAD_MAX: usize = 200;

/// From one look for ended processes to the next.
const TEND_EVERY: Duration = Duration::from_millis(500);

/// When no worker, no API process or not both stores could be reached.
#[derive(Debug, Default)]
pub struct Outages(Mutex<Vec<Span>>);

/// Starts processes again that ended though nobody killed them, until told to stop; tells which.
///
/// # Errors
/// One cannot be started.
pub async fn tend(house: Arc<House>, stop: CancellationToken) -> Result<Vec<String>> {
    let mut ended = Vec::new();
    while !stop.is_cancelled() {
        for member in &house.members {
            if let Some(how) = member.tend()? {
                tell(&format!("          {how}, and is started again"));
                ended.push(how);
            }
        }
        tokio::time::sleep(TEND_EVERY).await;
    }
    Ok(ended)
}

impl Outages {
    /// Watches until told to stop.
    pub async fn watch(self: Arc<Self>, house: Arc<House>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if !house.can_tidy() {
                self.note(system_ms());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn note(&self, now_ms: i64) {
        let mut spans = locked(&self.0);
        let until_ms = now_ms + GRACE_MS;
        match spans.last_mut() {
            Some(last) if last.until_ms >= now_ms => last.until_ms = until_ms,
            _ => spans.push(Span { from_ms: now_ms - i64::try_from(LOOK_EVERY.as_millis()).unwrap_or(0), until_ms }),
        }
    }

    /// All of them, the grace included.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        locked(&self.0).clone()
    }

    /// All of them, counted from when the load began.
    #[must_use]
    pub fn since(&self, began_ms: i64) -> Vec<Span> {
        let spans = self.spans().into_iter();
        spans.map(|span| Span { from_ms: span.from_ms - began_ms, until_ms: span.until_ms - began_ms }).collect()
    }
}

/// How everything stands at the end.
#[derive(Debug)]
pub struct Rest {
    /// What the stores say.
    pub books: Books,
    /// What the queues hold.
    pub queues: Queues,
    /// After how many ms nothing was under way any more; none where the limit came first.
    pub after_ms: Option<i64>,
}

/// Waits until nothing is under way, and reads the books then.
///
/// # Errors
/// A store does not answer, though nothing is broken any more.
pub async fn come_to_rest(house: &House, stores: &Stores, limit: Duration) -> Result<Rest> {
    let engine = EngineStores::connect(&settings(house), Clock::default())?;
    let begun = Instant::now();
    let mut told_at = begun;
    loop {
        let (books, queues) = (stores.read().await?, read_queues(&engine).await?);
        let left = unsettled(&books, &queues);
        if left.is_empty() {
            return Ok(Rest { books, queues, after_ms: Some(i64::try_from(begun.elapsed().as_millis())?) });
        }
        if begun.elapsed() > limit {
            return Ok(Rest { books, queues, after_ms: None });
        }
        if told_at.elapsed() > Duration::from_secs(5) {
            told_at = Instant::now();
            tell(&format!("          {} under way, such as: {}", left.len(), left.first().map_or("", String::as_str)));
        }
        tokio::time::sleep(LOOK_EVERY * 4).await;
    }
}

/// What the operators' own audit says, which looks at more than the verdict does, with the engine's eyes.
///
/// # Errors
/// It cannot look.
pub async fn operators_audit(house: &House) -> Result<Check> {
    let engine = EngineStores::connect(&settings(house), Clock::default())?;
    let gateways = workers::gateways(&engine);
    let report = audit(&engine, &gateways, &AuditPlan::default(), &|_, _| {}).await?;
    let found = report.findings.iter().map(|finding| format!("{}: {}", finding.code.as_str(), finding.detail));
    Ok(Check {
        rule: "holdfast audit agrees",
        invariant: "all",
        looked_at: usize::try_from(report.looked_at.seats)?,
        of: "seats, and all that belongs to them",
        findings: found.chain(report.skipped.iter().map(|what| format!("could not look: {what}"))).collect(),
    })
}

async fn read_queues(engine: &EngineStores) -> Result<Queues> {
    let mut queues = Queues::default();
    let redis = engine.jobs.redis();
    for stats in queue_stats(redis).await? {
        let states = [
            ("ready", stats.ready),
            ("delayed", stats.delayed),
            ("waiting for another attempt", stats.retrying),
            ("being worked on", stats.in_flight),
        ];
        let some = states.into_iter().filter(|(_, count)| *count > 0);
        queues.under_way.extend(some.map(|(state, count)| format!("{count} {state} in {}", stats.queue)));
    }
    for queue in Queue::ALL {
        let page = list_dead(redis, queue, 0, DEAD_MAX).await?;
        queues.dead.extend(page.jobs.iter().map(|job| {
            let reason = job.reason.as_deref().unwrap_or("it does not say why");
            format!("{} in {queue} after {} starts: {reason}", job.id, job.starts)
        }));
    }
    Ok(queues)
}

fn settings(house: &House) -> StoreSettings {
    StoreSettings {
        database_url: house.database_url().to_owned(),
        redis_url: house.redis_url().to_owned(),
        queue_redis_url: None,
        redis_prefix: String::new(),
        redis_cluster_tags: false,
        redis_configure: false,
        pg_connections: 2,
        hold_lanes: 1,
        pg_statement_ms: 4_000,
    }
}
