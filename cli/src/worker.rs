//! `holdfast worker`: runs the queues' jobs, the bridge and the sweep.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use domain::queue::Queue;
use domain::runtime::settings::StoreSettings;
use domain::runtime::telemetry::{LogSettings, start_logging};
use workers::WorkerSettings;

use crate::jobs::parse_queue;
use crate::output::{CommandError, end};
use crate::runtime::{block_on, open_stores, shutdown_signal};

/// Arguments of `holdfast worker`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast worker\n  holdfast worker --queues payments --ops-addr 127.0.0.1:8082")]
pub struct WorkerArgs {
    /// The queues it serves, with commas [default: all]
    #[arg(long, env = "HOLDFAST_QUEUES", value_delimiter = ',', value_parser = parse_queue)]
    queues: Vec<Queue>,
    /// Where /livez, /readyz and /metrics are served
    #[arg(long, env = "HOLDFAST_WORKER_OPS_ADDR")]
    ops_addr: Option<SocketAddr>,
    #[command(flatten)]
    stores: StoreSettings,
    #[command(flatten)]
    log: LogSettings,
}

/// Runs `holdfast worker` until a signal.
#[must_use]
pub fn run(args: &WorkerArgs) -> ExitCode {
    start_logging(&args.log);
    end(block_on(worker(args)))
}

async fn worker(args: &WorkerArgs) -> Result<(), CommandError> {
    let shutdown = shutdown_signal()?;
    let stores = open_stores(&args.stores).await?;
    let queues = if args.queues.is_empty() { Queue::ALL.to_vec() } else { args.queues.clone() };
    let settings = WorkerSettings { queues, configure_redis: args.stores.redis_configure };
    let ops = match args.ops_addr {
        Some(addr) => Some(tokio::spawn(api::serve_worker_ops(addr, stores.clone(), shutdown.clone()))),
        None => None,
    };
    tracing::info!(queues = ?settings.queues, "the worker runs");
    workers::run(stores, settings, shutdown).await;
    if let Some(ops) = ops {
        ops.await??;
    }
    Ok(())
}
