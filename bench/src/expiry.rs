//! Expiry's clock: how long after a deadline the next buyer gets the seat, the seat change is told, and Postgres is
//! tidy; and beside them what Redis's own announcement and a scheduler once a minute give.
//!
//! The reservations are written by SQL and shown by a warm-up, their deadlines evenly in one second; everything that
//! happens to them is done by real processes.

mod beside;
mod buyers;
mod heard;
mod watched;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use domain::flow::warm_up::{WarmUpError, warm_up};
use domain::runtime::clock::system_ms;
use sqlx::PgPool;
use tokio::time::sleep;
use uuid::Uuid;

use crate::engine::Engine;
use crate::seed::{self, Pending, PendingSeat};
use crate::table::{self, Lateness, Row};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// 1,000 due in one second, every worker dead: the next buyers alone
    NoWorker,
    /// 1,000 due in one second
    Second,
    /// The same among a million keys with a long time to live
    MillionKeys,
    /// The same, every subscription of every process cut for 5 s from before the first deadline
    BridgeCut,
    /// The same, two workers, one of them killed in the middle
    WorkerKilled,
    /// 100,000 due in one second
    HundredThousand,
}

/// Arguments of `bench expiry`.
#[derive(Debug, Clone, Args)]
pub struct ExpiryArgs {
    /// Which to measure [default: all]
    #[arg(long, value_enum)]
    scenario: Vec<Scenario>,
    /// A line of JSON for each figure
    #[arg(long)]
    json: bool,
    /// How long to wait for what Redis itself announces, seconds
    #[arg(long, default_value_t = 60)]
    bare_wait: u64,
    /// Leave out the scheduler, which takes a minute and a half
    #[arg(long)]
    no_scheduler: bool,
}

/// Next buyers in each run.
const BUYERS: usize = 100;
/// The deadlines of a run lie in so many ms.
const SPAN_MS: i64 = 1_000;
/// Seats of a block.
const BLOCK: usize = 500;
/// How long a run waits for what has not come.
const LIMIT: Duration = Duration::from_secs(60);

impl Scenario {
    fn reservations(self) -> usize {
        match self {
            Self::HundredThousand => 100_000,
            Self::NoWorker | Self::Second | Self::MillionKeys | Self::BridgeCut | Self::WorkerKilled => 1_000,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::NoWorker => "1,000 due in one second, no worker runs",
            Self::Second => "1,000 due in one second",
            Self::MillionKeys => "1,000 due in one second among 1,000,000 keys that live for an hour",
            Self::BridgeCut => "1,000 due in one second, all subscriptions cut for 5 s",
            Self::WorkerKilled => "1,000 due in one second, one of two workers killed in the middle",
            Self::HundredThousand => "100,000 due in one second",
        }
    }
}

/// Measures, and prints tables.
///
/// # Errors
/// The engine does not start, or a request fails that must not.
pub async fn run(args: &ExpiryArgs) -> Result<()> {
    let all = Scenario::value_variants();
    let chosen = if args.scenario.is_empty() { all } else { &args.scenario };
    for &scenario in chosen {
        let rows = measure(scenario, args).await.with_context(|| format!("{scenario:?}"))?;
        table::print(&format!("{} ({})", scenario.title(), table::load()), &rows, args.json);
    }
    Ok(())
}

/// What a run is about to see expire.
struct Run {
    engine: Engine,
    pool: PgPool,
    event: Uuid,
    /// The first deadline, ms.
    from_ms: i64,
    /// Seats that the workers free.
    seats: Vec<PendingSeat>,
    /// Seats that somebody is waiting for.
    wanted: Vec<PendingSeat>,
}

async fn measure(scenario: Scenario, args: &ExpiryArgs) -> Result<Vec<Row>> {
    let mut run = prepare(scenario).await?;
    let addr = run.engine.redis_url().trim_start_matches("redis://").to_owned();
    let bare = beside::BareKeys::set(&run, &addr).await?;
    let scheduler =
        (scenario == Scenario::Second && !args.no_scheduler).then(|| tokio::spawn(beside::scheduler(run.pool.clone())));
    let changes = heard::SeatChanges::follow(&addr, &run.seats)?;
    let viewer = watched::Viewer::watch(&run.engine.addr, run.event, &run.seats)?;
    let used = run.engine.processor_seconds()?;
    let buyers = buyers::send(&run);
    disturb(scenario, &mut run, &addr).await?;
    let (at_deadline, answered) = buyers.await?;
    let buyers = u64::try_from(run.wanted.len())?;
    let first = format!("{} of {buyers} at the first attempt", at_deadline.first);
    let mut rows = vec![
        row("next buyer: attempt that succeeded was sent", buyers, at_deadline.lateness, first),
        row("next buyer: answer was there", buyers, answered, String::new()),
    ];
    let due = u64::try_from(run.seats.len())?;
    viewer.wait(LIMIT).await;
    let (seen, messages) = viewer.end()?;
    rows.push(row("seat change on a stream of the whole house", due, seen, format!("{messages} messages")));
    if scenario != Scenario::NoWorker {
        changes.wait(LIMIT).await;
        let changes = changes.end()?;
        rows.push(row("seat change on the block's channel", due, changes.lateness, changes.note));
        wait_until_tidy(&run).await?;
        let now_used = run.engine.processor_seconds()?;
        let spent: Vec<String> =
            now_used.iter().map(|(part, seconds)| format!("{part} {:.1} s", seconds - used[part])).collect();
        let (tidy, left) = tidied(&run).await?;
        let note = format!("{left} claims left; processor time: {}", spent.join(", "));
        rows.push(row("Postgres tidy: cancelled, claim gone", due, tidy, note));
        bare.wait(run.from_ms + SPAN_MS, args.bare_wait).await;
    }
    let (count, lateness) = bare.end()?;
    let note = format!("waited {} s", (system_ms() - run.from_ms) / 1_000);
    rows.push(row("beside it: Redis's own announcement", count, lateness, note));
    if let Some(scheduler) = scheduler {
        let (count, lateness) = scheduler.await??;
        let note = "a real minute, deadlines spread over it".to_owned();
        rows.push(row("beside it: a scheduler once a minute", count, lateness, note));
    }
    Ok(rows)
}

