//! `holdfast worker`: runs the queues' jobs, the bridge and the sweep.

use std::net::SocketAddr;
use std::process::ExitCode;

use ::api::OpsSettings;
use ::api::ops::serve_worker_ops;
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
    /// Where /livez, /readyz, /metrics and the board are served [default: nowhere]
    #[arg(long, env = "HOLDFAST_WORKER_OPS_ADDR")]
    ops_addr: Option<SocketAddr>,
    /// Ask for an API key of scope ops on a loopback address too; elsewhere it is always asked for
    #[arg(long, env = "HOLDFAST_OPS_KEY", default_value_t = false, action = clap::ArgAction::Set)]
    ops_key: bool,
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
    let ops = args.ops_addr.map(|addr| {
        let ops = OpsSettings { addr, key: args.ops_key, drain_ms: 0, stop_ms: 0 };
        tokio::spawn(serve_worker_ops(ops, stores.clone(), shutdown.clone()))
    });
    tracing::info!(queues = ?settings.queues, "the worker runs");
    workers::run(stores, settings, shutdown).await;
    if let Some(ops) = ops {
        ops.await??;
    }
    Ok(())
}
