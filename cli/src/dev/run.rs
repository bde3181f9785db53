//! `holdfast dev services`: private servers for as long as a command runs.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::PortArgs;
use super::error::{DevError, print, say};
use crate::services::{Mode, Services, ServicesConfig, SupervisedProcess};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Arguments of `holdfast dev services`.
#[derive(Debug, Args)]
pub(super) struct ServicesArgs {
    /// What the servers promise about their data.
    #[arg(long, value_enum, default_value_t = Mode::Test)]
    mode: Mode,
    /// Keep the data in this folder [default: a fresh one, removed at the end]
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    ports: PortArgs,
    /// Print the URLs as one JSON object.
    #[arg(long)]
    json: bool,
    /// The command to run, with its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(args: ServicesArgs) -> Result<ExitCode, DevError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DevError::io("start a runtime".to_owned()))?;
    // The signals are caught before the servers start: a Ctrl-C in between must not leave a folder behind.
    let signals = {
        let _inside = runtime.enter();
        Signals::catch()
    }?;
    let services = Services::start(ServicesConfig {
        mode: args.mode,
        data_dir: args.data_dir,
        postgres_port: args.ports.pg_port,
        redis_port: args.ports.redis_port,
    })?;
    let code = match args.command.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command.env("DATABASE_URL", services.database_url()).env("REDIS_URL", services.redis_url());
            let action = format!("run {}", program.display());
            runtime.block_on(run_to_end(command, signals)).map_err(DevError::io(action))?
        }
        None => {
            show(&services, args.json)?;
            runtime.block_on(signals.wait());
            ExitCode::SUCCESS
        }
    };
    services.stop()?;
    Ok(code)
}

fn show(services: &Services, json: bool) -> Result<(), DevError> {
    let (database_url, redis_url) = (services.database_url(), services.redis_url());
    if json {
        let data_dir = services.folder().path().display().to_string();
        return print(
            &serde_json::json!({ "database_url": database_url, "redis_url": redis_url, "data_dir": data_dir })
                .to_string(),
        );
    }
    print(&format!("export DATABASE_URL={database_url}\nexport REDIS_URL={redis_url}"))?;
    say("Running until Ctrl-C.");
    Ok(())
}

/// Runs a command in the foreground. A Ctrl-C at the terminal reaches it by itself, a SIGTERM is passed on; either way
/// it is waited for, so that the servers never end before it.
async fn run_to_end(command: Command, mut signals: Signals) -> io::Result<ExitCode> {
    let mut child = SupervisedProcess::spawn_in_our_group(command, Signal::SIGTERM)?;
    loop {
        if let Some(status) = child.exit_status()? {
            return Ok(exit_code(status));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = signals.interrupt.recv() => {}
            _ = signals.terminate.recv() => child.signal(Signal::SIGTERM)?,
        }
    }
}

/// The code as a shell would give it: 128 and the signal's number for a command that was killed.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The two ways in which a person or a supervisor asks us to end.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// Catches SIGINT and SIGTERM from now on. Must be called inside a runtime.
    pub(super) fn catch() -> Result<Self, DevError> {
        let caught = |kind| signal(kind).map_err(DevError::io("catch signals".to_owned()));
        Ok(Self { interrupt: caught(SignalKind::interrupt())?, terminate: caught(SignalKind::terminate())? })
    }

    /// Waits for either.
    pub(super) async fn wait(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
