//! `holdfast jobs …`: what the queues hold, and what becomes of dead jobs.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use domain::queue::{Queue, discard_dead, list_dead, queue_stats, requeue_dead};
use domain::runtime::settings::StoreSettings;
use serde_json::json;

use crate::output::{CommandError, OutputArgs, end, print};
use crate::runtime::{block_on, open_stores};

/// Dead jobs shown at once.
const SHOWN_MAX: usize = 200;

/// Arguments of `holdfast jobs`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    #[command(flatten)]
    stores: StoreSettings,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    command: JobsCommand,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// Show what each queue holds.
    Stats,
    /// List the dead jobs of a queue, with why they died.
    Dead {
        /// payments, expiries, events or warm-up
        #[arg(value_parser = parse_queue)]
        queue: Queue,
    },
    /// Run a dead job again, from its first attempt.
    Requeue {
        /// payments, expiries, events or warm-up
        #[arg(value_parser = parse_queue)]
        queue: Queue,
        /// The job's id, as `jobs dead` shows it
        id: String,
    },
    /// Throw a dead job away.
    Discard {
        /// payments, expiries, events or warm-up
        #[arg(value_parser = parse_queue)]
        queue: Queue,
        /// The job's id, as `jobs dead` shows it
        id: String,
    },
}

/// Reads a queue's name.
///
/// # Errors
/// Says which names there are.
pub fn parse_queue(name: &str) -> Result<Queue, String> {
    Queue::parse(name).ok_or_else(|| {
        let names: Vec<&str> = Queue::ALL.iter().map(|queue| queue.name()).collect();
        format!("the queues are {}", names.join(", "))
    })
}

/// Runs `holdfast jobs …`.
#[must_use]
pub fn run(args: &JobsArgs) -> ExitCode {
    end(block_on(jobs(args)))
}

async fn jobs(args: &JobsArgs) -> Result<(), CommandError> {
    let stores = open_stores(&args.stores).await?;
    let redis = stores.jobs.redis();
    let not_dead = |id: &str| CommandError::Usage(format!("there is no dead job {id}: see `holdfast jobs dead`"));
    match &args.command {
        JobsCommand::Stats => {
            let stats = queue_stats(redis).await?;
            let mut text = String::new();
            for queue in &stats {
                let (name, workers) = (queue.queue.name(), queue.workers.len());
                writeln!(
                    text,
                    "{name:9} ready {} delayed {} in flight {} done {} dead {} workers {workers}",
                    queue.ready, queue.delayed, queue.in_flight, queue.done, queue.dead
                )?;
            }
            let rows = stats.iter().map(|queue| {
                json!({
                    "queue": queue.queue.name(), "ready": queue.ready, "delayed": queue.delayed,
                    "in_flight": queue.in_flight, "done": queue.done, "dead": queue.dead,
                    "oldest_ready_age_ms": queue.oldest_ready_age_ms, "workers": queue.workers.len(),
                })
            });
            Ok(print(args.output, &rows.collect(), &text)?)
        }
        JobsCommand::Dead { queue } => {
            let page = list_dead(redis, *queue, 0, SHOWN_MAX).await?;
            let mut text = String::new();
            for job in &page.jobs {
                let (kind, reason) = (job.kind.as_deref().unwrap_or("?"), job.reason.as_deref().unwrap_or("?"));
                writeln!(text, "{}  {kind}  {} starts  {reason}", job.id, job.starts)?;
            }
            let rows = page.jobs.iter().map(|job| {
                json!({
                    "id": job.id, "kind": job.kind, "starts": job.starts, "attempts": job.attempts,
                    "reason": job.reason, "job": job.envelope,
                })
            });
            let data = json!({ "total": page.total, "jobs": rows.collect::<Vec<_>>() });
            Ok(print(args.output, &data, &text)?)
        }
        JobsCommand::Requeue { queue, id } => {
            if !requeue_dead(redis, *queue, id).await? {
                return Err(not_dead(id));
            }
            Ok(print(args.output, &json!({ "id": id, "requeued": true }), "requeued")?)
        }
        JobsCommand::Discard { queue, id } => {
            if !discard_dead(redis, *queue, id).await? {
                return Err(not_dead(id));
            }
            Ok(print(args.output, &json!({ "id": id, "discarded": true }), "discarded")?)
        }
    }
}
