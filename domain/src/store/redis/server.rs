//! What the Redis server itself must be like, whether it is still the one we filled, and who is filling it.

use std::sync::LazyLock;

use ::redis::{Script, cmd};

use super::{Redis, RedisUnavailable};

/// What a look at the server's settings found. Each warning says what to set and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerCheck {
    /// Whether expired keys are announced: without it the sweep alone expires reservations.
    pub announces_expiries: bool,
    /// For the log and readiness.
    pub warnings: Vec<String>,
}

/// This Redis is already written in another mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this Redis is written as «{found}», these settings say «{wanted}»: use the same --redis-prefix and \
     --redis-cluster-tags in every process, or stop all, delete this installation's keys, and start again"
)]
pub struct LayoutConflict {
    /// What the Redis says.
    pub found: String,
    /// What the settings say.
    pub wanted: String,
}

/// Why a Redis cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClaimLayoutError {
    /// Another mode.
    #[error(transparent)]
    Conflict(#[from] LayoutConflict),
    /// It did not answer.
    #[error(transparent)]
    Unavailable(#[from] RedisUnavailable),
}

impl Redis {
    /// Checks `maxmemory-policy`, `notify-keyspace-events` and `hz`; sets them where `configure` says so and the server
    /// allows it. CONFIG is often forbidden on a managed server: that is a warning, never a failure.
    ///
    /// # Errors
    /// [`RedisUnavailable`] where the server does not answer at all.
    pub async fn check_server(&self, configure: bool) -> Result<ServerCheck, RedisUnavailable> {
        self.probe().await?;
        let mut check = ServerCheck::default();
        let Some(policy) = self.config_get("maxmemory-policy").await else {
            check.warnings.push(
                "CONFIG is forbidden on this Redis: make sure that maxmemory-policy is noeviction, notify-keyspace-events \
                 has E and x, and hz is 100. Expiries run on the deadline sweep meanwhile"
                    .to_owned(),
            );
            return Ok(check);
        };
        if policy != "noeviction" && !(configure && self.config_set("maxmemory-policy", "noeviction").await) {
            check.warnings.push(format!(
                "maxmemory-policy is {policy}: Redis may throw away seats, deadlines and jobs. Set it to noeviction"
            ));
        }
        let events = self.config_get("notify-keyspace-events").await.unwrap_or_default();
        check.announces_expiries = announces_expiries(&events);
        if !check.announces_expiries && configure {
            // Other features' flags stay.
            check.announces_expiries = self.config_set("notify-keyspace-events", &format!("{events}Ex")).await;
        }
        if !check.announces_expiries {
            check.warnings.push(format!(
                "expiry bridge: notifications off (notify-keyspace-events is {events:?}). Set it to Ex; until then the \
                 deadline sweep expires reservations, about 0.3 s later"
            ));
        }
        let hz: u32 = self.config_get("hz").await.and_then(|hz| hz.parse().ok()).unwrap_or(0);
        if hz < 100 && !(configure && self.config_set("hz", "100").await) {
            check.warnings.push(format!("hz is {hz}: set it to 100, so that Redis tidies expired keys often"));
        }
        Ok(check)
    }

    /// Writes down in which mode this Redis is used, or finds that it is used in another.
    ///
    /// # Errors
    /// [`ClaimLayoutError`].
    pub async fn claim_layout(&self) -> Result<(), ClaimLayoutError> {
        let wanted = self.keys().mode();
        let key = self.keys().layout();
        let found = self.call(async |redis| {
            let _set: Option<String> = cmd("SET").arg(&key).arg(&wanted).arg("NX").query_async(redis).await?;
            cmd("GET").arg(&key).query_async::<Option<String>>(redis).await
        });
        let found = found.await?.unwrap_or_else(|| wanted.clone());
        if found == wanted { Ok(()) } else { Err(LayoutConflict { found, wanted }.into()) }
    }

    /// Names this run of this server: it changes when Redis restarts or another takes over, both of which may have
    /// lost writes. None where INFO is forbidden.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn server_run(&self) -> Result<Option<String>, RedisUnavailable> {
        let read = |section: &'static str| async move {
            self.call(async |redis| Ok(cmd("INFO").arg(section).query_async::<String>(redis).await.ok())).await
        };
        let (Some(server), Some(replication)) = (read("server").await?, read("replication").await?) else {
            return Ok(None);
        };
        let field = |text: &str, name: &str| text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        let run = field(&server, "run_id:").unwrap_or_default();
        let replication = field(&replication, "master_replid:").unwrap_or_default();
        Ok(Some(format!("{run}/{replication}")))
    }

    /// The warm-up epoch; none = this Redis has been lost.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn epoch(&self) -> Result<Option<String>, RedisUnavailable> {
        let key = self.keys().epoch();
        self.call(async |redis| cmd("GET").arg(&key).query_async(redis).await).await
    }

    /// Declares Redis rebuilt, at the end of `holder`'s warm-up. False where the lease is no longer its own: Redis was
    /// lost meanwhile, or another has begun, and what was rebuilt may not be there.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn set_epoch(&self, holder: &str) -> Result<bool, RedisUnavailable> {
        static SET: LazyLock<Script> = LazyLock::new(|| {
            Script::new(
                "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
                redis.call('SET', KEYS[2], ARGV[1])
                return 1",
            )
        });
        let mut call = SET.key(self.keys().warm_up_lease());
        call.key(self.keys().epoch()).arg(holder);
        self.call(async |redis| call.invoke_async(redis).await).await
    }

    /// Becomes the one who warms up, for `lease_ms`. False where another is.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn lease_warm_up(&self, holder: &str, lease_ms: i64) -> Result<bool, RedisUnavailable> {
        let key = self.keys().warm_up_lease();
        self.call(async |redis| {
            let taken: Option<String> =
                cmd("SET").arg(&key).arg(holder).arg("NX").arg("PX").arg(lease_ms).query_async(redis).await?;
            Ok(taken.is_some())
        })
        .await
    }

    /// Stays the one who warms up, and says how far it is. False where the lease is not `holder`'s any more, even if it is nobody's: a Redis that
    /// lost it has lost what was rebuilt as well.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn renew_warm_up(&self, holder: &str, lease_ms: i64, progress: &str) -> Result<bool, RedisUnavailable> {
        static RENEW: LazyLock<Script> = LazyLock::new(|| {
            Script::new(
                "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
                redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[2])
                return redis.call('PEXPIRE', KEYS[1], ARGV[2])",
            )
        });
        let mut call = RENEW.key(self.keys().warm_up_lease());
        call.key(self.keys().warm_up_progress()).arg(holder).arg(lease_ms).arg(progress);
        self.call(async |redis| call.invoke_async(redis).await).await
    }

    /// How far the warm-up is, as the one who warms up said it; none while nobody does.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn warm_up_progress(&self) -> Result<Option<String>, RedisUnavailable> {
        let key = self.keys().warm_up_progress();
        self.call(async |redis| cmd("GET").arg(&key).query_async(redis).await).await
    }

    /// Stops being the one who warms up.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn release_warm_up(&self, holder: &str) -> Result<(), RedisUnavailable> {
        let (key, progress) = (self.keys().warm_up_lease(), self.keys().warm_up_progress());
        self.call(async |redis| {
            let current: Option<String> = cmd("GET").arg(&key).query_async(redis).await?;
            let is_own = current.as_deref() == Some(holder);
            if is_own { cmd("DEL").arg(&key).arg(&progress).query_async(redis).await } else { Ok(()) }
        })
        .await
    }

    /// Marks a caller's idempotency key as being worked on. False where it already is.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn begin_request(&self, caller: &str, key: &str) -> Result<bool, RedisUnavailable> {
        const IN_PROGRESS_MS: i64 = 10_000;
        let key = self.keys().in_progress(caller, key);
        self.call(async |redis| {
            let set: Option<String> =
                cmd("SET").arg(&key).arg("1").arg("NX").arg("PX").arg(IN_PROGRESS_MS).query_async(redis).await?;
            Ok(set.is_some())
        })
        .await
    }

    /// Ends what [`Redis::begin_request`] began.
    ///
    /// # Errors
    /// [`RedisUnavailable`]; the mark then ends by itself.
    pub async fn end_request(&self, caller: &str, key: &str) -> Result<(), RedisUnavailable> {
        let key = self.keys().in_progress(caller, key);
        self.call(async |redis| cmd("DEL").arg(&key).query_async(redis).await).await
    }

    async fn config_get(&self, name: &str) -> Option<String> {
        let pair: Vec<String> = self
            .call(async |redis| Ok(cmd("CONFIG").arg("GET").arg(name).query_async(redis).await.unwrap_or_default()))
            .await
            .ok()?;
        pair.into_iter().nth(1)
    }

    async fn config_set(&self, name: &str, value: &str) -> bool {
        let set = self.call(async |redis| {
            Ok(cmd("CONFIG").arg("SET").arg(name).arg(value).query_async::<String>(redis).await.is_ok())
        });
        set.await.unwrap_or(false)
    }
}

/// Whether a value of `notify-keyspace-events` announces expired keys on the keyevent channel.
fn announces_expiries(flags: &str) -> bool {
    flags.contains('E') && (flags.contains('x') || flags.contains('A'))
}

#[cfg(test)]
mod tests {
    use super::announces_expiries;

    #[test]
    fn expiries_are_announced_by_e_with_x_or_a() {
        for flags in ["Ex", "xE", "AKE", "KEA"] {
            assert!(announces_expiries(flags), "{flags}");
        }
        for flags in ["", "E", "x", "Kx", "KA"] {
            assert!(!announces_expiries(flags), "{flags}");
        }
    }
}
