//! `expire-reservations`: ends reservations whose deadline has passed, and makes Redis show what Postgres has of them.

use async_trait::async_trait;
use domain::flow::Stores;
use domain::flow::expire_reservations::{ExpireReservationsError, expire_reservations};
use domain::flow::show_reservation::ShowReservationError;
use domain::id::ReservationId;
use domain::store::pg::outbox::JobKind;
use serde::Deserialize;

use super::{pg_verdict, reasons};
use crate::outcome::{Delivery, JobError, JobHandler};

/// Runs `expire-reservations`.
pub struct ExpireReservations {
    /// The stores.
    pub stores: Stores,
}

#[derive(Deserialize)]
struct Payload {
    /// Reservations and the deadlines, ms, that they were claimed for.
    due: Vec<(ReservationId, i64)>,
}

#[async_trait]
impl JobHandler for ExpireReservations {
    fn kind(&self) -> &'static str {
        JobKind::ExpireReservations.name()
    }

    async fn run(&self, delivery: Delivery) -> Result<(), JobError> {
        let Payload { due } = delivery.payload_as()?;
        let ids: Vec<ReservationId> = due.iter().map(|(id, _)| *id).collect();
        match expire_reservations(&self.stores, &ids).await {
            Ok(_) => {
                // By Redis's clock, which the deadlines were claimed by: this machine's may be another.
                if let Ok(now_ms) = self.stores.redis.now_ms().await {
                    for (_, deadline_ms) in due {
                        let lag = std::time::Duration::from_millis(u64::try_from(now_ms - deadline_ms).unwrap_or(0));
                        metrics::histogram!("holdfast_expiry_lag_seconds").record(lag.as_secs_f64());
                    }
                }
                Ok(())
            }
            Err(
                ExpireReservationsError::Pg(error) | ExpireReservationsError::Show(ShowReservationError::Pg(error)),
            ) => Err(pg_verdict(&error)),
            Err(error @ ExpireReservationsError::Show(_)) => Err(JobError::store_down(reasons(&error))),
        }
    }
}
