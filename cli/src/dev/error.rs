//! Why `holdfast dev` could not do what was asked.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::services::StartServiceError;

/// Why `holdfast dev` could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// A private Postgres or Redis did not start or stop.
    #[error(transparent)]
    Services(#[from] StartServiceError),
    /// The operating system refused something.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// One of our own processes failed.
    #[error("`holdfast {command}` {outcome}; the end of its output:\n{output}")]
    Child {
        /// Its subcommand.
        command: String,
        /// How it ended.
        outcome: String,
        /// The last lines it printed.
        output: String,
    },
    /// The api did not answer at all.
    #[error("cannot {action} through the api")]
    Http {
        /// What was tried.
        action: String,
        /// Why not.
        #[source]
        source: reqwest::Error,
    },
    /// The api answered something else than expected.
    #[error("cannot {action}: the api answered {status}: {body}")]
    Refused {
        /// What was tried.
        action: String,
        /// The answer's status.
        status: u16,
        /// The answer's body.
        body: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {limit_s} s")]
    TooSlow {
        /// What was awaited.
        what: String,
        /// For how many seconds.
        limit_s: u64,
    },
}

impl DevError {
    /// Wraps the system's refusal of `action`.
    pub(super) fn io(action: String) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    /// Wraps a request that got no answer.
    pub(super) fn http(action: &str) -> impl FnOnce(reqwest::Error) -> Self {
        let action = action.to_owned();
        move |source| Self::Http { action, source }
    }

    /// Prints the error with its causes to stderr and chooses the exit code: 2 when the machine lacks something, else 1.
    pub(super) fn report(&self) -> ExitCode {
        let mut text = format!("holdfast: {self}");
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        say(&text);
        match self {
            Self::Services(error) if error.is_something_missing() => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Prints a line for the person at the terminal; data goes to stdout instead.
pub(super) fn say(line: &str) {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints a line of data to stdout.
pub(super) fn print(line: &str) -> Result<(), DevError> {
    writeln!(io::stdout().lock(), "{line}").map_err(DevError::io("write to stdout".to_owned()))
}
