//! The backend that apalis's workers poll: apalis-redis's `RedisStorage` as the consumer, with three things it lacks.
//!
//! - It wakes. `RedisStorage` never polls by itself, apalis's interval strategy loses its timer when one fetch is slower
//!   than the interval, and apalis publishes no push. Here a subscriber wakes the worker, and a timer that is always
//!   registered bounds what a lost message costs.
//! - It never fetches more than can start at once. Fetched jobs wait in a buffer that other workers cannot see.
//! - It hands the payload over as bytes. apalis treats a payload that does not decode as a failed backend: the worker
//!   ends, the job goes back, the next worker ends.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use apalis_core::{
    backend::{Backend, BackendConfig, finalize::Ephemeral},
    layers::Identity,
    task::Task,
    worker::context::WorkerContext,
};
use apalis_redis::{Config, Error as StorageError, RedisStorage};
use futures::{StreamExt, task::AtomicWaker};
use redis::aio::ConnectionManager;
use tokio::{task::JoinHandle, time::Sleep};

use super::{Queue, QueueRedis};

/// What a lost wake-up costs at most.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A wake-up that arrives during a fetch is spent on that fetch, which may have looked before the push: look again.
const ECHO: Duration = Duration::from_millis(3);
const RESUBSCRIBE_DELAY_MIN: Duration = Duration::from_millis(100);
const RESUBSCRIBE_DELAY_MAX: Duration = Duration::from_secs(2);

/// How long a silent worker keeps its jobs: `heartbeat` × `missed`, whole seconds (apalis counts in them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// How often a worker says that it lives.
    pub heartbeat: Duration,
    /// After how many silent intervals its jobs go to others.
    pub missed: usize,
}

impl Default for Lease {
    /// 2 s × 5: a killed worker's jobs start elsewhere within 12 s.
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(2), missed: 5 }
    }
}

/// Counts the jobs that run in one worker.
#[derive(Debug, Clone, Default)]
pub struct Slots(Arc<AtomicUsize>);

/// One running job. Dropping it frees its slot.
#[derive(Debug)]
pub struct Slot(Arc<AtomicUsize>);

impl Slots {
    /// Takes a slot.
    #[must_use]
    pub fn take(&self) -> Slot {
        self.0.fetch_add(1, Ordering::AcqRel);
        Slot(Arc::clone(&self.0))
    }

    fn taken(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct Wake {
    waker: AtomicWaker,
    rung: AtomicBool,
}

impl Wake {
    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The jobs of one queue as an apalis backend: yields envelopes as bytes. Must be made and polled within tokio.
pub struct JobSource {
    storage: RedisStorage<Vec<u8>, ConnectionManager>,
    concurrency: usize,
    batch: usize,
    slots: Slots,
    yielded: usize,
    wake: Arc<Wake>,
    listener: JoinHandle<()>,
    timer: Pin<Box<Sleep>>,
}

impl std::fmt::Debug for JobSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobSource").field("config", self.storage.get_config()).finish_non_exhaustive()
    }
}

impl JobSource {
    /// A source for a worker that runs `concurrency` jobs at once. The handler takes a slot from `slots` for each job.
    #[must_use]
    pub fn new(redis: &QueueRedis, queue: Queue, concurrency: usize, lease: Lease, slots: Slots) -> Self {
        let concurrency = concurrency.max(1);
        // The source waits until a whole batch can start, so up to batch - 1 slots stay idle beside long jobs.
        let batch = (concurrency / 8).clamp(1, 8);
        let keys = redis.keys(queue);
        let config = Config::default()
            .queue(keys.name())
            .batch_size(batch)
            .heartbeat_interval(lease.heartbeat)
            .missed_heartbeats(lease.missed)
            // Its lock does a linear search in the list of ready jobs for each job.
            .lock_tasks(false)
            .emit_events(false);
        let wake = Arc::new(Wake::default());
        let listener = tokio::spawn(listen(redis.clone(), keys.wake_channel(), Arc::clone(&wake)));
        let timer = Box::pin(tokio::time::sleep(POLL_INTERVAL));
        let storage = RedisStorage::new(redis.connection()).with_config(config);
        Self { storage, concurrency, batch, slots, yielded: 0, wake, listener, timer }
    }

