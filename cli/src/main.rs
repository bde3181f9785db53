//! The binary `holdfast`: one subcommand per process and tool.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A self-hosted seat reservation engine.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Private Postgres and Redis servers, and the whole engine on them, for trying out and for tests.
    Dev(holdfast::dev::DevArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Dev(args) => holdfast::dev::run(args),
    }
}
