//! Runs apalis workers and keeps them running.
//!
//! apalis ends a worker for good on any error of its backend (one slow answer of Redis is enough) while the process
//! looks alive, and its `Monitor` restarts without a wait and under the same name. So each queue has a loop of its own:
//! a worker under a new unique name, its lease renewed from outside, its jobs given back when it ends for whatever
//! reason, and a growing wait before the next.

use std::{collections::HashMap, sync::Arc, time::Duration};

use apalis::prelude::{BoxDynError, TaskId, WorkerBuilder, WorkerBuilderExt, WorkerContext, WorkerError};
use domain::queue::{Deliveries, JobSource, Queue, QueueRedis, Released, Slots};
use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::Mutex, task::JoinHandle, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod handling;
mod pause;
mod policy;
mod tending;

pub use policy::QueuePolicy;
pub use tending::tend_queues;

use crate::outcome::JobHandler;
use handling::{Handlers, Handling, error_chain};
use pause::Pause;

const RESTART_DELAY_MIN: Duration = Duration::from_millis(100);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(5);
/// A worker that ran that long has recovered: the next failure starts with the short wait again.
const RECOVERED_AFTER: Duration = Duration::from_secs(30);
/// How long the end of a worker waits for aborted handlers. They end at their next await.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// How long a stopping process tries to give its jobs back before it leaves them to the lease.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);

/// How a queue's worker stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StopReport {
    /// How often a worker failed and was replaced.
    pub restarts: u32,
    /// Jobs given back at the stop.
    pub given_back: u64,
    /// The limit for a graceful stop ran out: handlers were dropped, their jobs are among those given back.
    pub forced: bool,
    /// Redis did not answer: the jobs in flight come back when the lease has run out.
    pub unreleased: bool,
}

/// Runs the jobs of one queue until `shutdown`, then stops gracefully: takes no more work, lets running handlers finish
/// within the policy's limit, gives the rest back.
///
/// `process` names this process start and must be unique among all (host, process id and a random part): the name of
/// each worker is made of it. Handlers are found by their kind; of two with one kind the latter counts.
pub async fn run_queue(
    redis: QueueRedis,
    queue: Queue,
    handlers: Vec<Arc<dyn JobHandler>>,
    policy: QueuePolicy,
    process: &str,
    shutdown: CancellationToken,
) -> StopReport {
    let handlers: Handlers = handlers.into_iter().map(|handler| (handler.kind(), handler)).collect::<HashMap<_, _>>();
    let supervisor = Supervisor {
        redis,
        queue,
        handlers: Arc::new(handlers),
        policy,
        process: Arc::from(process),
        pause: Arc::default(),
        suspicion: Arc::default(),
        shutdown,
    };
    let mut report = StopReport::default();
    let mut delay = RESTART_DELAY_MIN;
    loop {
        let name = format!("{process}-{queue}-{}", report.restarts);
        let started = Instant::now();
        match supervisor.run_worker(&name).await {
            Ended::Stopped { forced, released } => {
                report.forced = forced;
                report.given_back = released.map_or(0, |released| released.given_back);
                report.unreleased = released.is_none();
                return report;
            }
            Ended::Failed { error, released } => {
                let given_back = released.map_or(0, |released| released.given_back);
                tracing::warn!(%queue, worker = name, error, given_back, "a worker ended; another one takes over");
                metrics::counter!("holdfast_worker_restarts_total", "queue" => queue.name()).increment(1);
            }
        }
        report.restarts += 1;
        if started.elapsed() >= RECOVERED_AFTER {
            delay = RESTART_DELAY_MIN;
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = supervisor.shutdown.cancelled() => return report,
        }
        delay = (delay * 2).min(RESTART_DELAY_MAX);
    }
}

struct Supervisor {
    redis: QueueRedis,
    queue: Queue,
    handlers: Arc<Handlers>,
    policy: QueuePolicy,
    process: Arc<str>,
    pause: Arc<Pause>,
    suspicion: Arc<Mutex<()>>,
    shutdown: CancellationToken,
}

enum Ended {
    Stopped { forced: bool, released: Option<Released> },
    Failed { error: String, released: Option<Released> },
}

type Run = BoxFuture<'static, Result<(), WorkerError>>;

/// A task that ends with its owner.
struct Beating(JoinHandle<()>);

