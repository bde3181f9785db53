//! `holdfast dev`: the engine and its stores on one machine, without Docker and without installing anything more than
//! Postgres and Redis.

mod children;
mod demo;
mod error;
mod keys;
mod reset;
mod run;
mod stores;
mod up;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::services::default_data_dir;

pub use error::DevError;

/// Arguments of `holdfast dev`.
#[derive(Debug, Args)]
pub struct DevArgs {
    #[command(subcommand)]
    command: DevCommand,
}

#[derive(Debug, Subcommand)]
enum DevCommand {
    /// Start Postgres, Redis, the api and a worker with demo venues and events; Ctrl-C stops them.
    ///
    /// The data is kept: a second start finds it again. DATABASE_URL and REDIS_URL, where both are set, are used
    /// instead of private servers.
    Up(up::UpArgs),
    /// Run a command with DATABASE_URL and REDIS_URL of private servers that end with it.
    ///
    /// Without a command the servers run until Ctrl-C.
    #[command(after_help = "Examples:\n  holdfast dev services -- cargo test\n  holdfast dev services --json")]
    Services(run::ServicesArgs),
    /// Remove all data that `dev up` has kept; refused while it runs.
    Reset(reset::ResetArgs),
}

/// Where `dev` keeps its data.
#[derive(Debug, Args)]
struct DataDirArgs {
    /// The folder of the data [default: .holdfast here; as root /var/lib/holdfast-… named after this folder]
    #[arg(long, env = "HOLDFAST_DATA_DIR", value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

impl DataDirArgs {
    fn resolve(&self) -> Result<PathBuf, DevError> {
        match &self.data_dir {
            Some(path) => Ok(path.clone()),
            None => env::current_dir()
                .map(|here| default_data_dir(&here))
                .map_err(DevError::io("find the current folder".to_owned())),
        }
    }
}

/// Ports of the private servers.
#[derive(Debug, Args)]
struct PortArgs {
    /// Postgres's port on 127.0.0.1 [default: a free one]
    #[arg(long, env = "HOLDFAST_PG_PORT", value_name = "PORT")]
    pg_port: Option<u16>,
    /// Redis's port on 127.0.0.1 [default: a free one]
    #[arg(long, env = "HOLDFAST_REDIS_PORT", value_name = "PORT")]
    redis_port: Option<u16>,
}

/// Runs `holdfast dev …`. The exit code is 0 when done, 1 when something failed, 2 when something is missing; of
/// `dev services -- COMMAND` it is the command's.
pub fn run(args: DevArgs) -> ExitCode {
    let done = match args.command {
        DevCommand::Up(args) => up::run(args),
        DevCommand::Services(args) => run::run(args),
        DevCommand::Reset(args) => reset::run(args),
    };
    done.unwrap_or_else(|error| error.report())
}
