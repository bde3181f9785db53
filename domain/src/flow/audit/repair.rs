//! Setting right what an audit has found: each repair is a flow that runs every day, so there is no second path to be
//! wrong. Nothing is written here.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::flow::Stores;
use crate::flow::expire_reservations::expire_reservations;
use crate::flow::read_block::rebuild_block;
use crate::flow::set_up_event::start_sale;
use crate::flow::warm_up::{WarmUpError, warm_up};
use crate::store::pg::outbox::OutboxRow;
use crate::store::pg::payments::finalize_job;

use super::finding::{Finding, Repair};

/// A repair, and what came of it.
#[derive(Debug, Clone)]
pub struct Repaired {
    /// What was done.
    pub repair: Repair,
    /// Why it could not be done.
    pub failure: Option<String>,
}

impl Repair {
    /// In words.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::WarmUp => "rebuild Redis from Postgres".to_owned(),
            Self::RebuildBlock(event, block) => format!("write block {block} of event {event} to Redis"),
            Self::ShowReservation(id) => format!("expire reservation {id} if it is due, and show it"),
            Self::QueueRow(_, id) => format!("queue the job of row {id}"),
            Self::QueuePayment(id) => format!("queue the job of payment {id}"),
            Self::OpenEvent(id) => format!("open event {id}"),
        }
    }
}

/// Sets right what can be set right by a flow, each thing once. Look again afterwards: what a job has to do takes a
/// worker.
pub async fn repair(stores: &Stores, findings: &[Finding]) -> Vec<Repaired> {
    let repairs: BTreeSet<&Repair> = findings.iter().filter_map(|finding| finding.repair.as_ref()).collect();
    let mut done = Vec::with_capacity(repairs.len());
    for repair in repairs {
        let outcome = run(stores, repair).await;
        let failure = outcome.err().map(|error| error.to_string());
        tracing::info!(what = repair.describe(), failure, "repaired");
        done.push(Repaired { repair: repair.clone(), failure });
    }
    done
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn run(stores: &Stores, repair: &Repair) -> Result<(), Failure> {
    match repair {
        Repair::WarmUp => rebuild_redis(stores).await?,
        Repair::RebuildBlock(event, block) => {
            let sheet = stores.book.fresh_sheet(*event).await?.ok_or("there is no such event any more")?;
            let block = sheet.map.block(block).ok_or("there is no such block any more")?;
            rebuild_block(stores, &sheet, block).await?;
        }
        Repair::ShowReservation(id) => {
            expire_reservations(stores, &[*id]).await?;
        }
        Repair::QueueRow(event, id) => {
            let rows = stores.pg.outbox_rows(*event, &[*id]).await?;
            let jobs: Vec<_> = rows.iter().map(OutboxRow::job).collect();
            stores.jobs.enqueue(&jobs).await?;
        }
        Repair::QueuePayment(id) => {
            let payment = stores.pg.find_payment(*id).await?.ok_or("there is no such payment any more")?;
            stores.jobs.enqueue(&[finalize_job(&payment).job()]).await?;
        }
        Repair::OpenEvent(id) => {
            start_sale(stores, *id).await?;
        }
    }
    Ok(())
}

/// Waits while another is at it: then what it does is what was wanted.
async fn rebuild_redis(stores: &Stores) -> Result<(), WarmUpError> {
    const LOOK_EVERY: Duration = Duration::from_millis(500);
    const LOOKS_MAX: u32 = 60;
    for _ in 0..LOOKS_MAX {
        match warm_up(stores).await {
            Err(WarmUpError::Elsewhere) => tokio::time::sleep(LOOK_EVERY).await,
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Err(WarmUpError::Elsewhere)
}
