//! A private Redis (or Valkey), with the settings that the engine insists on: no eviction, expiry events, a hundred
//! looks at the due keys a second.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Mode;
use super::binaries::{RedisBinary, find_redis};
use super::error::StartServiceError;
use super::folder::DataFolder;
use super::process::{SupervisedProcess, end_orphan, log_tail, log_to, wait_until};

const SUBFOLDER: &str = "redis";
const PID_FILE: &str = "redis.pid";
/// Where a durable Redis 7 keeps its append-only files.
const KEPT: &str = "appendonlydir";

/// Reading a long append-only file takes a while; a healthy start takes 20 ms.
const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// How often another free port is tried when somebody was faster.
const PORT_TRIES: u32 = 5;

/// How a private Redis runs.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// What it promises about its data.
    pub mode: Mode,
    /// Its port on 127.0.0.1; `None` takes a free one.
    pub port: Option<u16>,
    /// Further settings, such as `("maxmemory-policy", "allkeys-lru")`; they win over ours.
    pub settings: Vec<(String, String)>,
}

impl RedisConfig {
    /// Fast, forgetful, on a free port.
    pub fn test() -> Self {
        Self { mode: Mode::Test, port: None, settings: Vec::new() }
    }
}

/// A running Redis. Dropping it stops it.
#[derive(Debug)]
pub struct RedisServer {
    process: SupervisedProcess,
    config: RedisConfig,
    binary: RedisBinary,
    place: PathBuf,
    port: u16,
    url: String,
    /// Declared last: the folder must outlive the process.
    folder: Arc<DataFolder>,
}

impl RedisServer {
    /// Starts a Redis in a fresh folder of its own, which is removed at the end.
    pub fn start(config: RedisConfig) -> Result<Self, StartServiceError> {
        Self::start_in(Arc::new(DataFolder::fresh()?), config)
    }

    /// Starts the Redis that lives in `folder`.
    pub(super) fn start_in(folder: Arc<DataFolder>, config: RedisConfig) -> Result<Self, StartServiceError> {
        let binary = find_redis()?;
        let place = folder.make_subfolder(SUBFOLDER)?;
        end_orphan_in(folder.path())?;
        let mut tries_left = PORT_TRIES;
        loop {
            let port = config.port.map_or_else(free_port, Ok)?;
            tries_left -= 1;
            match spawn(&folder, &binary, &place, &config, port) {
                Ok(process) => {
                    let url = format!("redis://127.0.0.1:{port}");
                    return Ok(Self { process, config, binary, place, port, url, folder });
                }
                Err(error) if in_use(&error) && config.port.is_some() => {
                    return Err(StartServiceError::PortTaken { port });
                }
                Err(error) if in_use(&error) && tries_left > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        log_of(&self.folder)
    }

    /// Whether the server still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.exit_status(), Ok(None))
    }

    /// Kills the server as a crash would (SIGKILL). In [`Mode::Test`] its data are gone.
    pub fn kill(&mut self) -> Result<(), StartServiceError> {
        self.process.kill().map_err(StartServiceError::io("cannot kill the Redis in", &self.place))
    }

    /// Freezes the server (SIGSTOP): connections stay open, nothing is answered.
    pub fn pause(&mut self) -> Result<(), StartServiceError> {
        self.process.signal(Signal::SIGSTOP).map_err(StartServiceError::io("cannot pause the Redis in", &self.place))
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&mut self) -> Result<(), StartServiceError> {
        self.process.signal(Signal::SIGCONT).map_err(StartServiceError::io("cannot resume the Redis in", &self.place))
    }

    /// Starts the server again on the same port, stopping it first if it still runs. [`Mode::Durable`] finds its data
    /// again, [`Mode::Test`] begins empty.
    pub fn restart(&mut self) -> Result<(), StartServiceError> {
        self.stop()?;
        self.process = spawn(&self.folder, &self.binary, &self.place, &self.config, self.port)?;
        Ok(())
    }

    /// Takes away what a server that does not run has kept: the next start is empty.
    pub fn forget(&mut self) -> Result<(), StartServiceError> {
        self.stop()?;
        let kept = self.place.join(KEPT);
        match fs::remove_dir_all(&kept) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StartServiceError::io("cannot remove", &kept)(error))
            }
            _ => Ok(()),
        }
    }

    /// Cuts so many bytes off the end of what a server that does not run has kept: the next start finds an older state,
    /// as after a crash of the machine or a failover.
    pub fn forget_latest(&mut self, bytes: u64) -> Result<(), StartServiceError> {
        self.stop()?;
        let kept = self.place.join(KEPT);
        let shortened = (|| {
            for entry in fs::read_dir(&kept)? {
                let path = entry?.path();
                // The base file must stay whole; only what was appended to it may end early.
                if path.to_string_lossy().ends_with(".incr.aof") {
                    let file = fs::OpenOptions::new().write(true).open(&path)?;
                    file.set_len(file.metadata()?.len().saturating_sub(bytes))?;
                }
            }
            Ok(())
        })();
        shortened.map_err(StartServiceError::io("cannot shorten what is in", &kept))
    }

    /// Stops the server; in [`Mode::Durable`] its last writes are on disk then.
    pub fn stop(&mut self) -> Result<(), StartServiceError> {
        self.process
            .stop(Signal::SIGTERM, STOP_LIMIT)
            .map_err(StartServiceError::io("cannot stop the Redis in", &self.place))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // The process's own drop kills what this cannot stop.
        let _ = self.stop();
    }
}

