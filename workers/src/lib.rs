//! Holdfast's workers: the queues' jobs, and beside them, in every worker process, the bridge and the sweep.

pub mod bridge;
pub mod expiry_jobs;
pub mod gateway;
pub mod jobs;
pub mod outcome;
pub mod supervisor;
pub mod sweep;

use std::sync::Arc;
use std::time::Duration;

use domain::flow::Stores;
use domain::flow::finalize_payment::Gateways;
use domain::flow::warm_up::{repair_missed, warm_up_at_start};
use domain::queue::{Queue, Retention, queue_stats, record_queue_gauges};
use domain::runtime::clock::new_uuid;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use gateway::fake::FakeGateway;
use jobs::expire_reservations::ExpireReservations;
use jobs::finalize_payment::FinalizePayment;
use jobs::open_event::OpenEvent;
use jobs::warm_up::WarmUp;
use outcome::JobHandler;
use supervisor::{QueuePolicy, run_queue, tend_queues};

/// Idempotency keys forgotten in one statement.
const KEYS_FORGOTTEN_MAX: i64 = 10_000;
const FORGET_EVERY: Duration = Duration::from_secs(3_600);
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// How a worker process runs.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// The queues it serves.
    pub queues: Vec<Queue>,
    /// Whether it may set what it needs in Redis's configuration.
    pub configure_redis: bool,
}

/// The payment providers of an installation.
#[must_use]
pub fn gateways(stores: &Stores) -> Gateways {
    Gateways { fake: Arc::new(FakeGateway::new(stores.pg.clone())) }
}

/// The one registration list: who runs which queue's jobs.
fn handlers(stores: &Stores, queue: Queue) -> Vec<Arc<dyn JobHandler>> {
    let stores = stores.clone();
    match queue {
        Queue::Payments => {
            let gateways = gateways(&stores);
            vec![Arc::new(FinalizePayment { stores, gateways })]
        }
        Queue::Expiries => vec![Arc::new(ExpireReservations { stores })],
        Queue::Events => vec![Arc::new(OpenEvent { stores })],
        Queue::WarmUp => vec![Arc::new(WarmUp { stores })],
    }
}

/// Runs a worker process until `shutdown`: takes no more work then, finishes what runs within a limit, gives the rest
/// back.
pub async fn run(stores: Stores, settings: WorkerSettings, shutdown: CancellationToken) {
    let process = process_name();
    let redis = stores.jobs.redis().clone();
    // The bridge and the sweep stop first: they cause work. The tending stops last: it moves what is given back.
    let tending = CancellationToken::new();
    let mut helpers = JoinSet::new();
    helpers.spawn(bridge::run_bridge(stores.clone(), settings.configure_redis, shutdown.clone()));
    helpers.spawn(sweep::run_sweep(stores.clone(), shutdown.clone()));
    helpers.spawn(repair_missed(stores.clone(), shutdown.clone()));
    helpers.spawn(forget_old_keys(stores.clone(), shutdown.clone()));
    helpers.spawn(record_gauges(stores.clone(), shutdown.clone()));
    helpers.spawn(warm_up_at_start(stores.clone(), process.clone(), shutdown.clone()));
    helpers.spawn(tend_queues(redis.clone(), Retention::default(), tending.clone()));
    let mut queues = JoinSet::new();
    for queue in settings.queues {
        let (redis, process, shutdown) = (redis.clone(), process.clone(), shutdown.clone());
        let handlers = handlers(&stores, queue);
        queues.spawn(async move {
            let report = run_queue(redis, queue, handlers, QueuePolicy::of(queue), &process, shutdown).await;
            tracing::info!(%queue, given_back = report.given_back, forced = report.forced, "the queue's worker stopped");
        });
    }
    while let Some(ended) = queues.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a queue's supervisor died");
        }
    }
    tending.cancel();
    while helpers.join_next().await.is_some() {}
}

/// Unique for each start of a process: a namesake's heartbeat would keep a dead one's jobs.
fn process_name() -> String {
    let random = new_uuid().simple().to_string();
    format!("{}-{}", std::process::id(), &random[20..])
}

async fn forget_old_keys(stores: Stores, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(FORGET_EVERY) => {}
        }
        while let Ok(KEYS_FORGOTTEN_MAX..) = stores.pg.forget_old_keys(KEYS_FORGOTTEN_MAX).await.map(u64::cast_signed) {
        }
    }
}

async fn record_gauges(stores: Stores, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(GAUGES_EVERY) => {}
        }
        if let Ok(stats) = queue_stats(stores.jobs.redis()).await {
            record_queue_gauges(&stats);
        }
        if let Ok((all, late)) = stores.redis.count_deadlines(1_000).await {
            metrics::gauge!("holdfast_deadlines").set(u32::try_from(all).map_or(f64::MAX, f64::from));
            metrics::gauge!("holdfast_deadlines_late").set(u32::try_from(late).map_or(f64::MAX, f64::from));
        }
    }
}
