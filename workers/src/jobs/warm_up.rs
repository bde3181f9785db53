//! `warm-up`: rebuilds Redis from Postgres.

use std::time::Duration;

use async_trait::async_trait;
use domain::flow::Stores;
use domain::flow::read_block::HealBlockError;
use domain::flow::warm_up::{WarmUpError, warm_up};
use domain::store::pg::outbox::JobKind;

use super::{pg_verdict, reasons};
use crate::outcome::{Delivery, JobError, JobHandler};

/// Runs `warm-up`.
pub struct WarmUp {
    /// The stores.
    pub stores: Stores,
}

#[async_trait]
impl JobHandler for WarmUp {
    fn kind(&self) -> &'static str {
        JobKind::WarmUp.name()
    }

    async fn run(&self, _delivery: Delivery) -> Result<(), JobError> {
        match warm_up(&self.stores).await {
            Ok(_) => Ok(()),
            // The other may have begun before what this one was asked for.
            Err(error @ WarmUpError::Elsewhere) => Err(JobError::later(Duration::from_millis(500), error.to_string())),
            Err(WarmUpError::Pg(error) | WarmUpError::Heal(HealBlockError::Pg(error))) => Err(pg_verdict(&error)),
            Err(error @ (WarmUpError::Redis(_) | WarmUpError::Queue(_) | WarmUpError::Heal(_))) => {
                Err(JobError::store_down(reasons(&error)))
            }
        }
    }
}