/// A port that nobody listens on at this moment. Somebody may be faster to take it: then another one is tried.
pub(super) fn free_port() -> Result<u16, StartServiceError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(StartServiceError::io("cannot find a free port on", Path::new("127.0.0.1")))
}

/// Ends a Redis that a dead process left in `folder`: two on one append-only file would ruin it.
pub(super) fn end_orphan_in(folder: &Path) -> Result<(), StartServiceError> {
    let place = folder.join(SUBFOLDER);
    end_orphan(&place.join(PID_FILE), &place, Signal::SIGTERM, STOP_LIMIT)
        .map_err(StartServiceError::io("cannot end the Redis left in", &place))
}

fn log_of(folder: &DataFolder) -> PathBuf {
    folder.path().join("redis.log")
}

fn in_use(error: &StartServiceError) -> bool {
    matches!(error, StartServiceError::NotReady { log_tail, .. } if log_tail.contains("Address already in use"))
}

fn spawn(
    folder: &DataFolder,
    binary: &RedisBinary,
    place: &Path,
    config: &RedisConfig,
    port: u16,
) -> Result<SupervisedProcess, StartServiceError> {
    let log = log_of(folder);
    let mut command = Command::new(&binary.path);
    command.args(["--port", &port.to_string(), "--dir"]).arg(place).arg("--pidfile").arg(place.join(PID_FILE));
    for (name, value) in settings_of(config.mode, binary.major) {
        command.arg(format!("--{name}")).arg(value);
    }
    for (name, value) in &config.settings {
        command.arg(format!("--{name}")).args(value.split(' '));
    }
    folder.run_here(&mut command);
    let log_began_at = fs::metadata(&log).map_or(0, |metadata| metadata.len());
    log_to(&mut command, &log).map_err(StartServiceError::io("cannot write", &log))?;
    let death_signal = match config.mode {
        Mode::Durable => Signal::SIGTERM,
        Mode::Test => Signal::SIGKILL,
    };
    let mut process =
        SupervisedProcess::spawn(command, death_signal).map_err(StartServiceError::io("cannot start", &binary.path))?;
    let mut ended = None;
    let answered = wait_until(READY_LIMIT, || {
        ended = process.exit_status()?;
        Ok(ended.is_some() || answers(port, process.id()))
    })
    .map_err(StartServiceError::io("cannot watch the Redis in", place))?;
    let reason = match ended {
        Some(status) => format!("it ended with {status}"),
        None if !answered => format!("it did not answer PING within {} s", READY_LIMIT.as_secs()),
        None => return Ok(process),
    };
    let log_tail = log_tail(&log, log_began_at, 12);
    Err(StartServiceError::NotReady { program: "redis-server", reason, log, log_tail })
}

/// Whether the Redis on `port` answers, and is the process `id` rather than a stranger on the same port. A server
/// that wants a password first, or that forbids INFO, is taken for ours: it was asked for.
fn answers(port: u16, id: u32) -> bool {
    let asked = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).and_then(|mut stream| {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(b"PING\r\nINFO server\r\n")?;
        let mut lines = BufReader::new(stream).lines();
        let mut next = || lines.next().unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into()));
        let pong = next()?;
        if pong.starts_with("-NOAUTH") {
            return Ok(true);
        }
        if pong != "+PONG" || next()?.starts_with('-') {
            return Ok(pong == "+PONG");
        }
        loop {
            if let Some(found) = next()?.strip_prefix("process_id:") {
                return Ok(found == id.to_string());
            }
        }
    });
    asked.unwrap_or(false)
}

fn settings_of(mode: Mode, major: u32) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("bind", "127.0.0.1"),
        ("daemonize", "no"),
        // Evicting a bucket or a deadline would lose it silently.
        ("maxmemory-policy", "noeviction"),
        // Expired keys are announced on __keyevent@0__:expired, which the bridge hears.
        ("notify-keyspace-events", "Ex"),
        ("hz", "100"),
        ("save", ""),
        ("appendfsync", "everysec"),
        // The command line stays readable, by which the next start knows an orphan for ours.
        ("set-proc-title", "no"),
    ];
    match mode {
        Mode::Durable => settings.push(("appendonly", "yes")),
        Mode::Test => settings.extend([("appendonly", "no"), ("databases", "256")]),
    }
    // Redis 6 does not know the setting and allows DEBUG anyway.
    if mode == Mode::Test && major >= 7 {
        settings.push(("enable-debug-command", "local"));
    }
    settings
}