    /// Whether all jobs that one more fetch may bring can start at once. Jobs yielded since the last full batch are in
    /// their slots already; the rest of that batch may still be in the buffer and has its slots.
    fn has_room(&self) -> bool {
        let free = self.concurrency.saturating_sub(self.slots.taken());
        free >= self.batch - self.yielded
    }
}

impl Drop for JobSource {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Backend for JobSource {
    type Task = Task<Vec<u8>>;
    type Error = StorageError;

    fn poll_ready(&mut self, cx: &mut Context<'_>, worker: &WorkerContext) -> Poll<Result<(), Self::Error>> {
        self.storage.poll_ready(cx, worker)
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        worker: &WorkerContext,
    ) -> Poll<Option<Result<Self::Task, Self::Error>>> {
        self.wake.waker.register(cx.waker());
        if self.wake.rung.swap(false, Ordering::AcqRel) {
            self.timer.as_mut().reset(tokio::time::Instant::now() + ECHO);
        }
        // Polling the timer is what registers it: it must be done on every way out, whatever the fetch does.
        while self.timer.as_mut().poll(cx).is_ready() {
            self.timer.as_mut().reset(tokio::time::Instant::now() + POLL_INTERVAL);
        }
        if !self.has_room() {
            // A job that ends wakes the worker, which polls again.
            return Poll::Pending;
        }
        let polled = self.storage.poll_next(cx, worker);
        match &polled {
            Poll::Ready(Some(Ok(_))) => self.yielded = (self.yielded + 1) % self.batch,
            Poll::Ready(_) => {}
            // The buffer is empty; a fetch is on its way or found nothing.
            Poll::Pending => self.yielded = 0,
        }
        polled
    }

    fn poll_close(&mut self, cx: &mut Context<'_>, worker: &WorkerContext) -> Poll<Result<(), Self::Error>> {
        self.storage.poll_close(cx, worker)
    }
}

impl BackendConfig for JobSource {
    type Args = Vec<u8>;
    type Id = ulid::Ulid;
    /// "Ephemeral" in apalis's words says only that apalis decodes nothing on the way to the handler.
    type Kind = Ephemeral;
    type Config = Config;
    /// Not apalis's acknowledging layer: `deliveries` settles.
    type Layer = Identity;

    fn config(&self) -> &Self::Config {
        self.storage.get_config()
    }

    fn middleware(&mut self, _worker: &mut WorkerContext) -> Self::Layer {
        Identity::new()
    }
}

/// Rings for every push, for ever. After each (re)subscription it rings once: messages may have been missed.
async fn listen(redis: QueueRedis, channel: String, wake: Arc<Wake>) {
    let mut delay = RESUBSCRIBE_DELAY_MIN;
    loop {
        match subscribe(&redis, &channel).await {
            Ok(mut messages) => {
                delay = RESUBSCRIBE_DELAY_MIN;
                wake.ring();
                while messages.next().await.is_some() {
                    wake.ring();
                }
                tracing::warn!(channel, "the subscription that wakes workers ended; subscribing again");
            }
            Err(error) => tracing::warn!(channel, %error, "cannot subscribe to wake-ups; polling meanwhile"),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RESUBSCRIBE_DELAY_MAX);
    }
}

async fn subscribe(redis: &QueueRedis, channel: &str) -> redis::RedisResult<redis::aio::PubSubStream> {
    let (mut sink, stream) = redis.client().get_async_pubsub().await?.split();
    sink.subscribe(channel).await?;
    Ok(stream)
}
