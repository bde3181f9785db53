//! Looking at jobs: one, or a page of those in one state. For operators; nothing in the product depends on it.

use std::collections::HashMap;

use redis::aio::ConnectionManager;
use serde::Serialize;

use super::{
    Queue, QueueError, QueueRedis,
    connect::{LOOK_LIMIT, answered_within},
};

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// In the queue; the next free worker takes it.
    Ready,
    /// Waits for its time.
    Delayed,
    /// Failed, and waits for its next attempt.
    Retrying,
    /// A worker has it.
    Running,
    /// It is done.
    Done,
    /// It is in the dead list.
    Dead,
}

/// A job as an operator sees it. Times are in ms since 1970 by Redis's clock.
#[derive(Debug, Clone, Serialize)]
pub struct JobView {
    /// Its queue.
    pub queue: Queue,
    /// Its id. Text, because what stands in Redis need not be ours.
    pub id: String,
    /// Its kind, if it has one.
    pub kind: Option<String>,
    /// Where it is.
    pub state: JobState,
    /// Counted attempts.
    pub attempts: u32,
    /// All starts.
    pub starts: u32,
    /// When it was enqueued.
    pub enqueued_ms: Option<i64>,
    /// When it became or becomes ready.
    pub ready_ms: Option<i64>,
    /// When it was last started.
    pub started_ms: Option<i64>,
    /// When it was done or died.
    pub ended_ms: Option<i64>,
    /// Why it last failed or waits.
    pub reason: Option<String>,
    /// The worker that runs it.
    pub worker: Option<String>,
    /// The envelope as it stands in Redis; JSON unless somebody else wrote it.
    pub envelope: String,
}

/// A page of jobs.
#[derive(Debug, Clone, Serialize)]
pub struct JobPage {
    /// The jobs, in the order of their state: ready by turn, those that wait by due time, done and dead latest first.
    pub jobs: Vec<JobView>,
    /// How many there are in that state.
    pub total: u64,
}

/// Larger pages are cut to this.
pub const PAGE_MAX: usize = 200;

/// One job, wherever it is; `None` if Redis does not know it.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn read_job(redis: &QueueRedis, queue: Queue, id: &str) -> Result<Option<JobView>, QueueError> {
    Ok(answered_within(LOOK_LIMIT, views(redis, queue, &[id.to_owned()])).await?.pop())
}

/// Those of the jobs that Redis knows, wherever they are; one round trip.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn read_jobs(redis: &QueueRedis, queue: Queue, ids: &[String]) -> Result<Vec<JobView>, QueueError> {
    answered_within(LOOK_LIMIT, views(redis, queue, ids)).await
}

/// Those of the jobs, said to be ready, that stand neither in the list of the ready nor with any worker: none would ever
/// run. Reads the list once for each, so give it few.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn lost_jobs(redis: &QueueRedis, queue: Queue, ids: &[String]) -> Result<Vec<String>, QueueError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let search = async {
        let keys = redis.keys(queue);
        let mut connection = redis.connection();
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("LPOS").arg(keys.active()).arg(id);
        }
        let places: Vec<Option<u64>> = pipe.query_async(&mut connection).await?;
        let running = running_ids(&mut connection, &keys.workers(), &keys.inflight()).await?;
        let unlisted = ids.iter().zip(places).filter(|(_, place)| place.is_none()).map(|(id, _)| id.clone());
        Ok(unlisted.filter(|id| running.binary_search(id).is_err()).collect())
    };
    answered_within(LOOK_LIMIT, search).await
}

/// A page of the jobs of a queue in that state, from `offset`, at most [`PAGE_MAX`]. Costs what the page costs, whatever
/// the length of the queue or its history.
///
/// # Errors
/// `QueueError` if Redis does not answer.
pub async fn list_jobs(
    redis: &QueueRedis,
    queue: Queue,
    state: JobState,
    offset: usize,
    limit: usize,
) -> Result<JobPage, QueueError> {
    answered_within(LOOK_LIMIT, read_page(redis, queue, state, offset, limit)).await
}

