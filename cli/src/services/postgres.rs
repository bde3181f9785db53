//! A private Postgres: initdb once, then `postgres` itself as our child, on 127.0.0.1 only and with a password, since
//! a superuser's connection can run programs and the machine may have other users.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use super::Mode;
use super::binaries::{find_postgres, find_postgres_of_version};
use super::error::StartServiceError;
use super::folder::DataFolder;
use super::process::{SupervisedProcess, as_pid, children_of, end_orphan, log_tail, log_to, wait_until};
use super::redis::free_port;

const CLUSTER: &str = "postgres";
const CLUSTER_IN_THE_MAKING: &str = "postgres.new";
const PASSWORD_FILE: &str = "holdfast.password";
/// The superuser and the database that a cluster begins with.
const NAME: &str = "holdfast";

/// Crash recovery of a busy cluster takes a while; a healthy start takes 0.2 s.
const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How often another free port is tried when somebody was faster.
const PORT_TRIES: u32 = 5;

/// How a private Postgres runs.
#[derive(Debug, Clone)]
pub struct PostgresConfig {
    /// What it promises about its data.
    pub mode: Mode,
    /// Its port on 127.0.0.1; `None` takes a free one.
    pub port: Option<u16>,
    /// Further settings, such as `("max_connections", "5")`; they win over ours.
    pub settings: Vec<(String, String)>,
}

impl PostgresConfig {
    /// Fast, forgetful, on a free port.
    pub fn test() -> Self {
        Self { mode: Mode::Test, port: None, settings: Vec::new() }
    }
}

/// A running Postgres with the database `holdfast`. Dropping it stops it.
#[derive(Debug)]
pub struct PostgresServer {
    process: SupervisedProcess,
    config: PostgresConfig,
    cluster: PathBuf,
    log: PathBuf,
    port: u16,
    url: String,
    /// Declared last: the folder must outlive the process.
    folder: Arc<DataFolder>,
}

impl PostgresServer {
    /// Starts a Postgres in a fresh folder of its own, which is removed at the end.
    pub fn start(config: PostgresConfig) -> Result<Self, StartServiceError> {
        Self::start_in(Arc::new(DataFolder::fresh()?), config)
    }

    /// Starts the Postgres that lives in `folder`, making its cluster if there is none.
    pub(super) fn start_in(folder: Arc<DataFolder>, config: PostgresConfig) -> Result<Self, StartServiceError> {
        let cluster = folder.path().join(CLUSTER);
        let log = folder.path().join("postgres.log");
        if cluster.exists() {
            end_orphan_in(folder.path())?;
        } else {
            make_cluster(&folder, config.mode)?;
        }
        let password_file = cluster.join(PASSWORD_FILE);
        let password = fs::read_to_string(&password_file)
            .map_err(StartServiceError::io("cannot read the password in", &password_file))?;
        let (process, port) = spawn_on_some_port(&folder, &cluster, &log, &config)?;
        let url = format!("postgres://{NAME}:{}@127.0.0.1:{port}/{NAME}", password.trim());
        Ok(Self { process, config, cluster, log, port, url, folder })
    }

    /// `postgres://holdfast:password@127.0.0.1:port/holdfast`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same server's URL for another database.
    pub fn url_of(&self, database: &str) -> String {
        let server = self.url.strip_suffix(NAME).unwrap_or(&self.url);
        format!("{server}{database}")
    }

