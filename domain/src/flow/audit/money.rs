//! Payments and refunds, beside what the provider has. Nothing here is set right silently: money that does not agree is
//! named, with the next step.

use std::time::Duration;

use crate::event::Event;
use crate::gateway::{PaymentGateway, PaymentRequest, ProviderPayment, ProviderState};
use crate::id::{OutboxId, PaymentId};
use crate::payment::{Payment, PaymentStatus};
use crate::queue::{JobId, JobState, Queue, read_jobs};
use crate::store::pg::audit::AuditedPayment;

use super::finding::{Finding, FindingCode, Place, Repair};
use super::{Audit, AuditError};

/// A payment that is unfinished for so long after its window has an unknown outcome, ms.
const LATE_MS: i64 = 300_000;
/// How long a provider may take for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Answers in a row that may fail before it is left alone.
const FAILURES_MAX: u32 = 3;

/// What the provider says.
struct Said {
    payment: Option<ProviderPayment>,
    refunded: Option<i64>,
}

impl Audit<'_> {
    /// An event's payments, page by page.
    pub(super) async fn payments(&mut self, event: &Event) -> Result<(), AuditError> {
        let recent = self.plan.payments_since.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
        let spans = (i64::try_from(recent.as_millis()).unwrap_or(i64::MAX), LATE_MS);
        let mut after = None;
        let mut failures = 0;
        loop {
            let page = self.stores.pg.audit_payments(event.id, after, spans, self.plan.page).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.id);
            for row in &page {
                self.report.looked_at.payments += 1;
                let status = PaymentStatus::from_word(&row.status);
                let is_asked = failures < FAILURES_MAX && is_asked(row, status);
                let said = if is_asked { self.ask(event, row, &mut failures).await? } else { None };
                let is_queued = needs_job(row, status) && self.is_queued(row.id).await;
                self.compare_payment(event, row, said, is_queued);
            }
            self.breathe(&event.title).await;
        }
    }

    /// What the provider says of a payment that did not change meanwhile; none where it gave no answer, or is not to be
    /// compared now.
    async fn ask(
        &mut self,
        event: &Event,
        row: &AuditedPayment,
        failures: &mut u32,
    ) -> Result<Option<Said>, AuditError> {
        let Some(payment) = self.stores.pg.find_payment(row.id).await? else { return Ok(None) };
        if payment.amount.amount == 0 {
            return Ok(None);
        }
        let request = PaymentRequest { key: payment.id, amount: payment.amount, token: payment.token.clone() };
        let gateway = self.gateways.of(payment.provider);
        self.report.looked_at.asked += 1;
        let Some(said) = fetch(gateway, &request).await else {
            *failures += 1;
            self.report.skip(format!(
                "the provider {} gave no answer: some payments of {} were not compared with its records",
                payment.provider.as_str(),
                event.id
            ));
            return Ok(None);
        };
        *failures = 0;
        let is_unchanged = self.is_unchanged(row, &payment).await?;
        Ok(is_unchanged.then_some(said))
    }

    async fn is_unchanged(&self, row: &AuditedPayment, asked: &Payment) -> Result<bool, AuditError> {
        let now = self.stores.pg.find_payment(row.id).await?;
        let rows = self.stores.pg.audit_open_rows(&[OutboxId(row.id.0)]).await?;
        let status = |payment: &Payment| payment.status.as_str() == row.status;
        Ok(status(asked) && now.as_ref().is_some_and(status) && rows.is_empty() != row.has_row)
    }

    /// Whether a payment's job waits or runs, though it has no row.
    async fn is_queued(&self, payment: PaymentId) -> bool {
        let id = JobId::new("pay", payment.0).as_str().to_owned();
        let jobs = read_jobs(self.stores.jobs.redis(), Queue::Payments, &[id]).await.unwrap_or_default();
        jobs.iter().any(|job| !matches!(job.state, JobState::Done | JobState::Dead))
    }

    fn compare_payment(&mut self, event: &Event, row: &AuditedPayment, said: Option<Said>, is_queued: bool) {
        let place = Place {
            event: Some(event.id),
            reservation: Some(row.reservation),
            payment: Some(row.id),
            ..Place::default()
        };
        let ours = if row.has_row { format!("{}, its row is open", row.status) } else { row.status.clone() };
        let finding = |code, detail: &str| {
            let mut finding = Finding::new(code, place.clone(), detail).found("postgres", &ours);
            finding.since = Some(row.updated_at);
            match &said {
                Some(said) => finding.found("provider", said.words()),
                None => finding,
            }
        };
        let status = PaymentStatus::from_word(&row.status);
        let is_unfinished = status.is_some_and(|status| status.is_open() && status != PaymentStatus::NeedsReview);
        let mut found = Vec::new();
        if !row.has_reservation {
            found.push(finding(FindingCode::PaymentWithoutReservation, "the payment's reservation does not exist"));
        }
        if row.refunded != row.refunds_done {
            let detail = format!("{} is given back, its refunds say {}", row.refunded, row.refunds_done);
            found.push(finding(FindingCode::RefundsDiffer, &detail));
        }
        if row.has_refund && !row.has_row {
            let detail = "a refund is asked for, and no row makes it happen";
            found.push(finding(FindingCode::RefundWithoutJob, detail).repair(Repair::QueuePayment(row.id)));
        }
        if is_unfinished && !row.has_row {
            let detail = "the payment is unfinished, and no row brings it to its end";
            found.push(finding(FindingCode::PaymentWithoutJob, detail).repair(Repair::QueuePayment(row.id)));
        }
        if status == Some(PaymentStatus::NeedsReview) {
            found.push(finding(FindingCode::PaymentNeedsReview, "the payment is parked for an operator"));
        }
        if is_unfinished && row.has_row && row.is_late {
            found.push(finding(FindingCode::PaymentUnfinished, "the payment has no end long after its window"));
        }
        if let (Some(said), Some(status), false) = (&said, status, row.has_row)
            && let Some((code, detail)) = said.difference(status, (row.amount, row.refunded), row.has_refund)
        {
            found.push(finding(code, detail));
        }
        for finding in found {
            let needs_job = matches!(finding.code, FindingCode::PaymentWithoutJob | FindingCode::RefundWithoutJob);
            let finding = if needs_job && is_queued { finding.explained("its job is queued") } else { finding };
            self.report.add(finding);
        }
    }
}

