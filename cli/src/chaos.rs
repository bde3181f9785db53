//! `holdfast chaos`: kills and cuts everything at random under full load, and then counts.

mod client;
mod crowd;
mod faults;
mod figures;
mod house;
mod machine;
mod record;
mod report;
mod rest;
mod sight;
mod stage;
mod strike;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ::api::auth::new_api_key;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use domain::runtime::clock::{Clock, system_ms};
use domain::store::pg::Pg;
use domain::store::pg::api_keys::KeyScope;
use domain::time::{from_ms, rfc3339_ms};
use serde_json::json;
use simulation::chaos::books::Stores;
use simulation::chaos::history::History;
use simulation::chaos::verdict::judge;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::client::Client;
use self::crowd::Crowd;
use self::figures::{Figures, Lag, by_second, count, endings};
use self::house::{House, Role};
use self::machine::Machine;
use self::record::Recorder;
use self::rest::{Outages, come_to_rest, operators_audit, tend};
use self::sight::lags_ms;
use self::stage::Stage;
use self::strike::Striker;
use crate::output::{CommandError, OutputArgs, end, print, tell};
use crate::runtime::{block_on, shutdown_signal};

const APIS: usize = 2;
const WORKERS: usize = 3;
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Everything must have come to rest so long after the last fault.
const REST_LIMIT: Duration = Duration::from_secs(60);
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Findings of one rule that are printed; the report has more.
const SHOWN_MAX: usize = 5;

/// Arguments of `holdfast chaos`.
#[derive(Debug, Args)]
#[command(
    after_help = "Starts a Postgres, a Redis, two API processes and three workers of its own, lets buyers loose on \
    them, and kills, freezes and cuts off what the seed says. Then everything is mended, and what every client was told \
    is compared with Postgres, Redis and the fake provider's ledger. Two minutes or more meet every kind of fault.\n\n\
    Exit codes: 0 clean, 3 an invariant is broken, 1 it could not run.\n\n\
    Examples:\n  holdfast chaos --minutes 5 --seed 7\n  holdfast chaos --minutes 0.5 --buyers 20 --out /tmp/chaos.html --json"
)]
pub struct ChaosArgs {
    /// How long the load runs
    #[arg(long, default_value_t = 5.0, value_parser = parse_minutes)]
    minutes: f64,
    /// What the faults and the buyers are drawn from [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Buyers at once
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=2_000))]
    buyers: u16,
    /// Where the report is written; its figures as JSON stand beside it
    #[arg(long, value_name = "FILE", default_value = "chaos.html")]
    out: PathBuf,
    /// Keep the processes' logs in this folder
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "a number such as 5 or 0.5".to_owned())?;
    if (0.1..=720.0).contains(&minutes) { Ok(minutes) } else { Err("between 0.1 and 720 minutes".to_owned()) }
}

/// Runs `holdfast chaos`.
#[must_use]
pub fn run(args: &ChaosArgs) -> ExitCode {
    let mut is_clean = true;
    let ended = block_on(async {
        let interrupted = shutdown_signal()?;
        is_clean = tokio::select! {
            figures = chaos(args) => tell_end(args, &figures?)?,
            () = interrupted.cancelled() => return Err(CommandError::Usage("stopped before its end".to_owned())),
        };
        Ok(())
    });
    match ended {
        Ok(()) if !is_clean => ExitCode::from(3),
        ended => end(ended),
    }
}

