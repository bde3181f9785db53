//! Runs histories that break: `sim SEED HISTORIES [FIRST]`, on DATABASE_URL and REDIS_URL. `holdfast sim` tells more; this
//! needs no more than the engine to be built.

#![expect(clippy::expect_used, reason = "a harness: whatever is missing ends it")]

use std::io::{self, Write as _};
use std::process::ExitCode;

use simulation::lane::Servers;
use simulation::run::{Plan, run};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let url = |name| std::env::var(name).expect("DATABASE_URL and REDIS_URL say where the stores are");
    let servers = Servers { database_url: url("DATABASE_URL"), redis_url: url("REDIS_URL") };
    let plan = Plan { seed: number(0, 1), histories: number(1, 100), first: number(2, 0), lanes: 2 };
    let report = run(&servers, plan, false, |_| {}).expect("the simulation runs");
    let mut stdout = io::stdout().lock();
    match report.failures.first() {
        None => {
            writeln!(
                stdout,
                "{} histories, {} steps, 0 violations, seed {}",
                report.histories, report.steps, plan.seed
            )?;
            Ok(ExitCode::SUCCESS)
        }
        Some(failure) => {
            let found = failure.violations.first();
            let (rule, what) = found.map_or(("", ""), |found| (found.rule.as_str(), found.what.as_str()));
            writeln!(stdout, "{rule}: {what} (history {} of {})", failure.history, report.histories)?;
            Ok(ExitCode::from(3))
        }
    }
}
