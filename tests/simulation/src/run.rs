//! Many histories, in lanes: each lane is a thread with a database and a Redis prefix of its own, so that what breaks in
//! one is not felt in another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use domain::flow::FaultPoint;

use crate::history::{Outcome, run_history};
use crate::lane::{Lane, Servers, SimulationError};
use crate::oracle::Violation;

/// What is run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What all is drawn from.
    pub seed: u64,
    /// The first history's number.
    pub first: u64,
    /// How many histories.
    pub histories: u64,
    /// How many run at once.
    pub lanes: usize,
}

/// A history in which something was that must not be.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Its number.
    pub history: u64,
    /// What was.
    pub violations: Vec<Violation>,
    /// Its steps in words.
    pub log: Vec<String>,
}

/// What all histories came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Histories that ran to their end.
    pub histories: u64,
    /// Steps.
    pub steps: u64,
    /// What broke where, and how often.
    pub faults: BTreeMap<(FaultPoint, &'static str), u64>,
    /// Holds that were acknowledged.
    pub holds: u64,
    /// Reservations that were confirmed.
    pub sold: u64,
    /// Payments that were refunded.
    pub refunded: u64,
    /// The histories that failed, in the order in which they ended.
    pub failures: Vec<Failure>,
}

/// Runs histories. `ended` hears of each that has ended. Without `keep_going` no further history begins after a failure.
/// Blocks; needs no runtime, and must not be called from one's own threads.
///
/// # Errors
/// The simulation itself cannot go on.
pub fn run(
    servers: &Servers,
    plan: Plan,
    keep_going: bool,
    mut ended: impl FnMut(&Report),
) -> Result<Report, SimulationError> {
    let next = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let failed: Arc<Mutex<Option<SimulationError>>> = Arc::default();
    let mut lanes = Vec::new();
    for number in 0..plan.lanes.max(1) {
        let (servers, next, stop, sender) = (servers.clone(), Arc::clone(&next), Arc::clone(&stop), sender.clone());
        let failed = Arc::clone(&failed);
        lanes.push(thread::spawn(move || {
            if let Err(error) = run_lane(&servers, number, plan, (&next, &stop), &sender) {
                stop.store(true, Ordering::SeqCst);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }));
    }
    drop(sender);
    let mut report = Report::default();
    for (history, outcome) in receiver {
        report.add(history, outcome);
        if !report.failures.is_empty() && !keep_going {
            stop.store(true, Ordering::SeqCst);
        }
        ended(&report);
    }
    for lane in lanes {
        lane.join().map_err(|_panic| SimulationError::Lane)?;
    }
    match failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(error),
        None => Ok(report),
    }
}

fn run_lane(
    servers: &Servers,
    number: usize,
    plan: Plan,
    (next, stop): (&AtomicU64, &AtomicBool),
    sender: &mpsc::Sender<(u64, Outcome)>,
) -> Result<(), SimulationError> {
    // One thread: what is not polled does not run.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut lane = Lane::start(servers, number).await?;
        let mut result = Ok(());
        while !stop.load(Ordering::SeqCst) {
            let history = next.fetch_add(1, Ordering::SeqCst);
            if history >= plan.histories {
                break;
            }
            match run_history(&mut lane, plan.seed, plan.first + history).await {
                Ok(outcome) => drop(sender.send((plan.first + history, outcome))),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        lane.end().await?;
        result
    })
}

impl Report {
    fn add(&mut self, history: u64, outcome: Outcome) {
        self.histories += 1;
        self.steps += outcome.steps;
        self.holds += outcome.holds;
        self.sold += outcome.sold;
        self.refunded += outcome.refunded;
        for (fault, count) in outcome.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        if !outcome.violations.is_empty() {
            let Outcome { violations, log, .. } = outcome;
            self.failures.push(Failure { history, violations, log });
        }
    }
}
