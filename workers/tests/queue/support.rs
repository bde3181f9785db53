//! A private Redis, handlers made of closures, and workers that end with their test.

use std::{
    future::Future,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use domain::queue::{
    JobId, JobSender, JobState, JobView, Lease, NewJob, Queue, QueuePrefix, QueueRedis, QueueStats, read_job, stats_of,
};
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use workers::{
    outcome::{Delivery, JobError, JobHandler},
    supervisor::{QueuePolicy, StopReport, run_queue, tend_queues},
};

/// How long a test waits for something that should take a moment: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A Redis that nobody else uses, and ends with the test.
pub struct Server {
    port: u16,
    folder: PathBuf,
    child: Option<Child>,
}

impl Server {
    pub fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("holdfast-queue-test-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut server = Self { port, folder, child: None };
        server.run();
        server
    }

    pub fn run(&mut self) {
        let port = self.port.to_string();
        let child = Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(&self.folder)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(started.elapsed() < PATIENCE, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it and forgets everything: it keeps nothing on disk.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// One test's queues.
pub struct World {
    pub server: Option<Server>,
    pub url: String,
    pub redis: QueueRedis,
    pub sender: JobSender,
    tending: CancellationToken,
}

impl World {
    /// On the Redis of `HOLDFAST_TEST_REDIS_URL` under a prefix of its own, else on a Redis of its own.
    pub fn new() -> Self {
        match std::env::var("HOLDFAST_TEST_REDIS_URL") {
            Ok(url) => Self::on(url, None),
            Err(_) => Self::alone(),
        }
    }

    /// On a Redis of its own that the test may stop.
    pub fn alone() -> Self {
        let server = Server::start();
        Self::on(format!("redis://127.0.0.1:{}", server.port), Some(server))
    }

    fn on(url: String, server: Option<Server>) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("t{}-{}-", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let redis = QueueRedis::new(&url, QueuePrefix::new(&prefix).unwrap()).unwrap();
        Self { server, url, sender: JobSender::new(redis.clone()), redis, tending: CancellationToken::new() }
    }

    /// Promotes and trims, as each worker process does.
    pub fn tend(&self, retention: domain::queue::Retention) {
        tokio::spawn(tend_queues(self.redis.clone(), retention, self.tending.clone()));
    }

    pub fn work(&self, queue: Queue, policy: QueuePolicy, handlers: Vec<Arc<dyn JobHandler>>) -> Working {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let process = format!("test-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let shutdown = CancellationToken::new();
        let (redis, token) = (self.redis.clone(), shutdown.clone());
        let run = tokio::spawn(async move { run_queue(redis, queue, handlers, policy, &process, token).await });
        Working { shutdown, run }
    }

    pub async fn enqueue(&self, jobs: &[NewJob]) -> domain::queue::Enqueued {
        self.sender.enqueue(jobs).await.unwrap()
    }

    pub async fn stats(&self, queue: Queue) -> QueueStats {
        stats_of(&self.redis, queue).await.unwrap()
    }

    pub async fn job(&self, queue: Queue, id: &str) -> JobView {
        read_job(&self.redis, queue, id).await.unwrap().unwrap_or_else(|| panic!("{queue} does not know {id}"))
    }

    pub async fn until_state(&self, queue: Queue, id: &str, state: JobState) -> JobView {
        until(&format!("{id} to be {state:?}"), || async {
            read_job(&self.redis, queue, id).await.ok().flatten().filter(|job| job.state == state)
        })
        .await
    }

    pub async fn until_done(&self, queue: Queue, count: u64) -> QueueStats {
        until(&format!("{count} done"), || async {
            let stats = stats_of(&self.redis, queue).await.ok()?;
            (stats.totals.done >= count).then_some(stats)
        })
        .await
    }

    /// A raw command: what an operator or a foreign client could do to this Redis.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-u", &self.url]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The name of one of apalis's or our keys.
    pub fn key(&self, queue: Queue, rest: &str) -> String {
        format!("{}{}:{rest}", self.redis.prefix(), queue.name())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.tending.cancel();
        if self.server.is_none() {
            let script = "local at = '0' repeat local page = redis.call('SCAN', at, 'MATCH', ARGV[1], 'COUNT', 1000) \
                          at = page[1] for _, key in ipairs(page[2]) do redis.call('UNLINK', key) end until at == '0'";
            self.cli(&["EVAL", script, "0", &format!("{}*", self.redis.prefix())]);
        }
    }
}

/// A worker that runs.
pub struct Working {
    pub shutdown: CancellationToken,
    pub run: JoinHandle<StopReport>,
}

impl Working {
    pub async fn stop(self) -> StopReport {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.run).await.expect("the worker stops").unwrap()
    }
}

type Body = dyn Fn(Delivery) -> BoxFuture<'static, Result<(), JobError>> + Send + Sync;

/// A handler made of a closure.
pub struct Handler {
    kind: &'static str,
    body: Box<Body>,
}

#[async_trait]
impl JobHandler for Handler {
    fn kind(&self) -> &'static str {
        self.kind
    }

    async fn run(&self, delivery: Delivery) -> Result<(), JobError> {
        (self.body)(delivery).await
    }
}

pub fn handler<F, Fut>(kind: &'static str, body: F) -> Arc<dyn JobHandler>
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), JobError>> + Send + 'static,
{
    Arc::new(Handler { kind, body: Box::new(move |delivery| Box::pin(body(delivery))) })
}

/// A handler that only counts its runs.
pub fn counting(kind: &'static str) -> (Arc<AtomicU32>, Arc<dyn JobHandler>) {
    let count = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&count);
    let body = move |_delivery| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    };
    (count, handler(kind, body))
}

/// Rules that fail and recover fast.
pub fn hasty() -> QueuePolicy {
    QueuePolicy {
        concurrency: 8,
        attempts_max: 3,
        crashes_max: 5,
        run_limit: Duration::from_secs(10),
        retry_base: Duration::from_millis(20),
        retry_cap: Duration::from_millis(100),
        lease: Lease { heartbeat: Duration::from_secs(1), missed: 2 },
        stop_limit: Duration::from_secs(5),
    }
}

pub fn job(queue: Queue, id: &str, kind: &'static str) -> NewJob {
    NewJob::new(queue, JobId::parse(id).unwrap(), kind, serde_json::json!({ "id": id }))
}

pub fn jobs(queue: Queue, count: usize, kind: &'static str) -> Vec<NewJob> {
    (0..count).map(|n| job(queue, &format!("j-{n}"), kind)).collect()
}

/// Waits for a condition.
pub async fn until<T, F, Fut>(what: &str, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(met) = condition().await {
            return met;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
