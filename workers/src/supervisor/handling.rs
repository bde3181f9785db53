//! One job from its fetch to its settlement.

use std::{any::Any, collections::HashMap, future::Future, sync::Arc, time::Duration};

use domain::queue::{
    Begun, Company, Deliveries, Envelope, JobId, OpenEnvelopeError, Outcome, Queue, QueueError, Settled, Slots,
};
use tokio::{
    sync::Mutex,
    task::{AbortHandle, JoinError},
    time::Instant,
};
use tokio_util::task::TaskTracker;

use super::{pause::Pause, policy::QueuePolicy};
use crate::outcome::{Delivery, JobError, JobHandler, outcome_of};

const REDIS_RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const REDIS_RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// How long a suspect waits here for another one to end, before it is left to any worker, and for how long.
const SUSPECT_WAIT: Duration = Duration::from_secs(2);
const SUSPECT_LOOK: Duration = Duration::from_millis(50);

/// The handlers of a queue by kind.
pub(super) type Handlers = HashMap<&'static str, Arc<dyn JobHandler>>;

/// What one worker needs to handle jobs.
pub(super) struct Handling {
    pub(super) queue: Queue,
    pub(super) worker: Arc<str>,
    pub(super) handlers: Arc<Handlers>,
    pub(super) policy: QueuePolicy,
    pub(super) deliveries: Deliveries,
    pub(super) slots: Slots,
    pub(super) pause: Arc<Pause>,
    /// Held by the one suspect of this queue that runs or waits to: see `Deliveries::begin`.
    pub(super) suspicion: Arc<Mutex<()>>,
    /// The spawned runs, so that the end of the worker can wait for them before it gives their jobs back.
    pub(super) runs: TaskTracker,
}

