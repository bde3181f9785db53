//! The chaos run itself, as anybody starts it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use holdfast_tests::wait::until_within;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The binary, built from the same sources as these tests.
const BINARY: &str = env!("CARGO_BIN_EXE_holdfast-under-test");
/// The last process notices a moment later that its parent is gone.
const GONE: Duration = Duration::from_secs(20);

/// A folder of this test's own, by which its processes are known too: they inherit its name.
struct Scratch(PathBuf);

impl Scratch {
    fn make(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("chaos-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        // Run as root, Postgres drops to another account, which must reach its data.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn start(&self, minutes: &str) -> Child {
        let mut command = Command::new(BINARY);
        command
            .args(["chaos", "--minutes", minutes, "--seed", "3", "--buyers", "10", "--json", "--out"])
            .arg(self.0.join("report.html"))
            .env("TMPDIR", &self.0)
            .env("HOLDFAST_LOG", "error")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Processes that run with this folder as theirs.
    fn processes(&self) -> Vec<String> {
        let mark = format!("TMPDIR={}", self.0.display());
        let ids = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
        let command =
            |process: &Path| fs::read_to_string(process.join("cmdline")).unwrap_or_default().replace('\0', " ");
        let is_ours = |process: &Path| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            let inherits = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            // Redis writes its title over its environment, and names its folder in its arguments.
            inherits || command(process).contains(&*self.0.to_string_lossy())
        };
        ids.filter(|process| is_ours(process)).map(|process| command(&process)).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _cleaned_at_the_next_start_of_the_machine = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_short_chaos_run() {
    let scratch = Scratch::make("short");
    let mut run = scratch.start("0.25");
    let mut told = String::new();
    let mut printed = String::new();
    // Progress is little: it fits into the pipe while the figures are read.
    run.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    run.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    let status = run.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{printed}\n{told}");
    let figures: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(figures["verdict"], "clean");
    assert!(figures["faults"].as_array().unwrap().len() >= 2, "{told}");
    assert!(figures["counts"]["holds_acknowledged"].as_u64().unwrap() > 0, "{told}");
    assert!(figures["checks"].as_array().unwrap().iter().any(|check| check["looked_at"].as_u64().unwrap() > 0));
    let page = fs::read_to_string(scratch.0.join("report.html")).unwrap();
    assert!(page.contains("Nothing was lost") && page.contains("<svg"));
    let beside: Value = serde_json::from_slice(&fs::read(scratch.0.join("report.json")).unwrap()).unwrap();
    assert_eq!(beside, figures);
    assert_eq!(scratch.processes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chaos_run_that_is_stopped_or_killed_leaves_no_process_behind() {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let scratch = Scratch::make(signal.as_str());
        let mut run = scratch.start("1");
        // The first progress: everything runs but what the first fault has just killed.
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(" s  ")), "the run ended early");
        assert!(scratch.processes().len() > 5, "stores and processes run: {:?}", scratch.processes());
        kill(Pid::from_raw(run.id().try_into().unwrap()), signal).unwrap();
        let status = run.wait().unwrap();
        assert!(!status.success(), "{status}");
        until_within(GONE, "all of its processes to end", async || scratch.processes().is_empty().then_some(())).await;
    }
}
