//! The queues as apalis-board sees them: a backend that only looks.
//!
//! The board on `RedisStorage` shows errors and zeros and freezes Redis in the one list that works (35 s at a million
//! jobs). This one reads what `jobs` and `stats` read, so each page costs what it shows.

use std::{
    collections::HashMap,
    pin::Pin,
    task::{Context, Poll},
};

use apalis_codec::json::JsonCodec;
use apalis_core::{
    backend::{
        Backend, BackendConfig, FetchById, Filter, ListAllTasks, ListQueues, ListTasks, ListWorkers, Metrics,
        QueueInfo, RunningWorker, StatType, Statistic, WireFormatBackend, finalize::Ephemeral,
    },
    layers::Identity,
    task::{Task, builder::TaskBuilder, metadata::MetadataStore, status::Status, task_id::TaskId},
    worker::context::WorkerContext,
};
use futures::Sink;
use serde_json::Value;

use super::{
    JobState, JobView, PAGE_MAX, Queue, QueueError, QueueRedis, QueueStats, list_jobs, queue_stats, read_job, stats_of,
};

/// The order in which a page without a status shows the states: what is wrong or at work first.
const STATES: [JobState; 6] =
    [JobState::Running, JobState::Dead, JobState::Retrying, JobState::Ready, JobState::Delayed, JobState::Done];

/// One queue for the board; its overview pages show all queues. Looks only: enqueueing through it is refused, because a
/// job exists only where a row says so.
#[derive(Debug, Clone)]
pub struct OpsView {
    redis: QueueRedis,
    queue: Queue,
    codec: JsonCodec<Value>,
}

/// Why the board cannot show something.
#[derive(Debug, thiserror::Error)]
pub enum OpsViewError {
    /// Redis does not answer.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Somebody tried to enqueue or to fetch through the board.
    #[error("the board only looks")]
    ReadOnly,
}

impl OpsView {
    /// That queue's view.
    #[must_use]
    pub fn new(redis: QueueRedis, queue: Queue) -> Self {
        Self { redis, queue, codec: JsonCodec::default() }
    }

    /// A page of the states one after the other, by the lengths that Redis keeps.
    async fn page(
        &self,
        queues: &[Queue],
        states: &[JobState],
        filter: &Filter,
    ) -> Result<Vec<Task<Value>>, QueueError> {
        let size = usize::try_from(filter.page_size.unwrap_or(20)).unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let page = usize::try_from(filter.page.max(1)).unwrap_or(1);
        let mut skip = (page - 1).saturating_mul(size);
        let mut tasks = Vec::new();
        for &state in states {
            for &queue in queues {
                let found = list_jobs(&self.redis, queue, state, skip, size - tasks.len()).await?;
                tasks.extend(found.jobs.into_iter().map(as_task));
                skip = skip.saturating_sub(usize::try_from(found.total).unwrap_or(usize::MAX));
                if tasks.len() == size {
                    return Ok(tasks);
                }
            }
        }
        Ok(tasks)
    }
}

fn states_of(status: Option<&Status>) -> &'static [JobState] {
    match status {
        None => &STATES,
        Some(Status::Pending) => &[JobState::Ready, JobState::Delayed],
        Some(Status::Queued) => &[JobState::Ready],
        Some(Status::Running) => &[JobState::Running],
        Some(Status::Failed) => &[JobState::Retrying],
        Some(Status::Killed) => &[JobState::Dead],
        Some(Status::Done) => &[JobState::Done],
        // apalis's enum may grow; a status we do not have has no jobs.
        Some(_) => &[],
    }
}

fn as_task(job: JobView) -> Task<Value> {
    let seconds = |ms: Option<i64>| ms.and_then(|ms| u64::try_from(ms / 1_000).ok());
    let status = match job.state {
        JobState::Ready | JobState::Delayed => Status::Pending,
        JobState::Retrying => Status::Failed,
        JobState::Running => Status::Running,
        JobState::Done => Status::Done,
        JobState::Dead => Status::Killed,
    };
    let mut metadata = HashMap::from([
        ("state".to_owned(), format!("{:?}", job.state).to_lowercase()),
        ("starts".to_owned(), job.starts.to_string()),
    ]);
    metadata.extend(job.kind.map(|kind| ("kind".to_owned(), kind)));
    metadata.extend(job.reason.map(|reason| ("reason".to_owned(), reason)));
    let args = serde_json::from_str(&job.envelope).unwrap_or(Value::String(job.envelope));
    let lock_at = seconds(job.started_ms).filter(|_| job.worker.is_some());
    let mut task = TaskBuilder::new(args)
        .task_id(TaskId::from_string(job.id))
        .status(status)
        .attempt(usize::try_from(job.attempts).unwrap_or_default())
        .queue(job.queue.name().into())
        .with_metadata(MetadataStore::from_map(metadata))
        .done_at(seconds(job.ended_ms))
        .lock_at(lock_at)
        .lock_by(job.worker);
    if let Some(at) = seconds(job.ready_ms.or(job.enqueued_ms)) {
        task = task.run_at_timestamp(at);
    }
    task.build()
}

