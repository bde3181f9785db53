//! The queues as a worker sees them, by keys and envelopes that are read here.

use std::collections::HashMap;

use domain::queue::Queue;

use crate::lane::{Lane, SimulationError};
use crate::op::Job;

/// The jobs that wait in any queue, by keys and envelopes read here, in the order of their ids.
pub(crate) async fn waiting_jobs(lane: &mut Lane) -> Result<Vec<Job>, SimulationError> {
    let mut read = redis::pipe();
    for queue in Queue::ALL {
        let name = queue_name(&lane.prefix, queue);
        read.cmd("HGETALL").arg(format!("{name}:data"));
        read.cmd("ZRANGE").arg(format!("{name}:done_ms")).arg(0).arg(-1);
    }
    type Queues = Vec<redis::Value>;
    let answers: Queues = read.query_async(&mut lane.redis).await?;
    let mut jobs = Vec::new();
    for (queue, pair) in Queue::ALL.iter().zip(answers.chunks_exact(2)) {
        let data: HashMap<String, String> = redis::from_redis_value_ref(&pair[0]).map_err(redis::RedisError::from)?;
        let done: Vec<String> = redis::from_redis_value_ref(&pair[1]).map_err(redis::RedisError::from)?;
        for (id, envelope) in data.into_iter().filter(|(id, _)| !done.contains(id)) {
            let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap_or_default();
            let kind = envelope["kind"].as_str().unwrap_or_default().to_owned();
            jobs.push(Job { queue: queue.name(), id, kind, payload: envelope["payload"].clone() });
        }
    }
    jobs.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(jobs)
}

fn queue_name(prefix: &str, queue: Queue) -> String {
    format!("{}{}", prefix.replace(':', "-"), queue.name())
}

/// The job is done: it does not come again, and its id is known for a while. A job that Redis has lost is nobody's.
pub(crate) async fn acknowledge(lane: &mut Lane, job: &Job) -> Result<(), SimulationError> {
    let name = format!("{}{}", lane.prefix.replace(':', "-"), job.queue);
    let script = redis::Script::new(
        "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
        redis.call('LREM', KEYS[2], 0, ARGV[1])
        redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
        return 1",
    );
    let mut call = script.key(format!("{name}:data"));
    call.key(format!("{name}:active")).key(format!("{name}:done_ms")).arg(&job.id).arg(lane.redis_now_ms());
    let _: i64 = call.invoke_async(&mut lane.redis).await?;
    Ok(())
}
