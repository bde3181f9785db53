//! `holdfast sim`: breaks the engine by a seed, and says whether anything was lost.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use simulation::lane::Servers;
use simulation::run::{Failure, Plan, Report, run as run_histories};

use crate::output::{CommandError, OutputArgs, end, print, tell};
use crate::services::{Services, ServicesConfig};

/// Exit code: an invariant is broken.
const BROKEN: u8 = 3;

/// Arguments of `holdfast sim`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each history is a small event and 20 to 80 steps on the real flows, a real Postgres and a real \
                        Redis: buyers, payments, operators and workers, while processes die or are stopped between two \
                        writes, links break, and Redis is lost. Every answer is compared with what callers were told, \
                        and both stores are audited at the end.\n\n\
                        Private servers are started, unless DATABASE_URL and REDIS_URL are both set: then databases and \
                        keys of its own are made there, and removed.\n\n\
                        Exit codes: 0 nothing was lost, 1 it could not run, 3 an invariant is broken.\n\n\
                        Examples:\n  holdfast sim                                  500 histories of seed 1\n  \
                        holdfast sim --seed 42 --histories 5000       more, and others\n  \
                        holdfast sim --seed 42 --history 1234         one again, with every step\n  \
                        holdfast sim --model --histories 1000000      of the pure model, without any store"
)]
pub struct SimArgs {
    /// What all is drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many histories
    #[arg(long, default_value_t = 500)]
    histories: u64,
    /// Run this one only, and print its steps
    #[arg(long)]
    history: Option<u64>,
    /// How many run at once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=32))]
    lanes: u8,
    /// Run the histories of the pure model, which needs no store and is many thousand times faster
    #[arg(long, conflicts_with_all = ["lanes", "keep_going"])]
    model: bool,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `holdfast sim`.
#[must_use]
pub fn run(args: &SimArgs) -> ExitCode {
    if args.model {
        return match simulate_model(args) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(BROKEN),
            Err(error) => end(Err(error)),
        };
    }
    match simulate(args) {
        Ok(report) if report.failures.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(BROKEN),
        Err(error) => end(Err(error)),
    }
}

/// Whether nothing was broken.
fn simulate_model(args: &SimArgs) -> Result<bool, CommandError> {
    let histories = args.history.map_or(args.histories, |_| 1);
    let bar = ProgressBar::new(histories);
    let report = simulation::model::run(args.seed, args.history.unwrap_or(0), histories, |done| bar.set_position(done));
    bar.finish_and_clear();
    let data = json!({
        "seed": report.seed,
        "histories": report.histories,
        "steps": report.steps,
        "seconds": report.took.as_secs_f64(),
        "failure": report.failure.as_ref().map(ToString::to_string),
    });
    print(args.output, &data, &report.to_string())?;
    Ok(report.failure.is_none())
}

fn simulate(args: &SimArgs) -> Result<Report, CommandError> {
    let named = |name| std::env::var(name).ok().filter(|url| !url.is_empty());
    let (servers, _private) = match (named("DATABASE_URL"), named("REDIS_URL")) {
        (Some(database_url), Some(redis_url)) => (Servers { database_url, redis_url }, None),
        _ => {
            let services = Services::start(ServicesConfig::test())?;
            let (database_url, redis_url) = (services.database_url().to_owned(), services.redis_url().to_owned());
            (Servers { database_url, redis_url }, Some(services))
        }
    };
    let plan = Plan {
        seed: args.seed,
        first: args.history.unwrap_or(0),
        histories: args.history.map_or(args.histories, |_| 1),
        lanes: if args.history.is_some() { 1 } else { usize::from(args.lanes) },
    };
    let bar = ProgressBar::new(plan.histories);
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} histories, {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(format!("seed {}", args.seed));
    let begun = std::time::Instant::now();
    let report = run_histories(&servers, plan, args.keep_going, |report| {
        bar.set_position(report.histories);
        if !report.failures.is_empty() {
            bar.set_message(format!("seed {}, {} failed", args.seed, report.failures.len()));
        }
    })?;
    bar.finish_and_clear();
    for failure in &report.failures {
        tell(&in_words(args.seed, failure));
    }
    let seconds = begun.elapsed().as_secs_f64();
    print(args.output, &as_json(args.seed, &report, seconds), &summary(args.seed, &report, seconds))?;
    Ok(report)
}

fn in_words(seed: u64, failure: &Failure) -> String {
    let mut text = format!("\nhistory {} of seed {seed}:\n", failure.history);
    for line in &failure.log {
        let _infallible = writeln!(text, "  {line}");
    }
    for violation in &failure.violations {
        let _infallible = writeln!(text, "{} is broken: {}", violation.rule, violation.what);
    }
    let _infallible = write!(text, "again: holdfast sim --seed {seed} --history {}", failure.history);
    text
}

fn summary(seed: u64, report: &Report, seconds: f64) -> String {
    let mut text = String::new();
    let faults: u64 = report.faults.values().sum();
    let mut by_point = std::collections::BTreeMap::new();
    for ((point, _), count) in &report.faults {
        *by_point.entry(*point).or_insert(0_u64) += count;
    }
    for (point, count) in by_point {
        let _infallible = writeln!(text, "{count:>8} at {point:?}");
    }
    let _infallible = write!(
        text,
        "{} histories of seed {seed} in {seconds:.0} s: {} steps, {faults} faults; {} holds acknowledged, {} sold, {} \
         refunded; {} histories with violations",
        report.histories,
        report.steps,
        report.holds,
        report.sold,
        report.refunded,
        report.failures.len()
    );
    text
}

fn as_json(seed: u64, report: &Report, seconds: f64) -> serde_json::Value {
    let faults: Vec<_> = report
        .faults
        .iter()
        .map(|((point, what), count)| json!({ "point": format!("{point:?}"), "what": what, "count": count }))
        .collect();
    let failures: Vec<_> = report
        .failures
        .iter()
        .map(|failure| {
            let violations: Vec<_> = failure
                .violations
                .iter()
                .map(|violation| json!({ "rule": violation.rule, "what": violation.what }))
                .collect();
            let again = format!("holdfast sim --seed {seed} --history {}", failure.history);
            json!({ "history": failure.history, "violations": violations, "again": again })
        })
        .collect();
    json!({
        "seed": seed, "histories": report.histories, "steps": report.steps, "seconds": seconds,
        "holds_acknowledged": report.holds, "sold": report.sold, "refunded": report.refunded,
        "faults": faults, "failures": failures,
    })
}
