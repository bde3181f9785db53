//! Runs the pure model: `model SEED HISTORIES [FIRST]`, or `model explore DEPTH LAST_TICK STATES`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use simulation::model::world::Plan;
use simulation::model::{explore, run};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let mut stdout = io::stdout().lock();
    let broken = if arguments.first().is_some_and(|word| word == "explore") {
        let small = |at, otherwise| usize::try_from(number(at, otherwise)).unwrap_or(usize::MAX);
        let last_tick = i16::try_from(number(2, 2)).unwrap_or(i16::MAX);
        let found = explore(&Plan::TINY, small(1, 60), last_tick, small(3, 3_000_000));
        writeln!(stdout, "{found}")?;
        found.failure.is_some()
    } else {
        let report = run(number(0, 1), number(2, 0), number(1, 100_000), |_| {});
        writeln!(stdout, "{report}")?;
        report.failure.is_some()
    };
    Ok(if broken { ExitCode::from(3) } else { ExitCode::SUCCESS })
}
