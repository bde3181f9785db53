//! Compares the engine with the model: `conform SEED HISTORIES [FIRST]`, on DATABASE_URL and REDIS_URL.

#![expect(clippy::expect_used, reason = "a harness: whatever is missing ends it")]

use std::io::{self, Write as _};
use std::process::ExitCode;

use simulation::conform::{Installation, conform};

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let url = |name| std::env::var(name).expect("DATABASE_URL and REDIS_URL say where the stores are");
    let installation = Installation::start(&url("DATABASE_URL"), &url("REDIS_URL")).await;
    let (seed, histories, first) = (number(0, 1), number(1, 100), number(2, 0));
    let found = conform(&installation, seed, first, histories).await;
    installation.end().await;
    let mut stdout = io::stdout().lock();
    match found {
        Ok(operations) => {
            writeln!(stdout, "{histories} histories, {operations} operations, 0 differences, seed {seed}")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(difference) => {
            writeln!(stdout, "{difference}")?;
            Ok(ExitCode::from(3))
        }
    }
}
