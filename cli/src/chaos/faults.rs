//! What breaks, when and for how long: drawn from the seed alone, so that a run can be repeated.

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use simulation::proxy::Link;

/// The load has so long to itself before the first fault.
const FIRST_AFTER_MS: i64 = 3_000;
/// From one fault to the next, so that sixteen kinds fit into less than two minutes.
const STEP_MS: i64 = 6_000;
/// No fault begins so close to the end.
const QUIET_END_MS: i64 = 5_000;
/// The chance, in percent, that a second fault comes with one.
const COMPANION_PERCENT: u32 = 30;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// An API process gets SIGKILL, and is started again.
    ApiKilled,
    /// A worker gets SIGKILL, and is started again.
    WorkerKilled,
    /// Every worker gets SIGKILL at once.
    WorkersKilled,
    /// An API process gets SIGSTOP, and later SIGCONT.
    ApiFrozen,
    /// A worker gets SIGSTOP, and later SIGCONT.
    WorkerFrozen,
    /// One process loses its connections to one store.
    LinkCut,
    /// One process waits for one store.
    LinkFrozen,
    /// One process hears no answers of one store.
    LinkDeaf,
    /// All processes lose Redis: cut, frozen or deaf.
    RedisUnreachable,
    /// All processes lose Postgres.
    PostgresUnreachable,
    /// Redis gets SIGKILL and comes back with its file.
    RedisKilled,
    /// Redis gets SIGKILL and comes back without its file.
    RedisKilledEmpty,
    /// Redis gets SIGKILL and comes back without its file's end, as a failover would leave it.
    RedisKilledOlder,
    /// FLUSHALL.
    RedisFlushed,
    /// The postmaster gets SIGKILL, and is started again.
    PostgresKilled,
    /// Both stores get SIGKILL.
    BothKilled,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::ApiKilled,
        Self::WorkerKilled,
        Self::WorkersKilled,
        Self::ApiFrozen,
        Self::WorkerFrozen,
        Self::LinkCut,
        Self::LinkFrozen,
        Self::LinkDeaf,
        Self::RedisUnreachable,
        Self::PostgresUnreachable,
        Self::RedisKilled,
        Self::RedisKilledEmpty,
        Self::RedisKilledOlder,
        Self::RedisFlushed,
        Self::PostgresKilled,
        Self::BothKilled,
    ];

    /// The kind in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::ApiKilled => "API killed",
            Self::WorkerKilled => "worker killed",
            Self::WorkersKilled => "all workers killed",
            Self::ApiFrozen => "API frozen",
            Self::WorkerFrozen => "worker frozen",
            Self::LinkCut => "one link cut",
            Self::LinkFrozen => "one link frozen",
            Self::LinkDeaf => "one link deaf",
            Self::RedisUnreachable => "Redis unreachable",
            Self::PostgresUnreachable => "Postgres unreachable",
            Self::RedisKilled => "Redis killed",
            Self::RedisKilledEmpty => "Redis killed, empty",
            Self::RedisKilledOlder => "Redis killed, older",
            Self::RedisFlushed => "Redis flushed",
            Self::PostgresKilled => "Postgres killed",
            Self::BothKilled => "both stores killed",
        }
    }

    /// What it hurts: the colour of its band.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Self::ApiKilled | Self::WorkerKilled | Self::WorkersKilled | Self::ApiFrozen | Self::WorkerFrozen => {
                "process"
            }
            Self::LinkCut | Self::LinkFrozen | Self::LinkDeaf | Self::RedisUnreachable | Self::PostgresUnreachable => {
                "link"
            }
            Self::RedisKilled | Self::RedisKilledEmpty | Self::RedisKilledOlder | Self::RedisFlushed => "redis",
            Self::PostgresKilled | Self::BothKilled => "postgres",
        }
    }
}

/// Which store a link leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Store {
    /// Postgres.
    Postgres,
    /// Redis.
    Redis,
}

/// A fault that will happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// When, in ms after the load began.
    pub at_ms: i64,
    /// What.
    pub kind: FaultKind,
    /// To which process of those that it can happen to: a number to be taken modulo their count.
    pub target: usize,
    /// On which link.
    pub store: Store,
    /// What the link does where the kind leaves it open.
    pub link: Link,
    /// For how long.
    pub lasts_ms: i64,
}

/// The faults of a run, by time. Kinds come in shuffled rounds: each of them once before any comes again.
#[must_use]
pub fn plan(seed: u64, run_ms: i64) -> Vec<Fault> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    let mut round: Vec<FaultKind> = Vec::new();
    let mut at_ms = FIRST_AFTER_MS;
    while at_ms < run_ms - QUIET_END_MS {
        if round.is_empty() {
            round = FaultKind::ALL.to_vec();
            round.shuffle(&mut rng);
        }
        let Some(kind) = round.pop() else { break };
        faults.push(draw(&mut rng, at_ms + rng_span(seed, at_ms), kind));
        if rng.random_range(0..100) < COMPANION_PERCENT {
            let kind = FaultKind::ALL[rng.random_range(0..FaultKind::ALL.len())];
            let later = rng.random_range(0..1_500);
            faults.push(draw(&mut rng, at_ms + later, kind));
        }
        at_ms += STEP_MS;
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

/// Up to a second and a half, so that faults do not come by the clock.
fn rng_span(seed: u64, at_ms: i64) -> i64 {
    StdRng::seed_from_u64(seed ^ at_ms.unsigned_abs().rotate_left(32)).random_range(0..1_500)
}

fn draw(rng: &mut StdRng, at_ms: i64, kind: FaultKind) -> Fault {
    let lasts_ms = match kind {
        FaultKind::RedisFlushed => 0,
        // Beyond the leases of five and ten seconds now and then: a sleeper wakes when its work is another's.
        FaultKind::ApiFrozen | FaultKind::WorkerFrozen if rng.random_range(0..4) == 0 => {
            rng.random_range(8_000..12_000)
        }
        _ => rng.random_range(500..4_500),
    };
    Fault {
        at_ms,
        kind,
        target: rng.random_range(0..60),
        store: if rng.random_range(0..2) == 0 { Store::Postgres } else { Store::Redis },
        link: [Link::Cut, Link::Frozen, Link::Deaf][rng.random_range(0..3)],
        lasts_ms,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_breaks_the_same_things() {
        assert_eq!(plan(7, 120_000), plan(7, 120_000));
        assert_ne!(plan(7, 120_000), plan(8, 120_000));
    }

    #[test]
    fn in_two_minutes_every_kind_occurs() {
        for seed in 0..200 {
            let faults = plan(seed, 120_000);
            let kinds: BTreeSet<FaultKind> = faults.iter().map(|fault| fault.kind).collect();
            assert_eq!(kinds.len(), FaultKind::ALL.len(), "seed {seed}");
            assert!(faults.iter().all(|fault| (FIRST_AFTER_MS..120_000).contains(&fault.at_ms)), "seed {seed}");
        }
    }
}
