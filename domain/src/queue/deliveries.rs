//! The worker's side of a job: count the start, settle the outcome, give everything back at the end.
//!
//! apalis's own acknowledgement is not used (its layer is never installed): it knows one fixed retry rule in whole
//! seconds, drops a panicked or late job into the dead set as "Running", and waits while fetched jobs are buffered. Here
//! one script acknowledges a job and moves it to where its outcome belongs, so that no crash falls in between.

use std::{sync::Arc, sync::LazyLock, time::Duration};

use redis::Script;

use super::{Queue, QueueError, QueueRedis, keys::Keys};

static BEGIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("begin.lua")));
static SETTLE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("settle.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("release.lua")));

/// The hash with apalis's description of a worker goes away by itself this long after its last heartbeat.
const WORKER_METADATA_TTL_S: i64 = 3_600;
/// Longer reasons are cut: they are for people.
const REASON_CHARS_MAX: usize = 500;
/// Who was suspected in a process that died is known this long: until the last of its jobs has been started again.
const SUSPECTS_TTL_S: i64 = 7 * 24 * 3_600;

/// With so many starts that ended with their process a job is a suspect. One such end proves nothing, and suspects run one
/// after the other: after a machine's death all its payments would wait for each other.
const SUSPECT_FROM: u32 = 2;

/// One worker's deliveries from one queue. Ids are text here: what stands in the queue need not be ours.
#[derive(Debug, Clone)]
pub struct Deliveries {
    redis: QueueRedis,
    keys: Keys,
    worker: Arc<str>,
    process: Arc<str>,
    inflight: String,
    suspects: String,
}

/// What a start of a job came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// Run it.
    Run {
        /// The counted attempt, from 1.
        attempt: u32,
        /// All starts so far, this one included.
        starts: u32,
    },
    /// Another worker owns it: do nothing.
    Lost,
    /// More than one start of it ended with its process: begin it again [`Company::Alone`], until no other suspect runs
    /// in this process.
    Suspect,
    /// It ended its process too often and is dead now: do nothing.
    Crashed {
        /// How often it was started.
        starts: u32,
    },
}

/// Among whom a job is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Any others.
    Together,
    /// No other suspect.
    Alone,
}

/// What should become of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledge it.
    Done,
    /// A counted failure: again after the wait, or dead if the attempts are used up.
    Retry {
        /// How long to wait.
        wait: Duration,
        /// Why it failed.
        reason: String,
    },
    /// Not counted: again after the wait.
    Later {
        /// How long to wait.
        wait: Duration,
        /// Why.
        reason: String,
    },
    /// Not counted: again at that time.
    LaterAt {
        /// In ms since 1970.
        at_ms: i64,
        /// Why.
        reason: String,
    },
    /// It was fetched but not begun: again after the wait.
    Unstarted {
        /// How long to wait.
        wait: Duration,
    },
    /// Dead at once.
    Never {
        /// Why.
        reason: String,
    },
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is done.
    Done,
    /// It waits for its next start.
    Waiting,
    /// It is in the dead list.
    Dead,
    /// Nothing: the lease was lost (or this is the repetition of a call whose answer was lost).
    Lost,
}

/// What a worker gave back at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Released {
    /// Jobs put back at the head of the queue.
    pub given_back: u64,
    /// Ids without data that were dropped.
    pub dropped: u64,
}

impl Deliveries {
    /// The deliveries of that worker of that process. Both names must be unique among all processes and restarts: two
    /// workers of one name steal each other's jobs.
    #[must_use]
    pub fn new(redis: QueueRedis, queue: Queue, process: Arc<str>, worker: Arc<str>) -> Self {
        let keys = redis.keys(queue);
        let inflight = format!("{}:{worker}", keys.inflight());
        let suspects = format!("{}:{process}", redis.prefix().suspects());
        Self { redis, keys, worker, process, inflight, suspects }
    }

