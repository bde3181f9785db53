//! The audit: compares Postgres, Redis, the queues and the provider's records on a running installation, and tells drift
//! from motion. It writes nothing; [`repair()`] calls the flows that every repair goes through.
//!
//! What Postgres says of itself is read in one snapshot for each page, so a contradiction there is one. Between the
//! stores nothing is ever equal under load: a change is committed first and shown then. So a difference between them is a
//! doubt at first. It is looked at again, later and later, and is a finding only once it has stood still on both sides
//! for longer than anything that is under way takes. What a mark in the deadline index, an open row or a warm-up will
//! set right is drift; what nothing explains is broken.
//!
//! Memory stays the same however large the installation is: pages by key, one event after the other, the seat map of one
//! venue at a time, bounded lists of doubts and findings.

mod deadlines;
mod doubt;
pub mod finding;
mod jobs;
mod money;
mod picture;
pub mod repair;
mod report;
mod rows;

use std::sync::Arc;
use std::time::Duration;

use crate::event::{Event, EventStatus};
use crate::id::{EventId, VenueId};
use crate::queue::QueueError;
use crate::seat_map::SeatMap;
use crate::store::pg::PgError;
use crate::store::redis::RedisUnavailable;
use crate::time::to_ms;

use super::Stores;
use super::finalize_payment::Gateways;
use doubt::Doubts;
use finding::{Finding, FindingCode, Place, Repair};
pub use repair::{Repaired, repair};
pub use report::{AuditReport, LookedAt, Verdict};

/// What is audited, and how gently.
#[derive(Debug, Clone)]
pub struct AuditPlan {
    /// This event only.
    pub event: Option<EventId>,
    /// Rows, or seats, in one page.
    pub page: i64,
    /// The pause after each page.
    pub pace: Duration,
    /// How long a difference must stand still before it is a finding.
    pub patience: Duration,
    /// Payments that ended longer ago than this are not asked about at the provider; none = all are.
    pub payments_since: Option<Duration>,
    /// Findings that are kept; more are only counted.
    pub findings_max: usize,
}