fn statistics(all: &[QueueStats]) -> Vec<Statistic> {
    let sum = |of: fn(&QueueStats) -> u64| all.iter().map(of).sum::<u64>();
    let (done, dead) = (sum(|stats| stats.totals.done), sum(|stats| stats.totals.dead));
    let number = |title: &str, value: u64| (title.to_owned(), StatType::Number, value.to_string());
    let mut figures = vec![
        number("TOTAL_JOBS", sum(|stats| stats.totals.enqueued)),
        number("PENDING_JOBS", sum(|stats| stats.ready + stats.delayed)),
        number("RUNNING_JOBS", sum(|stats| stats.in_flight)),
        number("DONE_JOBS", done),
        number("FAILED_JOBS", sum(|stats| stats.retrying)),
        number("KILLED_JOBS", sum(|stats| stats.dead)),
        number("WORKERS", sum(|stats| stats.workers.len() as u64)),
        number("JOBS_TODAY", sum(|stats| stats.ended_by_day[6])),
    ];
    if let Some(basis_points) = (done * 10_000).checked_div(done + dead) {
        let rate = format!("{}.{:02}", basis_points / 100, basis_points % 100);
        figures.push(("SUCCESS_RATE".to_owned(), StatType::Percentage, rate));
    }
    if let Some(age_ms) = all.iter().filter_map(|stats| stats.oldest_ready_age_ms).max() {
        figures.push(number("OLDEST_PENDING_MS", age_ms));
    }
    if let Some(at_ms) = all.iter().filter_map(|stats| stats.last_done_ms).max() {
        figures.push(("MOST_RECENT_JOB".to_owned(), StatType::Timestamp, (at_ms / 1_000).to_string()));
    }
    figures
        .into_iter()
        .zip(1..)
        .map(|((title, stat_type, value), priority)| Statistic { title, stat_type, value, priority: Some(priority) })
        .collect()
}

fn running_workers(stats: &QueueStats) -> Vec<RunningWorker> {
    let seconds = |at: i64| u64::try_from(at).unwrap_or_default();
    stats
        .workers
        .iter()
        .map(|worker| RunningWorker {
            id: worker.name.clone(),
            queue: stats.queue.name().to_owned(),
            backend: "RedisStorage".to_owned(),
            started_at: worker.started_s.map_or_else(|| seconds(worker.last_heartbeat_s), seconds),
            last_heartbeat: seconds(worker.last_heartbeat_s),
            layers: "ConcurrencyLimit".to_owned(),
        })
        .collect()
}

impl Backend for OpsView {
    type Task = Task<Value>;
    type Error = OpsViewError;

    fn poll_ready(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Err(OpsViewError::ReadOnly))
    }

    fn poll_next(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Option<Result<Self::Task, Self::Error>>> {
        Poll::Ready(None)
    }

    fn poll_close(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }
}

impl BackendConfig for OpsView {
    type Args = Value;
    type Id = ulid::Ulid;
    type Kind = Ephemeral;
    type Config = Queue;
    type Layer = Identity;

    fn config(&self) -> &Self::Config {
        &self.queue
    }

    fn middleware(&mut self, _worker: &mut WorkerContext) -> Self::Layer {
        Identity::new()
    }
}

impl WireFormatBackend for OpsView {
    type Codec = JsonCodec<Value>;
    type Compact = Value;

    fn codec(&self) -> &Self::Codec {
        &self.codec
    }
}

/// The board demands a sink. This one takes nothing.
impl Sink<Task<Value>> for OpsView {
    type Error = OpsViewError;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Err(OpsViewError::ReadOnly))
    }

    fn start_send(self: Pin<&mut Self>, _: Task<Value>) -> Result<(), Self::Error> {
        Err(OpsViewError::ReadOnly)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }
}

impl FetchById for OpsView {
    async fn fetch_by_id(&mut self, id: &TaskId) -> Result<Option<Self::Task>, Self::Error> {
        Ok(read_job(&self.redis, self.queue, &id.to_string()).await?.map(as_task))
    }
}

impl ListTasks for OpsView {
    async fn list_tasks(&self, filter: &Filter) -> Result<Vec<Task<Value>>, Self::Error> {
        Ok(self.page(&[self.queue], states_of(filter.status.as_ref()), filter).await?)
    }
}

impl ListAllTasks for OpsView {
    async fn list_all_tasks(&self, filter: &Filter) -> Result<Vec<Task<Value>>, Self::Error> {
        Ok(self.page(&Queue::ALL, states_of(filter.status.as_ref()), filter).await?)
    }
}

impl ListWorkers for OpsView {
    async fn list_workers(&self) -> Result<Vec<RunningWorker>, Self::Error> {
        Ok(running_workers(&stats_of(&self.redis, self.queue).await?))
    }

    async fn list_all_workers(&self) -> Result<Vec<RunningWorker>, Self::Error> {
        Ok(queue_stats(&self.redis).await?.iter().flat_map(running_workers).collect())
    }
}

impl ListQueues for OpsView {
    async fn list_queues(&self) -> Result<Vec<QueueInfo>, Self::Error> {
        let all = queue_stats(&self.redis).await?;
        Ok(all
            .iter()
            .map(|stats| QueueInfo {
                name: stats.queue.name().to_owned(),
                stats: statistics(std::slice::from_ref(stats)),
                workers: stats.workers.iter().map(|worker| worker.name.clone()).collect(),
                activity: stats.ended_by_day.map(|count| usize::try_from(count).unwrap_or(usize::MAX)).to_vec(),
            })
            .collect())
    }
}

impl Metrics for OpsView {
    async fn global(&self) -> Result<Vec<Statistic>, Self::Error> {
        Ok(statistics(&queue_stats(&self.redis).await?))
    }

    async fn fetch_by_queue(&self) -> Result<Vec<Statistic>, Self::Error> {
        Ok(statistics(&[stats_of(&self.redis, self.queue).await?]))
    }
}