    /// The port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the postmaster.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The server's log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether the postmaster still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.exit_status(), Ok(None))
    }

    /// Kills the postmaster as a crash would (SIGKILL). Its sessions end by themselves a moment later.
    pub fn kill(&mut self) -> Result<(), StartServiceError> {
        self.process.kill().map_err(StartServiceError::io("cannot kill the Postgres in", &self.cluster))
    }

    /// Freezes the postmaster and every session (SIGSTOP): connections stay open, nothing is answered.
    pub fn pause(&mut self) -> Result<(), StartServiceError> {
        self.signal_all(Signal::SIGSTOP)
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&mut self) -> Result<(), StartServiceError> {
        self.signal_all(Signal::SIGCONT)
    }

    /// Starts the server again on the same port with the same data, stopping it first if it still runs.
    pub fn restart(&mut self) -> Result<(), StartServiceError> {
        self.stop()?;
        let bin = postgres_for(&self.cluster)?;
        let mut failure = None;
        // After a kill the port or the shared memory may be in use until the last session has noticed.
        wait_until(STOP_LIMIT, || match spawn(&self.folder, &bin, &self.cluster, &self.log, &self.config, self.port) {
            Ok(process) => {
                self.process = process;
                failure = None;
                Ok(true)
            }
            Err(error) => {
                let passes = in_use(&error);
                failure = Some(error);
                Ok(!passes)
            }
        })
        .map_err(StartServiceError::io("cannot restart the Postgres in", &self.cluster))?;
        failure.map_or(Ok(()), Err)
    }

    /// Stops the server: in [`Mode::Durable`] with a checkpoint, in [`Mode::Test`] at once. Sessions are ended.
    pub fn stop(&mut self) -> Result<(), StartServiceError> {
        self.process
            .stop(end_signal(self.config.mode), STOP_LIMIT)
            .map_err(StartServiceError::io("cannot stop the Postgres in", &self.cluster))
    }

    fn signal_all(&mut self, signal: Signal) -> Result<(), StartServiceError> {
        let failed = StartServiceError::io("cannot signal the Postgres in", &self.cluster);
        let sent = self.process.signal(signal).and_then(|()| {
            // The postmaster is frozen first: otherwise it could start a session that escapes.
            for child in children_of(as_pid(self.process.id())?)? {
                // A session may have ended since the look.
                let _ = kill(child, signal);
            }
            Ok(())
        });
        sent.map_err(failed)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // The process's own drop kills what this cannot stop.
        let _ = self.stop();
    }
}

/// Ends a Postgres that a dead process left in `folder`.
pub(super) fn end_orphan_in(folder: &Path) -> Result<(), StartServiceError> {
    let cluster = folder.join(CLUSTER);
    end_orphan(&cluster.join("postmaster.pid"), &cluster, Signal::SIGINT, STOP_LIMIT)
        .map_err(StartServiceError::io("cannot end the Postgres left in", &cluster))
}

/// Postgres's "fast" shutdown writes a checkpoint, its "immediate" one just ends.
fn end_signal(mode: Mode) -> Signal {
    match mode {
        Mode::Durable => Signal::SIGINT,
        Mode::Test => Signal::SIGQUIT,
    }
}

/// Runs initdb beside the final place, makes our database, and only then moves it there: an interrupted first start
/// leaves nothing that the next one would take for a cluster.
fn make_cluster(folder: &DataFolder, mode: Mode) -> Result<(), StartServiceError> {
    let bin = find_postgres()?;
    let new = folder.path().join(CLUSTER_IN_THE_MAKING);
    if new.exists() {
        fs::remove_dir_all(&new).map_err(StartServiceError::io("cannot remove", &new))?;
    }
    let password_file = folder.path().join(PASSWORD_FILE);
    fs::write(&password_file, random_password()?).map_err(StartServiceError::io("cannot write", &password_file))?;
    folder.give_to_account(&password_file)?;

    let mut initdb = Command::new(bin.join("initdb"));
    initdb.arg("-D").arg(&new).args(["-U", NAME, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]);
    initdb.arg(format!("--pwfile={}", password_file.display()));
    if mode == Mode::Test {
        initdb.arg("--no-sync");
    }
    run_to_end(folder, initdb, "initdb", "")?;

    // A server for one session on its standard input: no port, no password, no waiting.
    let mut single = Command::new(bin.join("postgres"));
    single.args(["--single", "-c", "fsync=off", "-D"]).arg(&new).arg("postgres");
    run_to_end(folder, single, "postgres --single", &format!("CREATE DATABASE {NAME};\n"))?;

    let place = folder.path().join(CLUSTER);
    fs::rename(&password_file, new.join(PASSWORD_FILE))
        .and_then(|()| fs::rename(&new, &place))
        .map_err(StartServiceError::io("cannot move the new cluster to", &place))
}