async fn read_page(
    redis: &QueueRedis,
    queue: Queue,
    state: JobState,
    offset: usize,
    limit: usize,
) -> Result<JobPage, QueueError> {
    let keys = redis.keys(queue);
    let mut connection = redis.connection();
    let limit = limit.clamp(1, PAGE_MAX);
    let (ids, total): (Vec<String>, u64) = match state {
        JobState::Ready => page_of(&mut connection, "LLEN", "LRANGE", &keys.active(), offset, limit).await?,
        JobState::Delayed => page_of(&mut connection, "ZCARD", "ZRANGE", &keys.delayed_ms(), offset, limit).await?,
        JobState::Retrying => page_of(&mut connection, "ZCARD", "ZRANGE", &keys.retry_ms(), offset, limit).await?,
        JobState::Done => page_of(&mut connection, "ZCARD", "ZREVRANGE", &keys.done_ms(), offset, limit).await?,
        JobState::Dead => page_of(&mut connection, "ZCARD", "ZREVRANGE", &keys.dead_ms(), offset, limit).await?,
        JobState::Running => {
            let ids = running_ids(&mut connection, &keys.workers(), &keys.inflight()).await?;
            let total = ids.len() as u64;
            (ids.into_iter().skip(offset).take(limit).collect(), total)
        }
    };
    Ok(JobPage { jobs: views(redis, queue, &ids).await?, total })
}

async fn page_of(
    connection: &mut ConnectionManager,
    count: &str,
    range: &str,
    key: &str,
    offset: usize,
    limit: usize,
) -> Result<(Vec<String>, u64), QueueError> {
    Ok(redis::pipe()
        .cmd(range)
        .arg(key)
        .arg(offset)
        .arg(offset + limit - 1)
        .cmd(count)
        .arg(key)
        .query_async(connection)
        .await?)
}

/// The ids in flight: as many as the workers of the queue run at once.
async fn running_ids(
    connection: &mut ConnectionManager,
    workers: &str,
    inflight: &str,
) -> Result<Vec<String>, QueueError> {
    let names: Vec<String> = redis::cmd("ZRANGE").arg(workers).arg(0).arg(-1).query_async(connection).await?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipe = redis::pipe();
    for name in &names {
        pipe.cmd("SMEMBERS").arg(format!("{inflight}:{name}"));
    }
    let sets: Vec<Vec<String>> = pipe.query_async(connection).await?;
    let mut ids: Vec<String> = sets.into_iter().flatten().collect();
    ids.sort_unstable();
    Ok(ids)
}

async fn views(redis: &QueueRedis, queue: Queue, ids: &[String]) -> Result<Vec<JobView>, QueueError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let keys = redis.keys(queue);
    let mut pipe = redis::pipe();
    for id in ids {
        pipe.cmd("HGET").arg(keys.data()).arg(id);
        pipe.cmd("HGETALL").arg(format!("{}:{id}", keys.meta()));
        pipe.cmd("ZSCORE").arg(keys.delayed_ms()).arg(id);
        pipe.cmd("ZSCORE").arg(keys.retry_ms()).arg(id);
    }
    let answers: Vec<redis::Value> = pipe.query_async(&mut redis.connection()).await?;
    let mut found = Vec::with_capacity(ids.len());
    for (id, answer) in ids.iter().zip(answers.chunks_exact(4)) {
        let data: Option<Vec<u8>> = redis::from_redis_value_ref(&answer[0]).map_err(redis::RedisError::from)?;
        let meta: HashMap<String, String> = redis::from_redis_value_ref(&answer[1]).map_err(redis::RedisError::from)?;
        let delayed: Option<f64> = redis::from_redis_value_ref(&answer[2]).map_err(redis::RedisError::from)?;
        let retrying: Option<f64> = redis::from_redis_value_ref(&answer[3]).map_err(redis::RedisError::from)?;
        let waiting = match (delayed, retrying) {
            (_, Some(_)) => JobState::Retrying,
            (Some(_), None) => JobState::Delayed,
            (None, None) => JobState::Ready,
        };
        // Trimmed between the two calls: it is gone.
        if let Some(data) = data {
            found.push(view(queue, id, &data, meta, waiting));
        }
    }
    Ok(found)
}

fn view(queue: Queue, id: &str, data: &[u8], mut meta: HashMap<String, String>, waiting: JobState) -> JobView {
    let number = |meta: &HashMap<String, String>, field: &str| meta.get(field).and_then(|text| text.parse().ok());
    let count = |meta: &HashMap<String, String>, field: &str| {
        meta.get(field).and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    let state = match meta.get("status").map(String::as_str) {
        Some("Done") => JobState::Done,
        Some("Killed") => JobState::Dead,
        Some("Running") => JobState::Running,
        _ => waiting,
    };
    JobView {
        queue,
        id: id.to_owned(),
        kind: meta.remove("kind"),
        state,
        attempts: count(&meta, "attempts"),
        starts: count(&meta, "starts"),
        enqueued_ms: number(&meta, "enqueued_ms"),
        ready_ms: number(&meta, "ready_ms"),
        started_ms: number(&meta, "started_ms"),
        ended_ms: number(&meta, "ended_ms"),
        reason: meta.remove("reason"),
        worker: meta.remove("running"),
        envelope: String::from_utf8_lossy(data).into_owned(),
    }
}