/// Ends the spawned run when the worker drops the job's future: an unacknowledged run must not go on beside the next
/// delivery of the same job.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Handling {
    /// Runs one fetched job and settles it. Never fails: what goes wrong with a job is the job's outcome, and while
    /// Redis does not answer it waits here.
    pub(super) async fn handle(&self, data: Vec<u8>, id: String) {
        let _slot = self.slots.take();
        let mut begun = self.begin(&id, Company::Together).await;
        let mut _alone = None;
        if begun == Begun::Suspect {
            _alone = Some(self.suspicion.lock().await);
            begun = self.begin_alone(&id).await;
        }
        let (attempt, starts) = match begun {
            Begun::Run { attempt, starts } => (attempt, starts),
            Begun::Lost => {
                tracing::info!(queue = %self.queue, %id, "another worker owns the job now; not started");
                return;
            }
            Begun::Suspect => {
                let outcome = Outcome::Unstarted { wait: SUSPECT_WAIT };
                let settle = || self.deliveries.settle(&id, &outcome, self.policy.attempts_max);
                until_answered("settle", settle).await;
                return;
            }
            Begun::Crashed { starts } => {
                let kind = self.kind_of(&data);
                tracing::error!(queue = %self.queue, %id, kind, starts, "the job ended its process too often and is dead");
                self.count(kind, "crashed");
                self.count_dead(kind);
                return;
            }
        };
        let started = Instant::now();
        let (kind, verdict) = match self.open(&data, &id, attempt, starts) {
            Ok((handler, delivery)) => match self.run(Arc::clone(&handler), delivery).await {
                Some(verdict) => (handler.kind(), verdict),
                // The worker ends; the job is given back.
                None => return,
            },
            Err(error) => ("unknown", Err(error)),
        };
        metrics::histogram!("holdfast_job_duration_seconds", "queue" => self.queue.name(), "kind" => kind)
            .record(started.elapsed().as_secs_f64());
        self.settle(&id, kind, attempt, verdict).await;
    }

    async fn begin(&self, id: &str, company: Company) -> Begun {
        let begin = || self.deliveries.begin(id, company, self.policy.attempts_max, self.policy.crashes_max);
        until_answered("begin", begin).await
    }

    /// Begins a suspect as soon as no other suspect runs in this process; `Begun::Suspect` if that takes too long.
    async fn begin_alone(&self, id: &str) -> Begun {
        let asked = Instant::now();
        loop {
            let begun = self.begin(id, Company::Alone).await;
            if begun != Begun::Suspect || asked.elapsed() >= SUSPECT_WAIT {
                return begun;
            }
            tokio::time::sleep(SUSPECT_LOOK).await;
        }
    }

    fn open(
        &self,
        data: &[u8],
        id: &str,
        attempt: u32,
        starts: u32,
    ) -> Result<(Arc<dyn JobHandler>, Delivery), JobError> {
        let id = JobId::parse(id).map_err(|error| JobError::never(error.to_string()))?;
        let envelope = Envelope::open(data).map_err(|error| match error {
            OpenEnvelopeError::Undecodable(_) => JobError::never(error.to_string()),
            // While a newer release replaces this one, its worker gets a chance.
            OpenEnvelopeError::Newer(_) => JobError::retry(error.to_string()),
        })?;
        let handler = self
            .handlers
            .get(envelope.kind.as_str())
            .ok_or_else(|| JobError::retry(format!("no handler for kind {:?} in this worker", envelope.kind)))?;
        let delivery = Delivery {
            queue: self.queue,
            id,
            payload: envelope.payload,
            attempt,
            attempts_max: self.policy.attempts_max,
            starts,
            enqueued_ms: envelope.enqueued_ms,
            worker: Arc::clone(&self.worker),
        };
        Ok((Arc::clone(handler), delivery))
    }

    /// Runs the handler in a task of its own. apalis polls all jobs of a worker in one task, which would keep them on
    /// one core; its `parallelize` uses the others but lets the runs go on unacknowledged when the worker ends, hence
    /// the abort. The task also catches a panic, and the limit stands inside it, so both are ordinary failures.
    async fn run(&self, handler: Arc<dyn JobHandler>, delivery: Delivery) -> Option<Result<(), JobError>> {
        let limit = self.policy.run_limit;
        let run = self.runs.spawn(async move {
            match tokio::time::timeout(limit, handler.run(delivery)).await {
                Ok(verdict) => verdict,
                Err(_elapsed) => Err(JobError::retry(format!("took longer than {} ms", limit.as_millis()))),
            }
        });
        let _abort = AbortOnDrop(run.abort_handle());
        match run.await {
            Ok(verdict) => Some(verdict),
            Err(error) => panic_reason(error).map(|reason| Err(JobError::Retry { reason })),
        }
    }

    async fn settle(&self, id: &str, kind: &'static str, attempt: u32, verdict: Result<(), JobError>) {
        let down_wait = match &verdict {
            Err(JobError::StoreDown { reason }) => self.pause.store_is_down(reason),
            Ok(()) => self.pause.store_is_up(),
            Err(JobError::Retry { .. } | JobError::Later { .. } | JobError::Never { .. }) => Duration::ZERO,
        };
        let outcome = outcome_of(verdict, self.policy.retry_wait(id, attempt), down_wait);
        let settle = || self.deliveries.settle(id, &outcome, self.policy.attempts_max);
        let settled = until_answered("settle", settle).await;
        let (word, reason) = match &outcome {
            Outcome::Done => ("done", ""),
            Outcome::Unstarted { .. } => ("unstarted", ""),
            Outcome::Retry { reason, .. } => ("retry", reason.as_str()),
            Outcome::Later { reason, .. } | Outcome::LaterAt { reason, .. } => ("later", reason.as_str()),
            Outcome::Never { reason } => ("never", reason.as_str()),
        };
        let queue = self.queue;
        match settled {
            Settled::Done => self.count(kind, "done"),
            Settled::Waiting => {
                tracing::info!(%queue, id, kind, attempt, verdict = word, reason, "the job runs again later");
                self.count(kind, word);
            }
            Settled::Dead => {
                tracing::error!(%queue, id, kind, attempt, verdict = word, reason, "the job is dead");
                self.count(kind, "dead");
                self.count_dead(kind);
            }
            Settled::Lost => {
                tracing::info!(%queue, id, kind, attempt, verdict = word, "the lease was lost before the job was settled");
                self.count(kind, "lost");
            }
        }
    }

    fn kind_of(&self, data: &[u8]) -> &'static str {
        Envelope::open(data)
            .ok()
            .and_then(|envelope| self.handlers.get(envelope.kind.as_str()))
            .map_or("unknown", |handler| handler.kind())
    }

    fn count(&self, kind: &'static str, outcome: &'static str) {
        let queue = self.queue.name();
        metrics::counter!("holdfast_jobs_total", "queue" => queue, "kind" => kind, "outcome" => outcome).increment(1);
    }

    fn count_dead(&self, kind: &'static str) {
        metrics::counter!("holdfast_jobs_dead_total", "queue" => self.queue.name(), "kind" => kind).increment(1);
    }
}

/// Calls until Redis answers. It ends earlier only by being dropped with its worker.
async fn until_answered<T, F, Fut>(what: &'static str, mut call: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, QueueError>>,
{
    let mut delay = REDIS_RETRY_DELAY_MIN;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                tracing::warn!(what, error = %error_chain(&error), "the queues' Redis does not answer; trying again");
            }
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(REDIS_RETRY_DELAY_MAX);
    }
}

/// An error with its sources, for a log line.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The message of a panic; `None` if the run was aborted instead.
fn panic_reason(error: JoinError) -> Option<String> {
    let panic: Box<dyn Any + Send> = error.try_into_panic().ok()?;
    let message = panic
        .downcast_ref::<&'static str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned());
    Some(format!("panicked: {message}"))
}
