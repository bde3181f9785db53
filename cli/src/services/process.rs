//! A child process that cannot outlive us.
//!
//! On Linux the kernel itself sends the child a signal when its parent dies (`PR_SET_PDEATHSIG`), `kill -9` included.
//! "Parent" there means the thread that forked, not the process: a child spawned from a test's or a runtime's worker
//! thread would be shot when that thread ends. So each child is forked by a thread of its own that then waits until
//! the child's owner lets go. Elsewhere a server that was orphaned is stopped by the next start in its folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a condition is left alone between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A log longer than this is set aside as `….1` at the next start.
const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// A child process which dies with us, usually in a process group of its own, so that a terminal's Ctrl-C reaches only
/// us and we end our children in order. Dropping it kills it.
#[derive(Debug)]
pub struct SupervisedProcess {
    child: Child,
    /// Its end lets the forking thread go; declared after `child`, so that the child is reaped first.
    _forker: mpsc::Sender<()>,
}

impl SupervisedProcess {
    /// Starts `command`; the child gets `death_signal` when this process dies. Standard streams are the command's own.
    pub fn spawn(mut command: Command, death_signal: Signal) -> io::Result<Self> {
        command.process_group(0);
        Self::spawn_in_our_group(command, death_signal)
    }

    /// Like [`Self::spawn`], but the child shares our terminal: it may read from it, and Ctrl-C reaches it too.
    pub fn spawn_in_our_group(mut command: Command, death_signal: Signal) -> io::Result<Self> {
        die_with_parent(&mut command, death_signal);
        let (forker, owner_gone) = mpsc::channel::<()>();
        let (to_owner, spawned) = mpsc::sync_channel(1);
        thread::Builder::new().name("forker".to_owned()).stack_size(64 * 1024).spawn(move || {
            // A failed send means that the owner is gone already; dropping the child's handle then ends this thread,
            // and with it the child.
            let _ = to_owner.send(command.spawn());
            // Only an error can come: nobody ever sends.
            let _ = owner_gone.recv();
        })?;
        let child = spawned.recv().map_err(|_| io::Error::other("the forking thread ended early"))??;
        Ok(Self { child, _forker: forker })
    }

    /// The child's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the child ended; `None` while it runs.
    pub fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends `signal` to the child if it still runs.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // An unreaped child keeps its process id, so the signal cannot hit a stranger.
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill(as_pid(self.child.id())?, signal).map_err(io::Error::from)
    }

    /// Waits until the child has ended, for at most `limit`; `None` if it still runs then.
    pub fn wait_for_exit(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let mut status = None;
        let done = wait_until(limit, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        Ok(if done { status } else { None })
    }

    /// Asks the child to end with `signal`, and kills it if it has not done so within `limit`.
    pub fn stop(&mut self, signal: Signal, limit: Duration) -> io::Result<()> {
        self.signal(signal)?;
        // A paused child acts on a signal only after it has been woken.
        self.signal(Signal::SIGCONT)?;
        if self.wait_for_exit(limit)?.is_none() {
            self.kill()?;
        }
        Ok(())
    }

    /// Kills the child (SIGKILL) and reaps it.
    pub fn kill(&mut self) -> io::Result<()> {
        if self.child.try_wait()?.is_none() {
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        // Nothing is left to tell anybody: a child that cannot be killed is gone already.
        let _ = self.kill();
    }
}

/// Makes the kernel send `signal` to the child when the thread that forks it ends.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "pre_exec is the only place where a child can ask for its parent's death signal")]
fn die_with_parent(command: &mut Command, signal: Signal) {
    let parent = Pid::this();
    // SAFETY: between fork and exec only async-signal-safe calls are made, prctl and getppid; nothing is allocated.
    // std runs this after it has dropped to another user, which would have cleared the signal.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(signal)?;
            // The parent may have died before the call above: then no signal would ever come.
            if Pid::parent() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        });
    }
}

/// Without such a signal an orphan lives on until the next start in its folder ends it.
#[cfg(not(target_os = "linux"))]
fn die_with_parent(_command: &mut Command, _signal: Signal) {}

/// Looks at `condition` until it is true or `limit` has passed; tells which.
pub(super) fn wait_until(limit: Duration, mut condition: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let begun = Instant::now();
    loop {
        if condition()? {
            return Ok(true);
        }
        if begun.elapsed() >= limit {
            return Ok(false);
        }
        thread::sleep(LOOK_EVERY);
    }
}

pub(super) fn as_pid(id: u32) -> io::Result<Pid> {
    i32::try_from(id).map(Pid::from_raw).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Opens `path` to append to, for a child's output; an old log that has grown too long is set aside first.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Sends both of the command's output streams to the log at `path`.
pub(crate) fn log_to(command: &mut Command, path: &Path) -> io::Result<()> {
    let log = open_log(path)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(())
}

/// The last `lines` lines of a log that was `from` bytes long when the process in question began.
pub(crate) fn log_tail(path: &Path, from: u64, lines: usize) -> String {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(64 * 1024))))?;
        file.read_to_end(&mut text)
    });
    if let Err(error) = read {
        return format!("  (the log cannot be read: {error})");
    }
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let tail = &all[all.len().saturating_sub(lines)..];
    if tail.is_empty() { "  (it is empty)".to_owned() } else { format!("  {}", tail.join("\n  ")) }
}

/// A server that a dead process left behind: its process id, if such a process still runs with `mark` in its arguments.
pub(super) fn find_orphan(pid_file: &Path, mark: &Path) -> Option<Pid> {
    let text = fs::read_to_string(pid_file).ok()?;
    let pid = Pid::from_raw(text.lines().next()?.trim().parse().ok().filter(|id| *id > 1)?);
    // The id may have been given to a stranger since: only a process that names our folder is ours.
    arguments_of(pid)?.contains(mark.to_str()?).then_some(pid)
}

/// The command line of a running process. An ended process that nobody has reaped has none.
fn arguments_of(pid: Pid) -> Option<String> {
    let from_proc = PathBuf::from(format!("/proc/{pid}/cmdline"));
    if Path::new("/proc/self/cmdline").exists() {
        return fs::read(from_proc).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    }
    let output = Command::new("ps").args(["-o", "args=", "-p", &pid.to_string()]).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The direct children of a process.
pub(super) fn children_of(parent: Pid) -> io::Result<Vec<Pid>> {
    let Ok(entries) = fs::read_dir("/proc") else {
        let output = Command::new("pgrep").args(["-P", &parent.to_string()]).output()?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        return Ok(listed.lines().filter_map(|line| line.trim().parse().ok()).map(Pid::from_raw).collect());
    };
    let is_child = |pid: &i32| {
        // After the name, which is in parentheses and may hold anything, come the state and the parent's id.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent_id = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parent_id == Some(parent.as_raw())
    };
    let ids = entries.filter_map(Result::ok).filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(ids.filter(is_child).map(Pid::from_raw).collect())
}

/// Asks an orphan to end with `signal`, and kills it if it still runs after `limit`.
pub(super) fn end_orphan(pid_file: &Path, mark: &Path, signal: Signal, limit: Duration) -> io::Result<()> {
    let Some(orphan) = find_orphan(pid_file, mark) else { return Ok(()) };
    // It may end by itself between the look and the signal.
    let _ = kill(orphan, signal);
    if wait_until(limit, || Ok(find_orphan(pid_file, mark) != Some(orphan)))? {
        return Ok(());
    }
    let _ = kill(orphan, Signal::SIGKILL);
    wait_until(Duration::from_secs(5), || Ok(find_orphan(pid_file, mark) != Some(orphan)))?;
    Ok(())
}
