//! How a command runs: a tokio runtime, the stores it needs, the signal to stop.

use std::future::Future;

use anyhow::Context as _;
use domain::flow::Stores;
use domain::runtime::clock::Clock;
use domain::runtime::settings::StoreSettings;
use domain::store::pg::Pg;
use tokio_util::sync::CancellationToken;

use crate::output::{CommandError, tell};

/// Connections of a command that works alone.
const COMMAND_CONNECTIONS: u32 = 4;
/// One statement of a command may take a minute: an import is not a hold.
const COMMAND_STATEMENT_MS: i64 = 60_000;

/// Postgres, for commands that need nothing else.
#[derive(Debug, Clone, clap::Args)]
pub struct DatabaseArgs {
    /// Postgres, as postgres://user:password@host:port/database
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
}

impl DatabaseArgs {
    /// Prepares a pool.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn connect(&self) -> Result<Pg, CommandError> {
        Pg::connect(&self.database_url, COMMAND_CONNECTIONS, COMMAND_STATEMENT_MS, Clock::default())
            .context("DATABASE_URL is not a Postgres URL such as postgres://user:password@host:5432/name")
            .map_err(CommandError::Failed)
    }
}

/// Runs a command to its end.
///
/// # Errors
/// The command's own.
pub fn block_on(work: impl Future<Output = Result<(), CommandError>>) -> Result<(), CommandError> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Connects the stores and checks that this program and the installation agree.
///
/// # Errors
/// The settings cannot be used, the schema is not up to date, or another Redis layout is in use.
pub async fn open_stores(settings: &StoreSettings) -> Result<Stores, CommandError> {
    let stores = Stores::connect(settings, Clock::default())?;
    if !stores.pg.is_migrated().await.context("cannot look at the database")? {
        return Err(CommandError::Usage("the database is not up to date: run `holdfast migrate`".to_owned()));
    }
    stores.claim_layout().await?;
    Ok(stores)
}

/// A token that SIGTERM and Ctrl-C cancel; a second signal ends the process at once.
///
/// # Errors
/// The operating system refused the handlers.
pub fn shutdown_signal() -> Result<CancellationToken, CommandError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if token.is_cancelled() {
                std::process::exit(1);
            }
            tell("stopping; once more to stop at once");
            token.cancel();
        }
    });
    Ok(shutdown)
}