fn row(what: &str, expected: u64, lateness: Lateness, note: String) -> Row {
    Row { what: what.to_owned(), expected, lateness, note }
}

async fn prepare(scenario: Scenario) -> Result<Run> {
    let mut engine = Engine::prepare().await?;
    engine.note_commits()?;
    let worker = engine.start_worker()?;
    if scenario == Scenario::WorkerKilled {
        engine.start_worker()?;
    }
    engine.start_api().await?;
    let count = scenario.reservations() + BUYERS;
    let event: Uuid = engine.open_event(count.next_multiple_of(BLOCK), BLOCK).await?.id.parse()?;
    let pool = seed::connect(engine.database_url()).await?;
    if scenario == Scenario::MillionKeys {
        beside::fill(engine.redis_url(), 1_000_000).await?;
    }
    // Time to write them and to show them in Redis.
    let from_ms = system_ms() + 10_000 + i64::try_from(count)? / 2;
    let pending = Pending { event, first: 0, count: i64::try_from(count)?, from_ms, span_ms: SPAN_MS };
    seed::hold_by_sql(&pool, pending).await?;
    let stores = engine.stores()?;
    loop {
        match warm_up(&stores).await {
            Ok(_) => break,
            Err(WarmUpError::Elsewhere) => sleep(Duration::from_millis(50)).await,
            Err(error) => return Err(error.into()),
        }
    }
    engine.settle()?;
    if scenario == Scenario::NoWorker {
        engine.kill_worker(worker)?;
    }
    let all = seed::pending_seats(&pool, event).await?;
    let every = all.len() / BUYERS;
    let (mut seats, mut wanted) = (Vec::new(), Vec::new());
    for (index, seat) in all.into_iter().enumerate() {
        if index % every == 0 && wanted.len() < BUYERS { wanted.push(seat) } else { seats.push(seat) }
    }
    if system_ms() > from_ms - 1_500 {
        bail!("the machine is too slow: the deadlines came before everything was in place");
    }
    Ok(Run { engine, pool, event, from_ms, seats, wanted })
}

/// What goes wrong in a run.
async fn disturb(scenario: Scenario, run: &mut Run, addr: &str) -> Result<()> {
    match scenario {
        Scenario::NoWorker | Scenario::Second | Scenario::MillionKeys | Scenario::HundredThousand => {}
        Scenario::BridgeCut => {
            sleep_until(run.from_ms - 500).await;
            let (addr, until_ms) = (addr.to_owned(), run.from_ms + 4_500);
            tokio::task::spawn_blocking(move || beside::cut_subscriptions(&addr, until_ms)).await??;
        }
        Scenario::WorkerKilled => {
            sleep_until(run.from_ms + SPAN_MS / 2).await;
            run.engine.kill_worker(0)?;
        }
    }
    Ok(())
}

async fn sleep_until(at_ms: i64) {
    sleep(Duration::from_millis(u64::try_from(at_ms - system_ms()).unwrap_or(0))).await;
}

async fn wait_until_tidy(run: &Run) -> Result<()> {
    let until = system_ms() + i64::try_from(LIMIT.as_millis())?;
    while system_ms() < until {
        let left = sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM seat_claims WHERE event_id = $1 AND state = 'held' AND expires_at <= now()",
        );
        if left.bind(run.event).fetch_one(&run.pool).await? == 0 {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// When the transactions committed that cancelled the reservations; and how many of their claims are left.
async fn tidied(run: &Run) -> Result<(Lateness, i64)> {
    let mut lateness = Lateness::new()?;
    let ids: Vec<Uuid> = run.seats.iter().map(|seat| seat.reservation).collect();
    let micros = sqlx::query_scalar::<_, i64>(
        "SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin) - expires_at) * 1000000)::bigint FROM reservations
         WHERE event_id = $1 AND id = ANY ($2) AND status = 'CANCELLED' AND cancel_reason = 'expired'",
    );
    for micros in micros.bind(run.event).bind(&ids).fetch_all(&run.pool).await? {
        lateness.record(micros)?;
    }
    let left = sqlx::query_scalar::<_, i64>(
        "SELECT count(*) FROM seat_claims WHERE event_id = $1 AND reservation_id = ANY ($2)",
    );
    Ok((lateness, left.bind(run.event).bind(&ids).fetch_one(&run.pool).await?))
}
