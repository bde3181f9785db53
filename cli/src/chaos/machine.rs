//! Where a run took place.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use serde::Serialize;

/// The machine and the versions.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Cores.
    pub cores: usize,
    /// The processor's name.
    pub processor: String,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// The kernel.
    pub kernel: String,
    /// Postgres.
    pub postgres: String,
    /// Redis.
    pub redis: String,
    /// This program's version, and whether it was built with optimisation.
    pub holdfast: String,
    /// The commit that is checked out here.
    pub commit: String,
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub fn look(postgres: String, redis: String) -> Self {
        let processor = line_of("/proc/cpuinfo", "model name").unwrap_or_default();
        let memory_kib =
            line_of("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let build = if cfg!(debug_assertions) { "dev profile" } else { "release" };
        Self {
            cores: available_parallelism().map_or(1, usize::from),
            processor: if processor.is_empty() { "unknown".to_owned() } else { processor },
            memory_mib: memory_kib.unwrap_or(0) / 1_024,
            kernel: said("uname", &["-sr"]),
            postgres,
            redis,
            holdfast: format!("{} ({build})", env!("CARGO_PKG_VERSION")),
            commit: said("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        }
    }
}

fn line_of(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success());
    output.map_or_else(|| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
