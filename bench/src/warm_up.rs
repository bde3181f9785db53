//! Warm-up at size: a million PENDING reservations, an empty Redis, one worker; then the same under load, with two
//! workers at once, killed in the middle and started again.

use std::collections::HashMap;
use std::fs::File;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use domain::runtime::clock::system_ms;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::sleep;
use uuid::Uuid;

use crate::client::{Connection, get};
use crate::compare::{Comparison, Depth, compare_event};
use crate::engine::{Engine, memory_of};
use crate::load::{Field, Kind, Load, count};
use crate::seed::{self, Pending};
use crate::{compare, say, table};

/// Arguments of `bench warm-up`.
#[derive(Debug, Clone, Copy, Args)]
pub struct WarmUpArgs {
    /// PENDING reservations, of one seat each, in events of up to 200,000 seats
    #[arg(long, default_value_t = 1_000_000)]
    reservations: usize,
    /// A line of JSON for each run
    #[arg(long)]
    json: bool,
}

const EVENT_SEATS: usize = 200_000;
const BLOCK: usize = 500;
/// Seats on sale beside, for the load.
const LOAD_SEATS: usize = 50_000;
const LIMIT: Duration = Duration::from_secs(1_200);

/// What is warmed up.
struct House {
    engine: Engine,
    pool: PgPool,
    /// The events whose seats are held.
    events: Vec<Uuid>,
    /// The event that the load works on.
    beside: Uuid,
    /// A worker's memory with nothing on sale, MB.
    idle: f64,
}

/// A worker that is watched.
struct Watched {
    worker: usize,
    ops: String,
}

/// Measures, and prints what it found.
///
/// # Errors
/// The engine does not start, or Redis is not what Postgres is at the end.
pub async fn run(args: WarmUpArgs) -> Result<()> {
    let mut house = build(args.reservations).await?;
    say(&format!("{} reservations are PENDING; an idle worker has {:.0} MB", args.reservations, house.idle));
    alone(&mut house, args).await?;
    under_load(&mut house, args).await?;
    house.engine.stop()
}

async fn build(reservations: usize) -> Result<House> {
    let mut engine = Engine::prepare().await?;
    engine.start_api().await?;
    let watched = start(&mut engine)?;
    wait_for_epoch(&engine).await?;
    sleep(Duration::from_secs(2)).await;
    let idle = memory_of(engine.worker_id(watched.worker)?, "VmRSS:")?;
    engine.kill_worker(watched.worker)?;
    let pool = seed::connect(engine.database_url()).await?;
    let mut events = Vec::new();
    let (mut left, from_ms) = (reservations, system_ms() + 7_200_000);
    while left > 0 {
        let count = left.min(EVENT_SEATS);
        let event = create(&mut engine, count).await?;
        let count = i64::try_from(count)?;
        seed::hold_by_sql(&pool, Pending { event, first: 0, count, from_ms, span_ms: 600_000 }).await?;
        events.push(event);
        left -= usize::try_from(count)?;
    }
    let beside = create(&mut engine, LOAD_SEATS).await?;
    // Nobody opens them: that would write a million buckets which are to be lost at once.
    sqlx::query("UPDATE events SET status = 'on_sale', revision = revision + 1").execute(&pool).await?;
    engine.settle()?;
    Ok(House { engine, pool, events, beside, idle })
}

async fn create(engine: &mut Engine, seats: usize) -> Result<Uuid> {
    let mut csv = String::from("block,row,column,category,neighbours\n");
    for seat in 0..seats {
        csv.push_str(&format!("{},{},{},A,-\n", seat / BLOCK + 1, seat % BLOCK / 10 + 1, seat % 10 + 1));
    }
    Ok(engine.create_event(&csv, &json!({ "A": 10_000 })).await?.parse()?)
}

fn start(engine: &mut Engine) -> Result<Watched> {
    let ops = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let log = File::options().create(true).append(true).open(log_of(engine))?;
    Ok(Watched { worker: engine.start_watched_worker(log, &ops)?, ops })
}

fn log_of(engine: &Engine) -> std::path::PathBuf {
    engine.folder().join("worker.log")
}

async fn flush(engine: &Engine) -> Result<()> {
    let mut redis = compare::connect(engine.redis_url()).await?;
    Ok(redis::cmd("FLUSHALL").query_async(&mut redis).await?)
}

async fn epoch(engine: &Engine) -> Result<Option<String>> {
    Ok(engine.stores()?.redis.epoch().await?)
}

