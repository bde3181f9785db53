//! `holdfast audit`: compares the stores of a running installation, and repairs what it is told to.

mod show;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use domain::flow::Stores;
use domain::flow::audit::{AuditPlan, AuditReport, LookedAt, Repaired, Verdict, audit, repair};
use domain::flow::finalize_payment::Gateways;
use domain::id::EventId;
use domain::runtime::settings::StoreSettings;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{CommandError, OutputArgs, end, print};
use crate::runtime::{block_on, open_stores};

/// Exit code: an invariant is broken.
const BROKEN: u8 = 3;

/// Arguments of `holdfast audit`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 clean, or only drift and what waits for a person; 3 an invariant is broken; \
                        1 it could not run, or could not look at everything (Redis or a provider is away) and found \
                        nothing broken in the rest. With --repair the code tells what is left after the repair.\n\n\
                        Examples:\n  holdfast audit\n  holdfast audit --event 0190… --json\n  holdfast audit --repair")]
pub struct AuditArgs {
    /// Set right, by the flows that run every day, what they can set right; then look again
    #[arg(long)]
    repair: bool,
    /// This event only
    #[arg(long)]
    event: Option<EventId>,
    /// Findings that are shown; all are counted
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Rows or seats in one statement or call
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(i64).range(10..=5_000))]
    page: i64,
    /// Pause after each page, ms: longer is gentler
    #[arg(long, default_value_t = 0)]
    pace: u64,
    /// How long a difference must stand still before it is a finding, ms [default: longer than whatever is under way]
    #[arg(long)]
    patience: Option<u64>,
    /// Ask the provider about payments that ended within so many hours
    #[arg(long, default_value_t = 24)]
    payments_since: u64,
    /// Ask the provider about every payment
    #[arg(long, conflicts_with = "payments_since")]
    all_payments: bool,
    #[command(flatten)]
    stores: StoreSettings,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `holdfast audit`.
#[must_use]
pub fn run(args: &AuditArgs) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let ran = block_on(async {
        code = run_audit(args).await?;
        Ok(())
    });
    match ran {
        Ok(()) => code,
        Err(error) => end(Err(error)),
    }
}

async fn run_audit(args: &AuditArgs) -> Result<ExitCode, CommandError> {
    let stores = open_stores(&args.stores).await?;
    let gateways = workers::gateways(&stores);
    let plan = args.plan(&stores);
    let first = look(&stores, &gateways, &plan).await?;
    let (report, before, repaired) = if args.repair {
        let repaired = repair(&stores, &first.findings).await;
        let left = if repaired.is_empty() { first.clone() } else { look(&stores, &gateways, &plan).await? };
        (left, Some(first), repaired)
    } else {
        (first, None, Vec::new())
    };
    let outcome = Outcome { report: &report, before: before.as_ref(), repaired: &repaired, limit: args.limit as usize };
    print(args.output, &show::json(&outcome), &show::text(&outcome))?;
    Ok(exit_code(&report))
}

/// What is shown.
struct Outcome<'a> {
    report: &'a AuditReport,
    before: Option<&'a AuditReport>,
    repaired: &'a [Repaired],
    limit: usize,
}

fn exit_code(report: &AuditReport) -> ExitCode {
    match report.verdict() {
        Verdict::Broken => ExitCode::from(BROKEN),
        Verdict::Clean | Verdict::Drift if !report.skipped.is_empty() => ExitCode::FAILURE,
        Verdict::Clean | Verdict::Drift => ExitCode::SUCCESS,
    }
}

impl AuditArgs {
    fn plan(&self, stores: &Stores) -> AuditPlan {
        let defaults = AuditPlan::default();
        let under_way = stores.timing.gate_ms + stores.timing.lease_ms + 2_000;
        let under_way = Duration::from_millis(under_way.unsigned_abs());
        AuditPlan {
            event: self.event,
            page: self.page,
            pace: Duration::from_millis(self.pace),
            patience: self.patience.map_or(defaults.patience.max(under_way), Duration::from_millis),
            payments_since: (!self.all_payments)
                .then(|| Duration::from_secs(self.payments_since.saturating_mul(3_600))),
            findings_max: defaults.findings_max.max(self.limit as usize),
        }
    }
}

async fn look(stores: &Stores, gateways: &Gateways, plan: &AuditPlan) -> Result<AuditReport, CommandError> {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    let watch = |what: &str, at: &LookedAt| {
        bar.set_message(format!(
            "{what}: {} seats, {} reservations, {} payments",
            at.seats, at.reservations, at.payments
        ));
        bar.tick();
    };
    let report = audit(stores, gateways, plan, &watch).await;
    bar.finish_and_clear();
    Ok(report?)
}
