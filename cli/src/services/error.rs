//! Why a private server did not start, in words that say what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a private Postgres or Redis could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartServiceError {
    /// No binary was found where one is usually installed.
    #[error("{program} is not installed (looked in {looked_in}). {remedy}")]
    NotInstalled {
        /// The missing program.
        program: &'static str,
        /// The places searched, for a person to read.
        looked_in: String,
        /// What to type to get it.
        remedy: &'static str,
    },
    /// Another live process holds the folder's lock.
    #[error("services already run in {}: {holder}. Stop that process first (Ctrl-C there), or choose another folder", folder.display())]
    AlreadyRunning {
        /// The locked folder.
        folder: PathBuf,
        /// The holder's own words: its process id and what it runs where.
        holder: String,
    },
    /// Run as root, the servers drop to another account, which must be able to reach the folder.
    #[error("the account `{account}`, to which the servers drop when run as root, cannot enter {}. Choose a folder under /var/lib or /tmp with --data-dir or HOLDFAST_DATA_DIR", blocked_at.display())]
    Unreachable {
        /// The unprivileged account.
        account: String,
        /// The first folder on the way that shuts it out.
        blocked_at: PathBuf,
    },
    /// Neither `postgres` nor `nobody` exists on this machine.
    #[error(
        "run as root, Postgres needs an unprivileged account, and neither `postgres` nor `nobody` exists: run as a user, or add one"
    )]
    NoAccount,
    /// The folder holds something that is not ours.
    #[error("{} is not a data folder of Holdfast (it has no `{marker}`): nothing was touched", folder.display())]
    NotOurs {
        /// The folder in question.
        folder: PathBuf,
        /// The file that marks a folder as ours.
        marker: &'static str,
    },
    /// A server ended or did not answer in time.
    #[error("{program} did not start: {reason}. The end of {}:\n{log_tail}", log.display())]
    NotReady {
        /// The program.
        program: &'static str,
        /// What happened instead of an answer.
        reason: String,
        /// Its whole log.
        log: PathBuf,
        /// The log's last lines.
        log_tail: String,
    },
    /// A command that prepares a server failed.
    #[error("{command} failed with {status}:\n{output}")]
    Preparation {
        /// The command's name.
        command: &'static str,
        /// Its exit status.
        status: String,
        /// What it printed.
        output: String,
    },
    /// The port asked for is taken.
    #[error("port {port} on 127.0.0.1 is taken by another program: choose another one, or none to get a free one")]
    PortTaken {
        /// The port asked for.
        port: u16,
    },
    /// The operating system refused something.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried, as in "cannot read".
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

impl StartServiceError {
    /// Wraps the system's refusal of `action` on `path`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Whether the machine lacks something (exit code 2), rather than something having gone wrong (exit code 1).
    pub fn is_something_missing(&self) -> bool {
        match self {
            Self::NotInstalled { .. }
            | Self::AlreadyRunning { .. }
            | Self::Unreachable { .. }
            | Self::NoAccount
            | Self::NotOurs { .. }
            | Self::PortTaken { .. } => true,
            Self::NotReady { .. } | Self::Preparation { .. } | Self::Io { .. } => false,
        }
    }
}
