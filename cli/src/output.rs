//! What the commands print: data on stdout, everything else on stderr; and how they end.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::Value;

/// How data is printed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct OutputArgs {
    /// Print data as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// Why a command did not do what it was asked. The exit code tells the kinds apart.
#[derive(Debug)]
pub enum CommandError {
    /// Exit code 1: it failed.
    Failed(anyhow::Error),
    /// Exit code 2: something is missing or wrong in what was asked.
    Usage(String),
}

impl<E: Into<anyhow::Error>> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Prints data: JSON in one line, or the text for people.
///
/// # Errors
/// stdout is closed.
pub fn print(output: OutputArgs, data: &Value, text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if output.json { writeln!(stdout, "{data}") } else { writeln!(stdout, "{}", text.trim_end()) }
}

/// Prints a line for the person at the terminal.
pub fn tell(line: &str) {
    // A closed terminal is no reason to fail.
    let _nobody_reads = writeln!(io::stderr(), "{line}");
}

/// Ends a command.
#[must_use]
pub fn end(result: Result<(), CommandError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandError::Usage(what)) => {
            tell(&format!("holdfast: {what}"));
            ExitCode::from(2)
        }
        Err(CommandError::Failed(error)) => {
            tell(&format!("holdfast: {}", with_causes(&*error)));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes in one line, each said once.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}