impl Default for AuditPlan {
    fn default() -> Self {
        Self {
            event: None,
            page: 500,
            pace: Duration::ZERO,
            // Longer than a gate and a lease: by then whatever died has been taken over.
            patience: Duration::from_secs(12),
            payments_since: Some(Duration::from_secs(86_400)),
            findings_max: 1_000,
        }
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// There is no such event.
    #[error("there is no event {0}")]
    NotFound(EventId),
    /// Postgres failed: without it nothing can be compared.
    #[error(transparent)]
    Pg(#[from] PgError),
}

/// Why a part could not be looked at.
#[derive(Debug, thiserror::Error)]
enum Gap {
    #[error(transparent)]
    Pg(#[from] PgError),
    #[error(transparent)]
    Redis(#[from] RedisUnavailable),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Told what is being looked at, and how much has been.
pub type Watch<'a> = &'a (dyn Fn(&str, &LookedAt) + Send + Sync);

/// Audits an installation.
///
/// # Errors
/// [`AuditError`]. A Redis or a provider that is away is no error: the report says what could not be looked at.
pub async fn audit(
    stores: &Stores,
    gateways: &Gateways,
    plan: &AuditPlan,
    watch: Watch<'_>,
) -> Result<AuditReport, AuditError> {
    let mut audit = Audit {
        stores,
        gateways,
        plan,
        watch,
        report: AuditReport::new(plan.findings_max),
        doubts: Doubts::default(),
        map: None,
        redis: RedisState::Filled,
        has_live: false,
    };
    audit.look_at_redis().await?;
    audit.events().await?;
    audit.installation().await?;
    audit.settle(None).await?;
    audit.say_if_lost();
    audit.report.finish();
    Ok(audit.report)
}

/// What can be expected of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RedisState {
    /// Everything.
    Filled,
    /// Everything, once the warm-up that is under way has looked at it.
    WarmingUp,
    /// It was lost, and nobody has filled it yet: there is nothing to compare.
    Lost,
    /// It does not answer.
    Away,
}

struct Audit<'a> {
    stores: &'a Stores,
    gateways: &'a Gateways,
    plan: &'a AuditPlan,
    watch: Watch<'a>,
    report: AuditReport,
    doubts: Doubts,
    map: Option<(VenueId, Arc<SeatMap>)>,
    redis: RedisState,
    /// Whether anything that Redis must show or time was seen.
    has_live: bool,
}

impl Audit<'_> {
    /// A Redis that was lost a moment ago is filled a moment later: that is waited for.
    async fn look_at_redis(&mut self) -> Result<(), AuditError> {
        const LOOK_EVERY: Duration = Duration::from_millis(200);
        let began = std::time::Instant::now();
        let is_needed = !self.stores.pg.events_in_redis().await?.is_empty();
        loop {
            match self.read_redis_state().await {
                Ok(state) => self.redis = state,
                Err(error) => self.skip(&Gap::Redis(error)),
            }
            if self.redis != RedisState::Lost || !is_needed || began.elapsed() >= self.plan.patience {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY.min(self.plan.patience)).await;
        }
    }

    async fn read_redis_state(&self) -> Result<RedisState, RedisUnavailable> {
        let epoch = self.stores.redis.epoch().await?;
        let is_warming_up = self.stores.redis.is_warming_up().await?;
        Ok(match (epoch, is_warming_up) {
            (None, _) => RedisState::Lost,
            (Some(_), true) => RedisState::WarmingUp,
            (Some(_), false) => RedisState::Filled,
        })
    }

    /// What is under way may have begun, or ended, since the last look.
    async fn look_at_redis_again(&mut self) -> Result<(), Gap> {
        if self.compares_redis() {
            self.redis = self.read_redis_state().await?;
        }
        Ok(())
    }

    /// Notes what could not be looked at.
    fn skip(&mut self, gap: &Gap) {
        let error = gap as &dyn std::error::Error;
        tracing::debug!(error, "the audit leaves a part out");
        match gap {
            Gap::Redis(_) => {
                self.redis = RedisState::Away;
                self.report.skip("Redis does not answer: buckets, lists and deadlines were not looked at");
            }
            Gap::Queue(_) => self.report.skip("the queues' Redis does not answer: jobs were not looked at"),
            Gap::Pg(_) => self.report.skip("Postgres did not answer everything"),
        }
    }

    /// Goes on without a store that is away; Postgres must be there.
    fn go_on(&mut self, part: Result<(), Gap>) -> Result<(), AuditError> {
        match part {
            Ok(()) => Ok(()),
            Err(Gap::Pg(error)) => Err(error.into()),
            Err(gap) => {
                self.skip(&gap);
                Ok(())
            }
        }
    }

    async fn events(&mut self) -> Result<(), AuditError> {
        const EVENTS_PER_PAGE: i64 = 50;
        if let Some(id) = self.plan.event {
            let event = self.stores.pg.find_event(id).await?.ok_or(AuditError::NotFound(id))?;
            return self.event(&event).await;
        }
        let mut after = None;
        loop {
            let events = self.stores.pg.list_events(after, EVENTS_PER_PAGE).await?;
            let Some(last) = events.last() else { return Ok(()) };
            after = Some(last.id);
            for event in &events {
                self.event(event).await?;
            }
        }
    }

    async fn event(&mut self, event: &Event) -> Result<(), AuditError> {
        self.report.looked_at.events += 1;
        self.reservations(event).await?;
        self.claims(event).await?;
        self.payments(event).await?;
        self.has_live |= self.is_shown(event).await?;
        if self.compares_redis() && self.is_shown(event).await? {
            let part = self.picture(event).await;
            self.go_on(part)?;
        }
        Ok(())
    }

    async fn installation(&mut self) -> Result<(), AuditError> {
        self.answers().await?;
        if self.compares_redis() && self.plan.event.is_none() {
            let part = self.index().await;
            self.go_on(part)?;
        }
        let part = self.jobs().await;
        self.go_on(part)
    }

    /// Whether Redis has something to compare with.
    fn compares_redis(&self) -> bool {
        matches!(self.redis, RedisState::Filled | RedisState::WarmingUp)
    }

    /// Whether Redis must show an event: on sale, or closed and not a day over. While it is prepared its buckets come
    /// one after the other.
    async fn is_shown(&self, event: &Event) -> Result<bool, PgError> {
        const DAY_MS: i64 = 86_400_000;
        Ok(match event.status {
            EventStatus::OnSale => true,
            EventStatus::Closed => {
                // Never opened: there is nothing to show.
                event.blocks_prepared > 0 && to_ms(event.starts_at.at) > to_ms(self.stores.pg.now().await?) - DAY_MS
            }
            EventStatus::Draft | EventStatus::Preparing | EventStatus::Cancelled => false,
        })
    }

    /// After each page: says how far it is, and lets others go first.
    async fn breathe(&self, what: &str) {
        (self.watch)(what, &self.report.looked_at);
        if self.plan.pace > Duration::ZERO {
            tokio::time::sleep(self.plan.pace).await;
        }
    }

    fn say_if_lost(&mut self) {
        if self.redis == RedisState::Lost && self.has_live {
            let detail = "this Redis has no epoch: it was lost, and no warm-up has filled it since";
            let finding = Finding::new(FindingCode::RedisLost, Place::default(), detail).repair(Repair::WarmUp);
            self.report.add(finding);
        }
    }
}

impl RedisState {
    /// Why a difference will go by itself, if this is why.
    fn explanation(self) -> Option<&'static str> {
        match self {
            Self::WarmingUp => Some("a warm-up is under way"),
            Self::Lost => Some("this Redis was lost, and a warm-up will fill it"),
            Self::Filled | Self::Away => None,
        }
    }
}
