//! Structured logs on stderr: one line each, JSON or text.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// How a process logs.
#[derive(Debug, Clone, Args)]
pub struct LogSettings {
    /// What to log, as in RUST_LOG: info, or holdfast=debug,api=debug
    #[arg(long, env = "HOLDFAST_LOG", default_value = "info")]
    pub log: String,
    /// The form of a log line
    #[arg(long, env = "HOLDFAST_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Starts logging for this process. A second call changes nothing.
pub fn start_logging(settings: &LogSettings) {
    let filter = EnvFilter::try_new(&settings.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(is_terminal).with_writer(std::io::stderr);
    // A second subscriber is refused by tracing: tests start several parts in one process.
    let _first_wins = match settings.log_format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}
