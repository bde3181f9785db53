//! `open-event`: writes an event's lists and buckets and puts it on sale.

use async_trait::async_trait;
use domain::flow::Stores;
use domain::flow::open_event::{OpenEventError, open_event};
use domain::flow::read_block::HealBlockError;
use domain::id::EventId;
use domain::store::pg::outbox::JobKind;
use serde::Deserialize;

use super::{pg_verdict, reasons};
use crate::outcome::{Delivery, JobError, JobHandler};

/// Runs `open-event`.
pub struct OpenEvent {
    /// The stores.
    pub stores: Stores,
}

#[derive(Deserialize)]
struct Payload {
    event: EventId,
}

#[async_trait]
impl JobHandler for OpenEvent {
    fn kind(&self) -> &'static str {
        JobKind::OpenEvent.name()
    }

    async fn run(&self, delivery: Delivery) -> Result<(), JobError> {
        let Payload { event } = delivery.payload_as()?;
        open_event(&self.stores, event).await.map_err(|error| match &error {
            OpenEventError::Pg(pg) | OpenEventError::Heal(HealBlockError::Pg(pg)) => pg_verdict(pg),
            OpenEventError::Heal(HealBlockError::Redis(_)) => JobError::store_down(reasons(&error)),
            OpenEventError::NotFound(_) => JobError::never(reasons(&error)),
        })
    }
}
