//! Measures Holdfast over HTTP, on private Postgres (fsync on) and Redis (AOF) of its own. It asserts nothing: it prints
//! figures, and beside them what the machine gives for a bare Postgres commit, or what a bare Redis announces, in the
//! same run. That Redis is what Postgres is after a warm-up or a loss is no figure: where it is not, the run fails.
//!
//! Closed loop: each client sends its next request when the last is answered. Everything shares the machine's cores.

mod client;
mod compare;
mod ear;
mod engine;
mod expiry;
mod flush;
mod load;
mod mirror;
mod seed;
mod table;
mod warm_up;
mod workload;

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

use engine::Engine;
use workload::Figures;

#[derive(Debug, Parser)]
#[command(
    name = "bench",
    after_help = "Examples:\n  cargo run --release -p bench -- hold\n  \
                                        cargo run --release -p bench -- read-block --seats 2000\n  \
                                        cargo run --release -p bench -- scale --seconds 5\n  \
                                        cargo run --release -p bench -- expiry --scenario second --json\n  \
                                        cargo run --release -p bench -- warm-up --reservations 1000000\n  \
                                        cargo run --release -p bench -- flush\n\n\
                  Needs installed Postgres, Redis, psql and (for hold) pgbench, and a machine that does nothing else: \
                  compilers beside it double every figure. The load average is printed with each."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Clients at once
    #[arg(long, global = true, default_value_t = 64)]
    clients: usize,
    /// How long each workload runs
    #[arg(long, global = true, default_value_t = 8)]
    seconds: u64,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// How late expiry is: for the next buyer, on the block's channel, in Postgres; beside Redis's own announcement
    Expiry(expiry::ExpiryArgs),
    /// Warm-up of a million reservations: time, memory, under load, killed in the middle
    WarmUp(warm_up::WarmUpArgs),
    /// Redis flushed under load on the demo stadium: until it is right again, and what buyers see meanwhile
    Flush(flush::FlushArgs),
    /// Durable holds of one seat each, by as many clients, beside pgbench's single-row commits
    Hold {
        /// Seats of the venue
        #[arg(long, default_value_t = 100_000)]
        seats: usize,
    },
    /// Reads of one block
    ReadBlock {
        /// Seats of the block
        #[arg(long, default_value_t = 500)]
        seats: usize,
    },
    /// Reads of one block from the mirror without HTTP, beside reads of Redis
    Mirror {
        /// Seats of the block
        #[arg(long, default_value_t = 500)]
        seats: usize,
    },
    /// A hold's cost beside few and beside 1,000,000 seats on sale
    Scale,
    /// Memory of api and worker with so many seats on sale
    Memory {
        /// Seats on sale
        #[arg(long, default_value_t = 100_000)]
        seats: usize,
    },
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(run(&cli))
}

async fn run(cli: &Cli) -> Result<()> {
    let span = Duration::from_secs(cli.seconds);
    match &cli.command {
        Command::Mirror { seats } => mirror::run(*seats, span).await,
        Command::Expiry(args) => expiry::run(args).await,
        Command::WarmUp(args) => warm_up::run(*args).await,
        Command::Flush(args) => flush::run(*args).await,
        Command::Hold { .. } | Command::ReadBlock { .. } | Command::Scale | Command::Memory { .. } => {
            rates(cli, span).await
        }
    }
}

/// What needs one engine that nobody disturbs.
async fn rates(cli: &Cli, span: Duration) -> Result<()> {
    let mut engine = Engine::start().await?;
    match cli.command {
        Command::Mirror { .. } | Command::Expiry(_) | Command::WarmUp(_) | Command::Flush(_) => {}
        Command::Hold { seats } => {
            let event = engine.open_event(seats, 500).await?;
            let floor = engine.pgbench(cli.clients, cli.seconds)?;
            let figures = workload::hold(&engine, &event, cli.clients, span).await?;
            figures.print("hold, 1 seat");
            say(&format!(
                "pgbench, 1-row insert + commit, same Postgres: {floor:.0}/s; ratio {:.2}",
                figures.rate / floor
            ));
        }
        Command::ReadBlock { seats } => {
            let event = engine.open_event(seats, seats).await?;
            workload::read_block(&engine, &event, cli.clients, span)
                .await?
                .print(&format!("read-block, {seats} seats"));
        }
        Command::Scale => scale(&mut engine, cli.clients, span).await?,
        Command::Memory { seats } => {
            let event = engine.open_event(seats, 500).await?;
            workload::read_all_blocks(&engine, &event).await?;
        }
    }
    for (process, megabytes) in engine.memory()? {
        say(&format!("{process}: {megabytes:.0} MB resident"));
    }
    engine.stop()
}

/// The median of three runs each, beside little and beside much.
async fn scale(engine: &mut Engine, clients: usize, span: Duration) -> Result<()> {
    const SEATS_PER_VENUE: usize = 200_000;
    let before = median_hold(engine, clients, span, "beside 60,000 seats on sale").await?;
    for venue in 1..=5 {
        engine.open_event(SEATS_PER_VENUE, 500).await?;
        say(&format!("{} seats on sale", venue * SEATS_PER_VENUE));
    }
    // The load's own aftermath (checkpoint, vacuum) is not what is measured.
    engine.settle()?;
    let after = median_hold(engine, clients, span, "beside 1,000,000 seats on sale").await?;
    say(&format!("rate beside 1,000,000 over rate beside 60,000, medians: {:.2}", after / before));
    Ok(())
}

async fn median_hold(engine: &mut Engine, clients: usize, span: Duration, name: &str) -> Result<f64> {
    const RUNS: usize = 3;
    let mut rates = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let event = engine.open_event(20_000, 500).await?;
        let figures: Figures = workload::hold(engine, &event, clients, span).await?;
        figures.print(&format!("hold {name}"));
        rates.push(figures.rate);
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[RUNS / 2])
}

fn say(line: &str) {
    use std::io::Write as _;
    let _nobody_reads = writeln!(std::io::stdout(), "{line}");
}