    /// Counts a start. Call it right before the handler. Repeatable until it answers.
    ///
    /// # Errors
    /// `QueueError` if Redis does not answer.
    pub async fn begin(
        &self,
        id: &str,
        company: Company,
        attempts_max: u32,
        crashes_max: u32,
    ) -> Result<Begun, QueueError> {
        let keys = &self.keys;
        let company = match company {
            Company::Together => "together",
            Company::Alone => "alone",
        };
        let mut call = BEGIN.prepare_invoke();
        call.key(&self.inflight).key(self.meta(id)).key(keys.dead_ms()).key(keys.totals());
        call.key(self.redis.prefix().suspects());
        call.arg(id).arg(&*self.worker).arg(&*self.process).arg(attempts_max).arg(crashes_max);
        call.arg(company).arg(self.suspect(id)).arg(SUSPECTS_TTL_S).arg(SUSPECT_FROM);
        let (verdict, attempt, starts): (String, u32, u32) = call.invoke_async(&mut self.redis.connection()).await?;
        Ok(match verdict.as_str() {
            "run" => Begun::Run { attempt, starts },
            "suspect" => Begun::Suspect,
            "crashed" => Begun::Crashed { starts },
            _ => Begun::Lost,
        })
    }

    /// Settles a job. Repeatable until it answers.
    ///
    /// # Errors
    /// `QueueError` if Redis does not answer. The job then stays in flight: settle again, or end the worker and release.
    pub async fn settle(&self, id: &str, outcome: &Outcome, attempts_max: u32) -> Result<Settled, QueueError> {
        let (verdict, wait, at, reason) = match outcome {
            Outcome::Done => ("done", 0, String::new(), ""),
            Outcome::Retry { wait, reason } => ("retry", whole_ms(*wait), String::new(), reason.as_str()),
            Outcome::Later { wait, reason } => ("later", whole_ms(*wait), String::new(), reason.as_str()),
            Outcome::LaterAt { at_ms, reason } => ("later", 0, at_ms.to_string(), reason.as_str()),
            Outcome::Unstarted { wait } => ("unstarted", whole_ms(*wait), String::new(), ""),
            Outcome::Never { reason } => ("never", 0, String::new(), reason.as_str()),
        };
        let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
        let keys = &self.keys;
        let mut call = SETTLE.prepare_invoke();
        call.key(&self.inflight).key(self.meta(id)).key(keys.delayed_ms());
        call.key(keys.done_ms()).key(keys.dead_ms()).key(keys.totals()).key(&self.suspects).key(keys.retry_ms());
        call.arg(id).arg(verdict).arg(wait).arg(at).arg(attempts_max).arg(reason).arg(self.suspect(id));
        let settled: String = call.invoke_async(&mut self.redis.connection()).await?;
        Ok(match settled.as_str() {
            "done" => Settled::Done,
            "waiting" => Settled::Waiting,
            "dead" => Settled::Dead,
            _ => Settled::Lost,
        })
    }

    /// Renews the lease. apalis does so too, but only between fetches: jobs that wait in its buffer behind a long one
    /// would let the lease run out under a live worker. A worker that was declared dead is not revived.
    ///
    /// # Errors
    /// `QueueError` if Redis does not answer.
    pub async fn heartbeat(&self) -> Result<(), QueueError> {
        let metadata = format!("{}:{}", self.keys.worker_metadata(), self.worker);
        let mut connection = self.redis.connection();
        let (now_s, _us): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let _: () = redis::pipe()
            .cmd("ZADD")
            .arg(self.keys.workers())
            .arg("XX")
            .arg(now_s)
            .arg(&*self.worker)
            .ignore()
            .cmd("HSETNX")
            .arg(&metadata)
            .arg("started_s")
            .arg(now_s)
            .ignore()
            .cmd("EXPIRE")
            .arg(&metadata)
            .arg(WORKER_METADATA_TTL_S)
            .ignore()
            .query_async(&mut connection)
            .await?;
        Ok(())
    }

    /// Gives back what the worker still has, uncounted and at the head of the queue, and forgets the worker. Only after
    /// its handlers have ended. Repeatable.
    ///
    /// # Errors
    /// `QueueError` if Redis does not answer; other workers then take the jobs over when the lease has run out.
    pub async fn release(&self) -> Result<Released, QueueError> {
        let keys = &self.keys;
        let mut call = RELEASE.prepare_invoke();
        call.key(&self.inflight).key(keys.active()).key(keys.workers());
        call.key(format!("{}:{}", keys.worker_metadata(), self.worker)).key(keys.data()).key(keys.meta());
        call.key(&self.suspects);
        call.arg(&*self.worker).arg(keys.wake_channel()).arg(self.suspect(""));
        let (given_back, dropped) = call.invoke_async(&mut self.redis.connection()).await?;
        Ok(Released { given_back, dropped })
    }

    /// A job's name among suspects, who are of all queues.
    fn suspect(&self, id: &str) -> String {
        format!("{}/{id}", self.keys.name())
    }

    fn meta(&self, id: &str) -> String {
        format!("{}:{id}", self.keys.meta())
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}
