//! `holdfast api`: serves the HTTP API and the operators' listener.

use std::process::ExitCode;

use clap::Args;
use domain::runtime::settings::StoreSettings;
use domain::runtime::telemetry::{LogSettings, start_logging};

use crate::output::{CommandError, end};
use crate::runtime::{block_on, open_stores, shutdown_signal};

/// Arguments of `holdfast api`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast api --addr 127.0.0.1:8080 --ops-addr 127.0.0.1:8081 --fake-provider true")]
pub struct ApiArgs {
    #[command(flatten)]
    api: ::api::ApiSettings,
    #[command(flatten)]
    stores: StoreSettings,
    #[command(flatten)]
    log: LogSettings,
}

/// Runs `holdfast api` until a signal.
#[must_use]
pub fn run(args: ApiArgs) -> ExitCode {
    start_logging(&args.log);
    end(block_on(serve(args)))
}

async fn serve(args: ApiArgs) -> Result<(), CommandError> {
    let shutdown = shutdown_signal()?;
    let stores = open_stores(&args.stores).await?;
    ::api::serve(args.api, stores, shutdown).await?;
    Ok(())
}
