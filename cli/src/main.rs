//! The binary `holdfast`: one subcommand per process and tool.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use holdfast::{api, audit, chaos, dev, events, import, jobs, keys, migrate, openapi, sim, worker};

/// A self-hosted seat reservation engine.
///
/// Data goes to stdout, the rest to stderr. Exit codes: 0 done, 1 failed, 2 usage or something missing, 3 an invariant
/// is broken. Every flag is also an environment variable, shown beside it.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, propagate_version = true)]
#[command(after_help = "Examples:\n  holdfast dev up                 everything on this machine, with demo events\n  \
                        holdfast migrate                bring the database up to date\n  \
                        holdfast api                    serve the HTTP API\n  \
                        holdfast worker                 run the jobs\n  \
                        holdfast keys create --scope admin --name me")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the HTTP API and the operators' listener.
    Api(Box<api::ApiArgs>),
    /// Run the queues' jobs, the bridge and the sweep.
    Worker(Box<worker::WorkerArgs>),
    /// Bring the database's schema up to date.
    Migrate(migrate::MigrateArgs),
    /// Import a venue from a file.
    Import(Box<import::ImportArgs>),
    /// Make, list, open and close events.
    Events(Box<events::EventsArgs>),
    /// Make, list and revoke API keys.
    Keys(keys::KeysArgs),
    /// Look at the queues; requeue or discard dead jobs.
    Jobs(Box<jobs::JobsArgs>),
    /// Break the engine by a seed, and see whether anything is lost.
    Sim(sim::SimArgs),
    /// Compare Postgres, Redis, the queues and the provider's records; repair what is not as it should be.
    Audit(Box<audit::AuditArgs>),
    /// Print the OpenAPI document.
    Openapi,
    /// Kill everything at random under load, and prove that nothing was lost.
    Chaos(chaos::ChaosArgs),
    /// Private Postgres and Redis servers, and the whole engine on them, for trying out and for tests.
    Dev(dev::DevArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Api(args) => api::run(*args),
        Command::Worker(args) => worker::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Jobs(args) => jobs::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Openapi => openapi::run(),
        Command::Chaos(args) => chaos::run(&args),
        Command::Dev(args) => dev::run(args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn every_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
