//! Puts faults into a copy of the engine and sees whether they are noticed:
//! `./dev mutations [--list] [--by model|conform|sim] [NAME…]`.

use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use simulation::mutations::{Bench, Catcher, MUTATIONS, Mutation, Verdict};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        for Mutation { name, invariant, why, catcher, .. } in MUTATIONS {
            say(&format!("{name:34} {invariant}  {:8} {why}", catcher.binary()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut by = None;
    if let Some(at) = arguments.iter().position(|argument| argument == "--by") {
        let name = arguments.get(at + 1).map_or("", String::as_str);
        by = Catcher::ALL.into_iter().find(|catcher| catcher.binary() == name);
        if by.is_none() {
            say("--by takes model, conform or sim")?;
            return Ok(ExitCode::from(2));
        }
        arguments.drain(at..at + 2);
    }
    if let Some(unknown) = arguments.iter().find(|name| !MUTATIONS.iter().any(|it| it.name == **name)) {
        say(&format!("there is no mutation {unknown}; --list shows them"))?;
        return Ok(ExitCode::from(2));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let begun = Instant::now();
    let bench = Bench::prepare(root, &target, &std::env::var("DATABASE_URL")?).await?;
    let chosen: Vec<(&Mutation, Catcher)> = MUTATIONS
        .iter()
        .filter(|it| arguments.is_empty() || arguments.iter().any(|name| name == it.name))
        .map(|it| (it, by.unwrap_or(it.catcher)))
        .collect();
    let needed = Catcher::ALL.into_iter().filter(|catcher| chosen.iter().any(|(_, chosen)| chosen == catcher));
    bench.control(&needed.collect::<Vec<_>>())?;
    say(&format!("without any mutation: nothing found ({} s)", begun.elapsed().as_secs()))?;
    let (mut caught, mut others) = (0, 0);
    for (mutation, catcher) in chosen {
        let begun = Instant::now();
        let verdict = bench.try_mutation(mutation, catcher)?;
        let seconds = begun.elapsed().as_secs();
        let told = match &verdict {
            Verdict::Caught(finding) => format!("caught by {}: {finding}", catcher.binary()),
            Verdict::Survived => "SURVIVED".to_owned(),
            Verdict::Unbuilt(why) => format!("DOES NOT BUILD\n{why}"),
        };
        say(&format!("{:34} {} ({seconds} s) {told}", mutation.name, mutation.invariant))?;
        if matches!(verdict, Verdict::Caught(_)) { caught += 1 } else { others += 1 }
    }
    say(&format!("{caught} caught, {others} not"))?;
    Ok(if others == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}