/// Whether something is still to be done, and no row says so.
fn needs_job(row: &AuditedPayment, status: Option<PaymentStatus>) -> bool {
    let is_unfinished = status.is_some_and(|status| status.is_open() && status != PaymentStatus::NeedsReview);
    !row.has_row && (is_unfinished || row.has_refund)
}

/// A payment whose row is open is asked about by its job: only what has ended, has no job, or takes too long is asked
/// about here.
fn is_asked(row: &AuditedPayment, status: Option<PaymentStatus>) -> bool {
    let is_open = status.is_some_and(PaymentStatus::is_open);
    if row.has_row { row.is_late } else { is_open || row.is_recent }
}

async fn fetch(gateway: &dyn PaymentGateway, request: &PaymentRequest) -> Option<Said> {
    let answer = async {
        let payment = gateway.fetch(request).await?;
        let refunded = gateway.refunded(request).await?;
        Ok::<_, crate::gateway::UnknownOutcome>(Said { payment, refunded })
    };
    tokio::time::timeout(ANSWER_LIMIT, answer).await.ok()?.ok()
}

impl Said {
    fn words(&self) -> String {
        let Some(payment) = &self.payment else { return "unknown to it".to_owned() };
        let state = match &payment.state {
            ProviderState::Pending => "pending",
            ProviderState::Authorized => "authorized",
            ProviderState::Captured => "captured",
            ProviderState::Declined(_) => "declined",
            ProviderState::Voided => "voided",
        };
        let refunded = self.refunded.map(|sum| format!(", {sum} given back")).unwrap_or_default();
        format!("{state}, {}{refunded}", payment.amount)
    }

    /// What does not agree with a payment that has ended here.
    fn difference(
        &self,
        status: PaymentStatus,
        (ours, refunded): (i64, i64),
        has_refund: bool,
    ) -> Option<(FindingCode, &'static str)> {
        let is_taken = self.payment.as_ref().is_some_and(|payment| payment.state == ProviderState::Captured);
        let sum = self.payment.as_ref().map_or(0, |payment| payment.amount.amount);
        match status {
            PaymentStatus::Captured | PaymentStatus::Refunded | PaymentStatus::PartlyRefunded => {
                if !is_taken {
                    return Some((FindingCode::CapturedNotAtProvider, "the provider has not taken this money"));
                }
                if sum != ours {
                    return Some((FindingCode::ProviderAmountDiffers, "the provider has taken another sum"));
                }
                let refunds_differ = self.refunded.is_some_and(|given| given != refunded);
                (refunds_differ && !has_refund)
                    .then_some((FindingCode::ProviderRefundDiffers, "the provider has given back another sum"))
            }
            PaymentStatus::Declined | PaymentStatus::Voided => {
                let is_back = self.refunded.is_some_and(|given| given >= sum);
                (is_taken && !is_back).then_some((
                    FindingCode::CapturedNotRecorded,
                    "the provider has taken money that is not recorded here",
                ))
            }
            PaymentStatus::Requested
            | PaymentStatus::Authorized
            | PaymentStatus::Capturing
            | PaymentStatus::NeedsReview => None,
        }
    }
}