impl Drop for Beating {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Supervisor {
    async fn run_worker(&self, name: &str) -> Ended {
        let worker: Arc<str> = Arc::from(name);
        let context = WorkerContext::new(name);
        let deliveries =
            Deliveries::new(self.redis.clone(), self.queue, Arc::clone(&self.process), Arc::clone(&worker));
        let runs = TaskTracker::new();
        let mut run = self.build(&context, worker, &deliveries, &runs);
        let beating = Beating(tokio::spawn(beat(deliveries.clone(), self.policy.lease.heartbeat)));
        let (ended, stopped) = tokio::select! {
            ended = &mut run => (Some(ended), None),
            () = self.pause.keep(&context) => (None, None),
            () = self.shutdown.cancelled() => (None, Some(self.stop(&context, &mut run).await)),
        };
        // Dropping the worker aborts the handlers; only when they have ended may somebody else start their jobs.
        drop(run);
        runs.close();
        if tokio::time::timeout(ABORT_LIMIT, runs.wait()).await.is_err() {
            tracing::warn!(queue = %self.queue, worker = name, "an aborted handler does not end; giving its job back anyway");
        }
        let released = self.release(&deliveries).await;
        drop(beating);
        match (ended, stopped) {
            (_, Some(forced)) => Ended::Stopped { forced, released },
            (Some(Err(error)), None) => Ended::Failed { error: error_chain(&error), released },
            (_, None) => Ended::Failed { error: "ended by itself".to_owned(), released },
        }
    }

    fn build(&self, context: &WorkerContext, worker: Arc<str>, deliveries: &Deliveries, runs: &TaskTracker) -> Run {
        let slots = Slots::default();
        let concurrency = self.policy.concurrency.max(1);
        let source = JobSource::new(&self.redis, self.queue, concurrency, self.policy.lease, slots.clone());
        let handling = Arc::new(Handling {
            queue: self.queue,
            worker,
            handlers: Arc::clone(&self.handlers),
            policy: self.policy.clone(),
            deliveries: deliveries.clone(),
            slots,
            pause: Arc::clone(&self.pause),
            suspicion: Arc::clone(&self.suspicion),
            runs: runs.clone(),
        });
        let handle = move |data: Vec<u8>, id: TaskId| {
            let handling = Arc::clone(&handling);
            async move {
                handling.handle(data, id.to_string()).await;
                // apalis has no say in the outcome.
                Ok::<(), BoxDynError>(())
            }
        };
        WorkerBuilder::new(context).backend(source).concurrency(concurrency).build(handle).run().boxed()
    }

    /// Lets what runs finish within the limit. Returns whether the limit ran out.
    async fn stop(&self, context: &WorkerContext, run: &mut Run) -> bool {
        if context.stop().is_err() {
            // It has not started yet: there is nothing to wait for.
            return false;
        }
        match tokio::time::timeout(self.policy.stop_limit, run).await {
            Ok(Ok(())) => false,
            Ok(Err(error)) => {
                tracing::warn!(queue = %self.queue, error = %error_chain(&error), "the worker failed while it stopped");
                false
            }
            Err(_elapsed) => {
                tracing::warn!(queue = %self.queue, "running jobs did not finish in time; giving them back");
                true
            }
        }
    }

    /// Gives back what the worker has, as soon as Redis answers; a stopping process waits for that only for a while.
    async fn release(&self, deliveries: &Deliveries) -> Option<Released> {
        let releasing = async {
            loop {
                match deliveries.release().await {
                    Ok(released) => return released,
                    Err(error) => {
                        tracing::warn!(queue = %self.queue, error = %error_chain(&error), "cannot give jobs back yet");
                    }
                }
                tokio::time::sleep(RESTART_DELAY_MIN).await;
            }
        };
        tokio::pin!(releasing);
        tokio::select! {
            released = &mut releasing => return Some(released),
            () = self.shutdown.cancelled() => {}
        }
        tokio::time::timeout(RELEASE_LIMIT, releasing).await.ok()
    }
}

/// Renews a worker's lease until it is aborted.
async fn beat(deliveries: Deliveries, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = deliveries.heartbeat().await {
            tracing::debug!(error = %error_chain(&error), "a heartbeat was not answered");
        }
    }
}
