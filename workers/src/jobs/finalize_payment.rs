//! `finalize-payment`: brings a payment to its end.

use std::time::Duration;

use async_trait::async_trait;
use domain::flow::Stores;
use domain::flow::finalize_payment::{FinalizePaymentError, Gateways, PaymentProgress, finalize_payment};
use domain::id::PaymentId;
use domain::store::pg::outbox::JobKind;
use serde::Deserialize;

use super::{pg_verdict, reasons};
use crate::outcome::{Delivery, JobError, JobHandler};

/// The longest wait before a provider is asked again what it did.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(60);

/// Runs `finalize-payment`.
pub struct FinalizePayment {
    /// The stores.
    pub stores: Stores,
    /// The providers.
    pub gateways: Gateways,
}

#[derive(Deserialize)]
struct Payload {
    payment: PaymentId,
}

#[async_trait]
impl JobHandler for FinalizePayment {
    fn kind(&self) -> &'static str {
        JobKind::FinalizePayment.name()
    }

    async fn run(&self, delivery: Delivery) -> Result<(), JobError> {
        let Payload { payment } = delivery.payload_as()?;
        match finalize_payment(&self.stores, &self.gateways, payment).await {
            Ok(PaymentProgress::Ended(status)) => {
                tracing::info!(%payment, status = status.as_str(), "the payment has ended");
                metrics::counter!("holdfast_payments_total", "status" => status.as_str()).increment(1);
                Ok(())
            }
            Ok(PaymentProgress::Waiting { wait_ms }) => {
                let wait = Duration::from_millis(wait_ms.unsigned_abs());
                Err(JobError::later(wait, "the provider has not ended the payment"))
            }
            // Never given up: what became of the money must be known.
            Ok(PaymentProgress::Unknown { reason }) => {
                metrics::counter!("holdfast_payment_unknown_outcomes_total").increment(1);
                let wait = Duration::from_millis(250) * 2_u32.saturating_pow(delivery.starts.min(10));
                Err(JobError::later(wait.min(ASK_AGAIN_MAX), reason))
            }
            Err(FinalizePaymentError::Pg(error)) => Err(pg_verdict(&error)),
            Err(error @ FinalizePaymentError::NotFound(_)) => Err(JobError::never(reasons(&error))),
        }
    }
}
