//! The end of a history: what broke is whole again, stopped processes go on or die, workers do what they do until
//! nothing is left to do, time passes beyond every deadline; then everything is looked at.
//!
//! Only what running workers would do by themselves is done: the sweep claims what is due in the index, jobs run that
//! are in the queues, a process that knows that it missed Redis asks for a warm-up. What no index entry, no job and no
//! process remembers stays as it is, and is found.

use domain::event::EventStatus;
use redis::AsyncCommands as _;

use crate::audit::{audit_redis, audit_settled};
use crate::history::World;
use crate::jobs::waiting_jobs;
use crate::lane::{PROCESSES, SimulationError};
use crate::op::Op;
use crate::oracle::{Violation, check_rows};
use crate::rng::Rng;

/// Looks until everything must be at rest.
const ROUNDS_MAX: usize = 30;
/// Longer than a gate and a lease, ms.
const ROUND_MS: i64 = 6_000;
/// Longer than any deadline and clocks that differ, ms.
const BEYOND_DEADLINES_MS: i64 = 600_000;

/// Brings a history to rest, and looks at everything. Returns what must not be.
///
/// # Errors
/// The simulation itself cannot go on.
pub(crate) async fn settle(world: &mut World<'_>, rng: &mut Rng) -> Result<Vec<Violation>, SimulationError> {
    world.note("everything is whole again");
    world.lane.heal_links();
    world.lane.provider.obey_from_now_on();
    // Redis was left alone for a moment after it failed.
    world.wait(1_000).await?;
    while !world.stopped.is_empty() {
        let number = rng.below(world.stopped.len());
        if let Err(violation) = world.go_on(number).await? {
            return Ok(vec![violation]);
        }
    }
    world.wait(1_000).await?;
    for process in 0..PROCESSES {
        if world.started[process]
            && let Err(violation) = world.flow(Op::StartWorker, process, None).await?
        {
            return Ok(vec![violation]);
        }
    }
    let status = world.lane.processes[0].stores.pg.find_event(world.event).await;
    if matches!(status, Ok(Some(event)) if event.status == EventStatus::Closed)
        && let Err(violation) = world.flow(Op::StartSale, 0, None).await?
    {
        return Ok(vec![violation]);
    }
    for beyond in [0, BEYOND_DEADLINES_MS] {
        if beyond > 0 {
            world.wait(beyond).await?;
        }
        if let Some(violation) = come_to_rest(world).await? {
            return Ok(vec![violation]);
        }
        // Where the clocks differ, what is over by one may still stand by the other.
        if beyond > 0 || world.shape.skew_ms == 0 {
            let mut found = audit(world).await?;
            found.retain(|violation| beyond > 0 || !may_wait_for_its_deadline(violation));
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }
    Ok(check_rows(&world.oracle, &world.lane.sql).await?)
}

/// Workers work until there is nothing to do, and for two rounds more.
async fn come_to_rest(world: &mut World<'_>) -> Result<Option<Violation>, SimulationError> {
    let mut quiet = 0;
    for round in 0..ROUNDS_MAX {
        let mut is_quiet = true;
        for process in 0..PROCESSES {
            if let Err(violation) = world.flow(Op::RepairMissed, process, None).await? {
                return Ok(Some(violation));
            }
        }
        let process = round % PROCESSES;
        if let Err(violation) = world.flow(Op::Sweep(world.replaced), process, None).await? {
            return Ok(Some(violation));
        }
        for job in waiting_jobs(world.lane).await? {
            is_quiet = false;
            let run = Op::Run { job, is_acknowledged: true };
            if let Err(violation) = world.flow(run, process, None).await? {
                return Ok(Some(violation));
            }
        }
        let (_, redis_now) = world.now();
        let due: u64 = world
            .lane
            .redis
            .zcount(format!("{}holdfast:deadlines", world.lane.prefix), "-inf", redis_now + ROUND_MS)
            .await?;
        is_quiet &= due == 0;
        quiet = if is_quiet { quiet + 1 } else { 0 };
        if quiet == 2 {
            return Ok(None);
        }
        world.wait(ROUND_MS).await?;
    }
    let jobs = waiting_jobs(world.lane).await?;
    let due: Vec<(String, f64)> =
        world.lane.redis.zrange_withscores(format!("{}holdfast:deadlines", world.lane.prefix), 0, -1).await?;
    // A provider that waits for its buyer until the window's end is at rest.
    if due.is_empty() && jobs.iter().all(|job| job.kind == "finalize-payment") {
        return Ok(None);
    }
    Ok(Some(Violation::new("I5", format!("it does not come to rest: jobs {jobs:?}, deadlines {due:?}"))))
}

/// What is set right at a deadline that has not come: an entry of the index for what is over already.
fn may_wait_for_its_deadline(violation: &Violation) -> bool {
    ["the deadline index has", "the keys that die"].iter().any(|known| violation.what.contains(known))
}

async fn audit(world: &mut World<'_>) -> Result<Vec<Violation>, SimulationError> {
    let installation = world.lane.installation();
    let mut findings = audit_settled(&installation, &world.lane.provider).await?;
    findings.extend(audit_redis(&installation).await?);
    let violation = |finding: String| {
        let (rule, what) = finding.split_once(": ").unwrap_or(("state", &finding));
        let is_rule = rule.len() == 2 && rule.starts_with('I');
        if is_rule { Violation::new(rule, what) } else { Violation::new("state", &*finding) }
    };
    Ok(findings.into_iter().map(violation).collect())
}
