//! What is measured beside the engine, in the same run: Redis's own announcement of expired keys that nobody touches,
//! and a scheduler that looks once a minute. And what is done to the engine meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use domain::runtime::clock::system_ms;
use sqlx::PgPool;

use super::Run;
use crate::compare;
use crate::ear::Ear;
use crate::table::Lateness;

const BARE: &str = "bench:bare:";
/// Bare keys of a run, at most.
const BARE_MAX: usize = 1_000;
const SCHEDULED: i64 = 1_000;

/// Keys like those of reservations, due at the same times, which nobody touches.
pub struct BareKeys {
    ear: Ear,
    heard: Arc<Mutex<Lateness>>,
    count: usize,
}

impl BareKeys {
    /// Sets them, and listens.
    pub async fn set(run: &Run, addr: &str) -> Result<Self> {
        let step = (run.seats.len() / BARE_MAX).max(1);
        let mut redis = compare::connect(run.engine.redis_url()).await?;
        let mut pipe = redis::pipe();
        let mut count = 0;
        for seat in run.seats.iter().step_by(step).take(BARE_MAX) {
            let key = format!("{BARE}{count}:{}", seat.deadline_ms);
            pipe.cmd("SET").arg(key).arg("PENDING").arg("PXAT").arg(seat.deadline_ms).ignore();
            count += 1;
        }
        let () = pipe.query_async(&mut redis).await?;
        let heard = Arc::new(Mutex::new(Lateness::new()?));
        let shared = Arc::clone(&heard);
        let hear = move |_channel: &str, text: &[u8], came_us: i64| {
            let key = std::str::from_utf8(text)?;
            if let Some((_, deadline_ms)) = key.strip_prefix(BARE).and_then(|rest| rest.split_once(':')) {
                let late = came_us - deadline_ms.parse::<i64>()? * 1_000;
                shared.lock().unwrap_or_else(PoisonError::into_inner).record(late)?;
            }
            Ok(())
        };
        let ear = Ear::listen(addr, "bench-bare", "__keyevent@0__:expired", Box::new(hear))?;
        Ok(Self { ear, heard, count })
    }

    /// Waits until all are announced, so many seconds after the last was due at most.
    pub async fn wait(&self, last_ms: i64, seconds: u64) {
        let until = last_ms + i64::try_from(seconds).unwrap_or(0) * 1_000;
        while system_ms() < until && self.announced() < self.count {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn announced(&self) -> usize {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(heard.count()).unwrap_or(usize::MAX)
    }

    /// How many there were, and how late those came that came.
    pub fn end(self) -> Result<(u64, Lateness)> {
        self.ear.end()?;
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((u64::try_from(self.count)?, std::mem::replace(&mut heard, Lateness::new()?)))
    }
}

/// Looks once a minute for what is due, as the cinema's first design did: rows of its own, due evenly in one minute.
pub async fn scheduler(pool: PgPool) -> Result<(u64, Lateness)> {
    const MINUTE: Duration = Duration::from_secs(60);
    sqlx::raw_sql(
        "CREATE TABLE bench_scheduled (id bigint PRIMARY KEY, due timestamptz NOT NULL, ended_at timestamptz)",
    )
    .execute(&pool)
    .await?;
    sqlx::query(
        "INSERT INTO bench_scheduled (id, due)
         SELECT n, now() + n * interval '60 seconds' / $1 FROM generate_series(0, $1 - 1) AS n",
    )
    .bind(SCHEDULED)
    .execute(&pool)
    .await?;
    // A scheduler's minute begins anywhere.
    tokio::time::sleep(MINUTE / 2).await;
    for look in 0..2 {
        if look > 0 {
            tokio::time::sleep(MINUTE).await;
        }
        sqlx::query("UPDATE bench_scheduled SET ended_at = clock_timestamp() WHERE ended_at IS NULL AND due <= now()")
            .execute(&pool)
            .await?;
    }
    let mut lateness = Lateness::new()?;
    let micros: Vec<i64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM ended_at - due) * 1000000)::bigint FROM bench_scheduled WHERE ended_at IS NOT NULL",
    )
    .fetch_all(&pool)
    .await?;
    for micros in micros {
        lateness.record(micros)?;
    }
    Ok((u64::try_from(SCHEDULED)?, lateness))
}

/// Puts so many keys into Redis that live for an hour, as sessions of other features do.
pub async fn fill(redis_url: &str, count: usize) -> Result<()> {
    const HOUR_MS: usize = 3_600_000;
    const CHUNK: usize = 5_000;
    let mut redis = compare::connect(redis_url).await?;
    for from in (0..count).step_by(CHUNK) {
        let mut pipe = redis::pipe();
        for number in from..(from + CHUNK).min(count) {
            pipe.cmd("SET").arg(format!("session:{number}")).arg("x").arg("PX").arg(HOUR_MS + number).ignore();
        }
        let () = pipe.query_async(&mut redis).await?;
    }
    Ok(())
}

/// Kills every subscription but that of the measurement itself, again and again.
pub fn cut_subscriptions(addr: &str, until_ms: i64) -> Result<()> {
    let mut redis = redis::Client::open(format!("redis://{addr}"))?.get_connection()?;
    while system_ms() < until_ms {
        let clients: String = redis::cmd("CLIENT").arg("LIST").arg("TYPE").arg("pubsub").query(&mut redis)?;
        for client in clients.lines().filter(|client| !client.contains(" name=bench-seats ")) {
            let id =
                client.strip_prefix("id=").and_then(|rest| rest.split(' ').next()).context("a client has no id")?;
            let _killed: i64 = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).query(&mut redis)?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
