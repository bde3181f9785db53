//! The deadline index and the keys that die at a deadline. The index is also the list of reservations whose picture in
//! Redis may differ from Postgres: an entry is written before a change commits and leaves only after the picture is
//! right, so a crash in between is repaired by the sweep.

use std::sync::LazyLock;

use ::redis::{Script, pipe};

use super::{Redis, RedisUnavailable};
use crate::id::ReservationId;
use crate::runtime::clock::monotonic_ms;

static SWEEP: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("sweep.lua")));
static CLAIM: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("claim.lua")));

/// By Redis's clock, since the sweep compares by it.
static SOON: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
        local at = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
        redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[2])",
    )
});

/// How soon what has passed by this server's clock, and not by Postgres's, is looked at again at the earliest, ms.
const LOOK_AGAIN_MS: i64 = 5;

/// How soon the sweep looks after a change whose caller may have died, ms.
const SOON_MS: i64 = 2_000;

/// A reservation claimed by a bridge or a sweep, and the deadline that it had.
pub type ClaimedDeadline = (ReservationId, i64);

/// A deadline as Postgres has it.
#[derive(Debug, Clone, Copy)]
pub struct MovedDeadline {
    /// Whose.
    pub reservation: ReservationId,
    /// When, ms.
    pub deadline_ms: i64,
    /// When it has passed by Postgres's clock, or earlier, on this process's monotonic clock, ms.
    pub over_at_ms: i64,
}

/// One look at the deadline index.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Redis's clock.
    pub now_ms: i64,
    /// The warm-up epoch; none = this Redis has been lost.
    pub epoch: Option<String>,
    /// Reservations that came due since the last look: their keys want touching.
    pub due: Vec<ReservationId>,
    /// Reservations claimed for this caller.
    pub claimed: Vec<ClaimedDeadline>,
    /// From where the next look goes on: what came due by then is in `due`, ms.
    pub looked_until_ms: i64,
}

/// The spans of one sweep.
#[derive(Debug, Clone, Copy)]
pub struct SweepSpans {
    /// Touch what came due after this, ms.
    pub since_ms: i64,
    /// Claim what is overdue by this, ms.
    pub grace_ms: i64,
    /// For so long, ms.
    pub lease_ms: i64,
    /// At most so many of each. None leaves everything as it is.
    pub most: usize,
}