fn run_to_end(
    folder: &DataFolder,
    mut command: Command,
    name: &'static str,
    input: &str,
) -> Result<(), StartServiceError> {
    folder.run_here(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = StartServiceError::io("cannot run the commands that make", folder.path());
    let output = (|| {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    })()
    .map_err(failed)?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // A single-user session exits 0 even when its statement failed.
    if output.status.success() && !text.contains("ERROR:") {
        return Ok(());
    }
    Err(StartServiceError::Preparation { command: name, status: output.status.to_string(), output: text })
}

/// 32 hexadecimal digits from the system's generator. It guards a throw-away server on loopback; it is no input of any
/// rule, so it does not come from the seam that tests replay.
fn random_password() -> Result<String, StartServiceError> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0_u8; 16];
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(StartServiceError::io("cannot read", source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn postgres_for(cluster: &Path) -> Result<PathBuf, StartServiceError> {
    let path = cluster.join("PG_VERSION");
    let version = fs::read_to_string(&path).map_err(StartServiceError::io("cannot read", &path))?;
    find_postgres_of_version(version.trim())
}

fn spawn_on_some_port(
    folder: &DataFolder,
    cluster: &Path,
    log: &Path,
    config: &PostgresConfig,
) -> Result<(SupervisedProcess, u16), StartServiceError> {
    let bin = postgres_for(cluster)?;
    let mut tries_left = PORT_TRIES;
    loop {
        let port = config.port.map_or_else(free_port, Ok)?;
        tries_left -= 1;
        match spawn(folder, &bin, cluster, log, config, port) {
            Ok(process) => return Ok((process, port)),
            Err(error) if in_use(&error) && config.port.is_some() => {
                return Err(StartServiceError::PortTaken { port });
            }
            Err(error) if in_use(&error) && tries_left > 0 => {}
            Err(error) => return Err(error),
        }
    }
}

fn in_use(error: &StartServiceError) -> bool {
    matches!(error, StartServiceError::NotReady { log_tail, .. }
        if log_tail.contains("Address already in use") || log_tail.contains("shared memory block"))
}

fn spawn(
    folder: &DataFolder,
    bin: &Path,
    cluster: &Path,
    log: &Path,
    config: &PostgresConfig,
    port: u16,
) -> Result<SupervisedProcess, StartServiceError> {
    let mut command = Command::new(bin.join("postgres"));
    command.arg("-D").arg(cluster).args(["-p", &port.to_string()]);
    for (name, value) in settings_of(config.mode) {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    for (name, value) in &config.settings {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    folder.run_here(&mut command);
    let log_began_at = fs::metadata(log).map_or(0, |metadata| metadata.len());
    log_to(&mut command, log).map_err(StartServiceError::io("cannot write", log))?;
    let mut process = SupervisedProcess::spawn(command, end_signal(config.mode))
        .map_err(StartServiceError::io("cannot start", &bin.join("postgres")))?;
    let pid_file = cluster.join("postmaster.pid");
    let mut ended = None;
    let answered = wait_until(READY_LIMIT, || {
        ended = process.exit_status()?;
        Ok(ended.is_some() || says_ready(&pid_file, process.id()))
    })
    .map_err(StartServiceError::io("cannot watch the Postgres in", cluster))?;
    let reason = match ended {
        Some(status) => format!("it ended with {status}"),
        None if !answered => format!("it was not ready after {} s", READY_LIMIT.as_secs()),
        None => return Ok(process),
    };
    let log_tail = log_tail(log, log_began_at, 12);
    Err(StartServiceError::NotReady { program: "postgres", reason, log: log.to_owned(), log_tail })
}

/// The postmaster writes its state to the eighth line of its pid file; pg_ctl waits in the same way.
fn says_ready(pid_file: &Path, id: u32) -> bool {
    fs::read_to_string(pid_file).is_ok_and(|text| {
        let mut lines = text.lines();
        lines.next().is_some_and(|line| line.trim() == id.to_string())
            && lines.nth(6).is_some_and(|line| line.trim() == "ready")
    })
}

/// Settings for a machine with two cores shared with the api, the worker and Redis.
fn settings_of(mode: Mode) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("listen_addresses", "127.0.0.1"),
        // A socket's path may have 107 bytes, which a checkout's folder easily exceeds.
        ("unix_socket_directories", ""),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
        ("log_line_prefix", "%m [%p] %d "),
        ("jit", "off"),
        ("random_page_cost", "1.1"),
        ("max_wal_size", "2GB"),
    ];
    settings.extend(match mode {
        Mode::Durable => [
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            ("shared_buffers", "256MB"),
            ("max_connections", "100"),
            ("checkpoint_timeout", "15min"),
            ("wal_compression", "on"),
        ],
        Mode::Test => [
            ("fsync", "off"),
            ("full_page_writes", "off"),
            ("synchronous_commit", "off"),
            ("shared_buffers", "64MB"),
            // Every test has a database and pools of its own.
            ("max_connections", "300"),
            ("checkpoint_timeout", "1h"),
            ("autovacuum_naptime", "5min"),
        ],
    });
    settings
}