async fn chaos(args: &ChaosArgs) -> Result<Figures> {
    let seed = args.seed.unwrap_or_else(|| system_ms().unsigned_abs() % 1_000_000);
    let minutes = args.minutes;
    let load_ms = i64::try_from(Duration::from_secs_f64(minutes * 60.0).as_millis())?;
    let command = format!("holdfast chaos --minutes {minutes} --seed {seed} --buyers {}", args.buyers);
    tell(&command);
    let house = Arc::new(House::build(APIS, WORKERS, args.logs.as_deref()).await?);
    let (admin, sales) = make_keys(house.database_url()).await?;
    house.heal()?;
    house.wait_until_ready(READY_LIMIT).await?;
    let stores = Arc::new(Stores::connect(house.database_url(), house.redis_url()).await?);
    let (postgres, redis) = stores.versions().await?;
    let urls: Vec<String> = house.of(Role::Api).map(|member| member.url.clone()).collect();
    let first = urls.first().context("no API")?.clone();
    let setting_up = Client::new(&urls, &admin, Arc::new(Recorder::begin()))?;
    let stage = Arc::new(Stage::build(setting_up, &first, &admin).await?);

    let recorder = Arc::new(Recorder::begin());
    let stop = CancellationToken::new();
    let client = Client::new(&urls, &sales, Arc::clone(&recorder))?;
    let crowd = Arc::new(Crowd::new(client, Arc::clone(&stage), stop.clone()));
    let striker = Arc::new(Striker::new(Arc::clone(&house), Arc::clone(&stores), recorder.began_ms()));
    let outages = Arc::new(Outages::default());
    let mut load = JoinSet::new();
    let mut watching = JoinSet::new();
    watching.spawn(Arc::clone(&outages).watch(Arc::clone(&house), stop.clone()));
    watching.spawn(tell_progress(Arc::clone(&recorder), stop.clone()));
    watching.spawn({
        let (stage, stop) = (Arc::clone(&stage), stop.clone());
        async move { stage.keep_open(stop).await }
    });
    let tending = tokio::spawn(tend(Arc::clone(&house), stop.clone()));
    load.spawn(Arc::clone(&crowd).look());
    for number in 0..usize::from(args.buyers) {
        load.spawn(Arc::clone(&crowd).buy(number, seed));
    }
    let striking = Arc::clone(&striker).carry_out(faults::plan(seed, load_ms));
    let lasting = tokio::time::sleep(Duration::from_millis(load_ms.unsigned_abs()));
    let (struck, ()) = tokio::join!(striking, lasting);
    struck?;
    house.heal()?;
    stop.cancel();
    while let Some(ended) = load.join_next().await {
        ended?;
    }
    let ended_by_themselves = tending.await??;
    while let Some(ended) = watching.join_next().await {
        ended?;
    }
    let load_ms = system_ms() - recorder.began_ms();
    tell("          the load has ended, and everything is mended: waiting until it has come to rest");
    let rest = come_to_rest(&house, &stores, REST_LIMIT).await?;

    let (sightings, freed) = crowd.sight().take();
    let history = History { holds: crowd.take_holds(), sightings, outages: outages.spans() };
    let mut checks = judge(&history, &rest.books, &rest.queues);
    checks.push(operators_audit(&house).await?);
    let is_clean = checks.iter().all(|check| check.findings.is_empty());
    let samples = recorder.samples();
    let (refusals, failures) = endings(&samples);
    let mut counts = count(&history, samples.len());
    counts.events_opened = stage.events_opened();
    counts.ended_by_themselves = ended_by_themselves;
    let mut faults = striker.struck();
    faults.sort_by_key(|fault| fault.at_ms);
    Ok(Figures {
        verdict: if is_clean { "clean" } else { "broken" },
        command,
        seed,
        load_ms,
        settled_ms: rest.after_ms,
        began: rfc3339_ms(from_ms(recorder.began_ms())),
        machine: Machine::look(postgres, redis),
        checks,
        counts,
        faults,
        excused: outages.since(recorder.began_ms()),
        seconds: by_second(&samples, load_ms),
        lag: Lag::of(lags_ms(&freed, &rest.books)),
        refusals,
        failures,
    })
}

/// Brings the schema up to date and makes a key for the organiser and one for the shop.
async fn make_keys(database_url: &str) -> Result<(String, String)> {
    let pg = Pg::connect(database_url, 2, 60_000, Clock::default())?;
    pg.migrate().await?;
    let (admin, sales) = (new_api_key(), new_api_key());
    pg.insert_api_key("chaos, organiser", KeyScope::Admin, &admin.1).await?;
    pg.insert_api_key("chaos, shop", KeyScope::Sales, &sales.1).await?;
    Ok((admin.0, sales.0))
}

async fn tell_progress(recorder: Arc<Recorder>, stop: CancellationToken) {
    let mut seen = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep(TELL_EVERY) => {}
            () = stop.cancelled() => return,
        }
        let (next, [reads, holds, payments, failures]) = recorder.count_since(seen);
        seen = next;
        let at = Duration::from_millis((system_ms() - recorder.began_ms()).unsigned_abs()).as_secs_f64();
        tell(&format!(
            "{at:6.1} s  in the last 5 s: {reads} reads, {holds} holds, {payments} payments, {failures} failures"
        ));
    }
}

/// Writes the report and says what came out; false where an invariant is broken.
fn tell_end(args: &ChaosArgs, figures: &Figures) -> Result<bool> {
    let beside = args.out.with_extension("json");
    if beside == args.out {
        bail!("--out names the page: the JSON stands beside it, so it cannot end in .json");
    }
    fs::write(&args.out, report::page(figures)).with_context(|| format!("cannot write {}", args.out.display()))?;
    fs::write(&beside, serde_json::to_vec_pretty(figures)?)
        .with_context(|| format!("cannot write {}", beside.display()))?;
    let mut text = String::new();
    for check in &figures.checks {
        let state = if check.findings.is_empty() { "ok    " } else { "BROKEN" };
        text.push_str(&format!("{state}  {} ({} {}; {})\n", check.rule, check.looked_at, check.of, check.invariant));
        for finding in check.findings.iter().take(SHOWN_MAX) {
            text.push_str(&format!("          {finding}\n"));
        }
        if check.findings.len() > SHOWN_MAX {
            text.push_str(&format!("          and {} more\n", check.findings.len() - SHOWN_MAX));
        }
    }
    let rest = figures.settled_ms.map_or("never at rest".to_owned(), |ms| format!("at rest after {ms} ms"));
    text.push_str(&format!(
        "{}: {} faults, {} requests, {} holds acknowledged, {} confirmed, {rest}\nReport: {}\nRepeat: {}",
        figures.verdict,
        figures.faults.len(),
        figures.counts.requests,
        figures.counts.holds_acknowledged,
        figures.counts.confirmed_told,
        args.out.display(),
        figures.command,
    ));
    print(args.output, &json!(figures), &text)?;
    Ok(figures.verdict == "clean")
}