impl Redis {
    /// Registers deadlines: the index entry and the key that dies then.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn register_deadlines(&self, deadlines: &[ClaimedDeadline]) -> Result<(), RedisUnavailable> {
        self.register(deadlines, &[]).await
    }

    /// Registers deadlines of whose picture nothing is known: what the sweep is to look at sooner stays so. An entry
    /// before its deadline is a change whose process may have died before it showed it.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn register_deadlines_at_the_latest(
        &self,
        deadlines: &[ClaimedDeadline],
    ) -> Result<(), RedisUnavailable> {
        self.register(deadlines, &["LT"]).await
    }

    async fn register(&self, deadlines: &[ClaimedDeadline], rule: &[&str]) -> Result<(), RedisUnavailable> {
        if deadlines.is_empty() {
            return Ok(());
        }
        let offset = self.clock().offset_ms();
        let index = self.keys().deadlines();
        let mut write = pipe();
        for (reservation, deadline_ms) in deadlines {
            write.cmd("ZADD").arg(&index).arg(rule).arg(*deadline_ms).arg(reservation.to_string()).ignore();
            let key = self.keys().expired(*reservation);
            // The server's own clock expires the key: the tests' offset is taken out again.
            write.cmd("SET").arg(key).arg("PENDING").arg("PXAT").arg((deadline_ms - offset).max(1)).ignore();
        }
        self.call(async |redis| write.query_async(redis).await).await
    }

    /// Moves deadlines that are registered. Returns those that are not: they are over and forgotten, or Redis was lost, and
    /// only Postgres knows which. The caller must then forget them or register them.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn move_deadlines(&self, deadlines: &[MovedDeadline]) -> Result<Vec<ReservationId>, RedisUnavailable> {
        if deadlines.is_empty() {
            return Ok(Vec::new());
        }
        let (index, offset) = (self.keys().deadlines(), self.clock().offset_ms());
        let mut moving = pipe();
        moving.cmd("TIME");
        for MovedDeadline { reservation, deadline_ms, .. } in deadlines {
            let (id, key) = (reservation.to_string(), self.keys().expired(*reservation));
            // The key first: where this breaks off in between, the entry still comes due early and all is looked at again.
            moving.cmd("SET").arg(key).arg("PENDING").arg("PXAT").arg((deadline_ms - offset).max(1)).ignore();
            moving.cmd("ZADD").arg(&index).arg("XX").arg(*deadline_ms).arg(&id).ignore();
            moving.cmd("ZSCORE").arg(&index).arg(id);
        }
        let answer = self.call(async |redis| {
            let mut answers: Vec<::redis::Value> = moving.query_async(redis).await?;
            let scores = answers.split_off(1.min(answers.len()));
            let time: ((i64, i64),) = ::redis::from_redis_value(::redis::Value::Array(answers))?;
            Ok((time.0, scores))
        });
        let (time, scores) = answer.await?;
        let now_ms = time.0 * 1_000 + time.1 / 1_000 + offset;
        // Where this server's clock is ahead, what has passed here has not passed in Postgres: it comes due when Postgres's
        // time is over, or the sweep would find it again at once, and again.
        let passed: Vec<_> = deadlines.iter().filter(|moved| moved.deadline_ms <= now_ms).collect();
        if !passed.is_empty() {
            let mut putting_off = pipe();
            for moved in passed {
                let (id, left_ms) = (moved.reservation.to_string(), moved.over_at_ms - monotonic_ms());
                putting_off.cmd("ZADD").arg(&index).arg("XX").arg(now_ms + left_ms.max(LOOK_AGAIN_MS)).arg(id).ignore();
            }
            let _done: () = self.call(async |redis| putting_off.query_async(redis).await).await?;
        }
        let missing = deadlines.iter().zip(scores).filter(|(_, score)| *score == ::redis::Value::Nil);
        Ok(missing.map(|(moved, _)| moved.reservation).collect())
    }

    /// Asks the sweep to look at a reservation, or an event's jobs, soon, whatever becomes of this process: said before
    /// a change commits.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn mark_unsettled(&self, id: uuid::Uuid) -> Result<(), RedisUnavailable> {
        let mut call = SOON.key(self.keys().deadlines());
        call.arg(self.clock().offset_ms() + SOON_MS).arg(id.to_string());
        self.call(async |redis| call.invoke_async(redis).await).await
    }

    /// Forgets deadlines: what they were for is over, and Redis shows it.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn forget_deadlines(&self, reservations: &[ReservationId]) -> Result<(), RedisUnavailable> {
        if reservations.is_empty() {
            return Ok(());
        }
        let index = self.keys().deadlines();
        let mut write = pipe();
        for reservation in reservations {
            write.cmd("ZREM").arg(&index).arg(reservation.to_string()).ignore();
            write.cmd("DEL").arg(self.keys().expired(*reservation)).ignore();
        }
        self.call(async |redis| write.query_async(redis).await).await
    }

    /// One look at the index: what came due, and what this caller has claimed.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn sweep(&self, spans: SweepSpans) -> Result<Sweep, RedisUnavailable> {
        let mut call = SWEEP.key(self.keys().deadlines());
        call.key(self.keys().epoch())
            .arg(self.clock().offset_ms())
            .arg(spans.since_ms)
            .arg(spans.grace_ms)
            .arg(spans.lease_ms)
            .arg(spans.most);
        type Answer = (String, String, Vec<String>, Vec<String>, String);
        let (now, epoch, due, claimed, looked_until): Answer =
            self.call(async |redis| call.invoke_async(redis).await).await?;
        Ok(Sweep {
            now_ms: now.parse().unwrap_or_default(),
            epoch: (!epoch.is_empty()).then_some(epoch),
            due: due.iter().filter_map(|id| id.parse().ok()).collect(),
            claimed: claimed_deadlines(&claimed),
            looked_until_ms: whole_ms(&looked_until).unwrap_or_default(),
        })
    }

    /// Touches the keys of reservations that came due: Redis then expires them at once and tells every bridge.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn touch_expired(&self, reservations: &[ReservationId]) -> Result<(), RedisUnavailable> {
        if reservations.is_empty() {
            return Ok(());
        }
        let mut touch = pipe();
        for reservation in reservations {
            touch.cmd("EXISTS").arg(self.keys().expired(*reservation)).ignore();
        }
        self.call(async |redis| touch.query_async(redis).await).await
    }

    /// Claims what a bridge heard of. Returns Redis's clock and those that are due and nobody else's.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn claim_deadlines(
        &self,
        heard: &[ReservationId],
        lease_ms: i64,
    ) -> Result<(i64, Vec<ClaimedDeadline>), RedisUnavailable> {
        let mut call = CLAIM.key(self.keys().deadlines());
        call.arg(self.clock().offset_ms()).arg(lease_ms);
        for reservation in heard {
            call.arg(reservation.to_string());
        }
        let answer: Vec<String> = self.call(async |redis| call.invoke_async(redis).await).await?;
        let (now, claimed) = answer.split_first().map_or(("0", &[][..]), |(now, rest)| (now.as_str(), rest));
        Ok((now.parse().unwrap_or_default(), claimed_deadlines(claimed)))
    }

    /// How many reservations are in the index, and how many of them were due more than `late_ms` ago.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn count_deadlines(&self, late_ms: i64) -> Result<(u64, u64), RedisUnavailable> {
        let index = self.keys().deadlines();
        let now = self.now_ms().await?;
        let mut read = pipe();
        read.cmd("ZCARD").arg(&index).cmd("ZCOUNT").arg(&index).arg("-inf").arg(now - late_ms);
        self.call(async |redis| read.query_async(redis).await).await
    }
}

/// Ids and scores in turn, as the scripts return them.
fn claimed_deadlines(pairs: &[String]) -> Vec<ClaimedDeadline> {
    let deadline = |pair: &[String]| Some((pair[0].parse().ok()?, whole_ms(&pair[1])?));
    pairs.chunks_exact(2).filter_map(deadline).collect()
}

/// A score as Redis writes it.
fn whole_ms(score: &str) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "a score is whole milliseconds, far below 2^53")]
    score.parse::<f64>().ok().map(|score| score as i64)
}