async fn wait_for_epoch(engine: &Engine) -> Result<()> {
    let began = Instant::now();
    while epoch(engine).await?.is_none() {
        if began.elapsed() > LIMIT {
            bail!("Redis is not warmed up after {LIMIT:?}");
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// What operators see of a warm-up: the note beside `warm_up` in `/readyz?verbose`.
async fn note(ops: &str) -> Option<String> {
    let mut connection = Connection::open(ops).await.ok()?;
    let answer = connection.send(&get("/readyz?verbose")).await.ok()?;
    let report: Value = serde_json::from_slice(answer.body).ok()?;
    let checks = report["checks"].as_array()?;
    let check = checks.iter().find(|check| check["name"] == "warm_up")?;
    Some(check["note"].as_str()?.to_owned())
}

async fn compare_all(house: &House) -> Result<Comparison> {
    let mut all = Comparison::default();
    for &event in house.events.iter().chain([&house.beside]) {
        all.add(compare_event(&house.pool, house.engine.redis_url(), event, Depth::Deadlines).await?);
    }
    Ok(all)
}

/// Redis empty, one worker started, nothing else.
async fn alone(house: &mut House, args: WarmUpArgs) -> Result<()> {
    flush(&house.engine).await?;
    let began = Instant::now();
    let watched = start(&mut house.engine)?;
    let (mut notes, mut last) = (Vec::new(), None);
    while epoch(&house.engine).await?.is_none() {
        let seen = note(&watched.ops).await;
        if seen.is_some() && seen != last && notes.len() < 200 {
            notes.push((began.elapsed(), seen.clone().unwrap_or_default()));
            last = seen;
        }
        if began.elapsed() > LIMIT {
            bail!("Redis is not warmed up after {LIMIT:?}");
        }
        sleep(Duration::from_millis(500)).await;
    }
    let took = began.elapsed();
    let peak = memory_of(house.engine.worker_id(watched.worker)?, "VmHWM:")?;
    let load = table::load();
    let found = compare_all(house).await?;
    house.engine.kill_worker(watched.worker)?;
    if args.json {
        let line = json!({
            "run": "warm-up, one worker, nothing else", "reservations": args.reservations, "seconds": took.as_secs_f64(),
            "idle_mb": house.idle, "peak_mb": peak, "differences": differences(found), "load": load,
        });
        say(&line.to_string());
    } else {
        say(&format!(
            "\none worker, nothing else: {:.1} s; memory at most {peak:.0} MB, {:.0} MB more than idle ({load})\n  {}",
            took.as_secs_f64(),
            peak - house.idle,
            verdict(found)
        ));
        say("  what /readyz?verbose said meanwhile:");
        for (at, note) in notes.iter().step_by((notes.len() / 6).max(1)) {
            say(&format!("  {:>6.1} s  {note}", at.as_secs_f64()));
        }
        say("  what the log said:");
        let log = std::fs::read_to_string(log_of(&house.engine))?;
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("warm") || line.contains("Redis")).collect();
        for line in lines.iter().step_by((lines.len() / 6).max(1)) {
            say(&format!("  {line}"));
        }
    }
    check(found)
}

/// Two workers at once, killed in the middle, two others; holds and reads all the while.
async fn under_load(house: &mut House, args: WarmUpArgs) -> Result<()> {
    flush(&house.engine).await?;
    let free = seed::places(&house.pool, house.beside).await?;
    let blocks = free.iter().map(|place| place.block.clone()).collect::<std::collections::BTreeSet<_>>();
    let field = Field {
        event: house.beside.to_string(),
        free,
        taken: Vec::new(),
        shown: HashMap::new(),
        blocks: blocks.into_iter().collect(),
    };
    let load = Load::start(&house.engine, field);
    let began = Instant::now();
    let first = [start(&mut house.engine)?, start(&mut house.engine)?];
    let index = house.engine.stores()?;
    // In the middle: half of the deadlines are registered.
    let half = u64::try_from(args.reservations / 2)?;
    while index.redis.count_deadlines(0).await?.0 < half {
        if began.elapsed() > LIMIT || epoch(&house.engine).await?.is_some() {
            bail!("there was no middle to kill the workers in");
        }
        sleep(Duration::from_millis(20)).await;
    }
    for watched in first {
        house.engine.kill_worker(watched.worker)?;
    }
    let killed = began.elapsed();
    if epoch(&house.engine).await?.is_some() {
        bail!("a warm-up that was killed says that it is whole");
    }
    let second = [start(&mut house.engine)?, start(&mut house.engine)?];
    wait_for_epoch(&house.engine).await?;
    let took = began.elapsed();
    let samples = load.end().await?;
    let mut peak = 0.0_f64;
    for watched in &second {
        peak = peak.max(memory_of(house.engine.worker_id(watched.worker)?, "VmHWM:")?);
    }
    // What the load has just done is shown, and both workers have done what they asked for at their start.
    sleep(Duration::from_secs(10)).await;
    let found = compare_all(house).await?;
    let (holds, reads) = (count(samples.iter(), Kind::Hold), count(samples.iter(), Kind::Read));
    let load = table::load();
    if args.json {
        let line = json!({
            "run": "warm-up, two workers, killed, two others, under load", "reservations": args.reservations,
            "killed_after_seconds": killed.as_secs_f64(), "seconds": took.as_secs_f64(), "idle_mb": house.idle,
            "peak_mb": peak, "differences": differences(found), "load": load,
            "holds": { "right": holds.right, "refused": holds.refused, "errors": holds.errors },
            "reads": { "right": reads.right, "wrong": reads.wrong, "errors": reads.errors },
        });
        say(&line.to_string());
    } else {
        say(&format!(
            "\ntwo workers at once under load, both killed after {:.1} s, two others: whole after {:.1} s; memory at most \
             {peak:.0} MB, {:.0} MB more than idle ({load})\n  {}",
            killed.as_secs_f64(),
            took.as_secs_f64(),
            peak - house.idle,
            verdict(found)
        ));
        let ms = |counts: crate::load::Counts| counts.slowest.as_secs_f64() * 1_000.0;
        say(&format!(
            "  meanwhile {} holds ({} refused without need, {} errors, slowest {:.0} ms), {} reads ({} wrong, {} errors, slowest {:.0} ms)",
            holds.right,
            holds.refused,
            holds.errors,
            ms(holds),
            reads.right,
            reads.wrong,
            reads.errors,
            ms(reads)
        ));
    }
    check(found)
}

fn differences(found: Comparison) -> u64 {
    found.absent + found.wrong + found.index_wrong + found.keys_wrong
}

fn verdict(found: Comparison) -> String {
    format!(
        "of {} seats {} have no bucket and {} a wrong one; {} deadlines and {} keys are wrong",
        found.seats, found.absent, found.wrong, found.index_wrong, found.keys_wrong
    )
}

fn check(found: Comparison) -> Result<()> {
    Some(()).filter(|()| found.is_right()).with_context(|| format!("Redis is not what Postgres is: {found:?}"))
}
