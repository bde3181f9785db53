//! The engine's own processes as children of `dev up`: logged to files, and started again when they die.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::error::{DevError, say};
use crate::services::{SupervisedProcess, log_tail, log_to};

const BACK_OFF_FIRST: Duration = Duration::from_millis(200);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// A child that ran for so long is not in a crash loop.
const STEADY_AFTER: Duration = Duration::from_secs(30);
/// A worker finishes what it runs and gives the rest back; then it is killed, which loses nothing either.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// How our own binary is started again: its arguments and the settings it gets by environment.
#[derive(Debug, Clone, Default)]
pub(super) struct Invocation {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Invocation {
    /// `holdfast` with these arguments.
    pub(super) fn new(arguments: &[&str]) -> Self {
        Self { arguments: arguments.iter().map(|it| (*it).to_owned()).collect(), ..Self::default() }
    }

    /// Sets an environment variable.
    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Runs it to its end and gives what it printed to stdout.
    pub(super) fn output(&self) -> Result<String, DevError> {
        let name = self.arguments.join(" ");
        let output = self
            .command()
            .and_then(|mut command| command.stdin(Stdio::null()).output())
            .map_err(DevError::io(format!("run `holdfast {name}`")))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let said = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        Err(DevError::Child { command: name, outcome: format!("ended with {}", output.status), output: said })
    }
}

/// A process of ours that is kept running.
#[derive(Debug)]
pub(super) struct KeptChild {
    name: &'static str,
    invocation: Invocation,
    log: PathBuf,
    log_began_at: u64,
    state: State,
    back_off: Duration,
}

#[derive(Debug)]
enum State {
    Running { process: SupervisedProcess, since: Instant },
    Waiting { until: Instant },
}

impl KeptChild {
    /// Starts the process; its output goes to `{name}.log` in `logs`.
    pub(super) fn start(name: &'static str, invocation: Invocation, logs: &Path) -> Result<Self, DevError> {
        let log = logs.join(format!("{name}.log"));
        let log_began_at = log.metadata().map_or(0, |metadata| metadata.len());
        let state = spawn(&invocation, &log).map_err(DevError::io(format!("start the {name}")))?;
        Ok(Self { name, invocation, log, log_began_at, state, back_off: BACK_OFF_FIRST })
    }

    /// Where its output goes.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Fails if the process has ended: while the engine starts, that is a mistake in its settings, not bad luck.
    pub(super) fn must_run(&mut self) -> Result<(), DevError> {
        let State::Running { process, .. } = &mut self.state else { return Ok(()) };
        match process.exit_status().map_err(DevError::io(format!("watch the {}", self.name)))? {
            None => Ok(()),
            Some(status) => Err(DevError::Child {
                command: self.name.to_owned(),
                outcome: format!("ended with {status} while starting (its log is {})", self.log.display()),
                output: log_tail(&self.log, self.log_began_at, 15),
            }),
        }
    }

    /// Looks once: an ended process is started again after a pause that doubles while it keeps dying.
    pub(super) fn tend(&mut self) -> Result<(), DevError> {
        let failed = DevError::io(format!("keep the {} running", self.name));
        let next = match &mut self.state {
            State::Running { process, since } => match process.exit_status() {
                Err(error) => return Err(failed(error)),
                Ok(None) => return Ok(()),
                Ok(Some(status)) => {
                    if since.elapsed() >= STEADY_AFTER {
                        self.back_off = BACK_OFF_FIRST;
                    }
                    let pause = self.back_off;
                    self.back_off = (pause * 2).min(BACK_OFF_MAX);
                    let (name, log) = (self.name, self.log.display());
                    say(&format!(
                        "The {name} ended with {status}; it starts again in {} ms ({log})",
                        pause.as_millis()
                    ));
                    State::Waiting { until: Instant::now() + pause }
                }
            },
            State::Waiting { until } if Instant::now() < *until => return Ok(()),
            State::Waiting { .. } => spawn(&self.invocation, &self.log).map_err(failed)?,
        };
        self.state = next;
        Ok(())
    }

    /// Asks the process to end (SIGTERM) without waiting.
    pub(super) fn ask_to_stop(&mut self) {
        if let State::Running { process, .. } = &mut self.state {
            // One that has ended already needs no asking.
            let _ = process.signal(Signal::SIGTERM);
        }
    }

    /// Waits until the process has ended, and kills it after 15 s.
    pub(super) fn stop(mut self) -> Result<(), DevError> {
        match &mut self.state {
            State::Running { process, .. } => {
                process.stop(Signal::SIGTERM, STOP_LIMIT).map_err(DevError::io(format!("stop the {}", self.name)))
            }
            State::Waiting { .. } => Ok(()),
        }
    }
}

fn spawn(invocation: &Invocation, log: &Path) -> io::Result<State> {
    let mut command = invocation.command()?;
    log_to(&mut command, log)?;
    let process = SupervisedProcess::spawn(command, Signal::SIGTERM)?;
    Ok(State::Running { process, since: Instant::now() })
}
