//! Bringing a payment to its end, in steps that may each be repeated: authorise → commit the seats → capture → confirm.
//! Seats first, money after: the seats are committed before any money is taken, and CONFIRMED is said in the transaction
//! that records the capture (I2).
//!
//! Crash windows: after every step the row says how far it came, the job is delivered again, and the provider is asked
//! under the same key, so that what it did once it does not do twice. An unknown outcome is asked about, never guessed.

use std::sync::Arc;

use crate::decide::payment::{
    self as decide, Believed, Captured, GivenUp, Mismatch, MoneyAt, NextStep, Owning, Patience, TooLate,
};
use crate::gateway::{PaymentGateway, PaymentRequest, ProviderPayment, UnknownOutcome};
use crate::id::{OutboxId, PaymentId, RefundId, ReservationId};
use crate::payment::{Payment, PaymentStatus, Provider};
use crate::reservation::CancelReason;
use crate::runtime::clock::new_uuid;
use crate::store::pg::claims::{commit_claims, reclaim_seats, sell_claims};
use crate::store::pg::outbox::close_outbox;
use crate::store::pg::payments::{
    find_late_refund, finish_refund, late_refund, lock_payment, set_payment_status, set_provider_reference,
};
use crate::store::pg::reservations::{ReservationHead, cancel_locked, expire_reservations, lock_reservation};
use crate::store::pg::{PgError, Tx, commit};
use crate::time::to_ms;

use super::show_reservation::show_after_change;
use super::{FaultPoint, Stores};

/// The providers.
#[derive(Clone)]
pub struct Gateways {
    /// Our own, for tests and demonstrations.
    pub fake: Arc<dyn PaymentGateway>,
}

impl Gateways {
    pub(super) fn of(&self, provider: Provider) -> &dyn PaymentGateway {
        match provider {
            Provider::Fake => &*self.fake,
        }
    }
}

/// How far a payment came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PaymentProgress {
    /// It has ended.
    Ended(PaymentStatus),
    /// The provider has not ended it: look again then.
    Waiting {
        /// After how long, ms. A span, since whoever waits has another clock than Postgres.
        wait_ms: i64,
    },
    /// No definite answer: ask again under the same key, later and later.
    Unknown {
        /// What the provider did.
        reason: String,
    },
}

/// Why a payment could not be brought on: nothing is lost, the job comes again.
#[derive(Debug, thiserror::Error)]
pub enum FinalizePaymentError {
    /// There is no such payment: it never will be.
    #[error("there is no payment {0}")]
    NotFound(PaymentId),
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

/// What a step came to.
enum Step {
    /// Go on from what the row says now.
    Next,
    Progress(PaymentProgress),
}

impl Step {
    fn unknown(reason: &str) -> Self {
        Self::Progress(PaymentProgress::Unknown { reason: reason.to_owned() })
    }
}

impl From<UnknownOutcome> for Step {
    fn from(unknown: UnknownOutcome) -> Self {
        Self::Progress(PaymentProgress::Unknown { reason: unknown.0 })
    }
}

/// Brings a payment as far as it will go now.
///
/// # Errors
/// [`FinalizePaymentError`].
pub async fn finalize_payment(
    stores: &Stores,
    gateways: &Gateways,
    id: PaymentId,
) -> Result<PaymentProgress, FinalizePaymentError> {
    /// More steps than any payment has: a row that does not move is asked about later.
    const STEPS_MAX: usize = 8;
    for _ in 0..STEPS_MAX {
        let payment = stores.pg.find_payment(id).await?.ok_or(FinalizePaymentError::NotFound(id))?;
        let finalizing = Finalizing { stores, gateway: gateways.of(payment.provider), payment };
        let step = match decide::next_step(finalizing.payment.status, finalizing.payment.amount) {
            NextStep::Authorize => finalizing.authorize().await?,
            NextStep::CommitSeats => finalizing.commit_seats(MoneyAt::Nothing, None).await?,
            NextStep::Capture => finalizing.capture().await?,
            NextStep::Confirm => finalizing.confirm().await?,
            NextStep::SettleCaptured => finalizing.settle_captured().await?,
            NextStep::Close => finalizing.close().await?,
        };
        if let Step::Progress(progress) = step {
            return Ok(progress);
        }
    }
    Ok(PaymentProgress::Unknown { reason: "the payment does not move".to_owned() })
}

struct Finalizing<'a> {
    stores: &'a Stores,
    gateway: &'a dyn PaymentGateway,
    payment: Payment,
}

impl Finalizing<'_> {
    fn offset_ms(&self) -> i64 {
        self.stores.pg.clock().offset_ms()
    }

    fn reservation(&self) -> ReservationId {
        self.payment.reservation
    }

    fn request(&self) -> PaymentRequest {
        PaymentRequest { key: self.payment.id, amount: self.payment.amount, token: self.payment.token.clone() }
    }

    async fn authorize(self) -> Result<Step, FinalizePaymentError> {
        let request = self.request();
        let answer = match self.gateway.authorize(&request).await {
            Ok(answer) => answer,
            // Whatever it did, it knows by the key.
            Err(unknown) => match self.gateway.fetch(&request).await {
                Ok(Some(found)) => found,
                Ok(None) | Err(_) => return Ok(unknown.into()),
            },
        };
        self.stores.faults.pass(FaultPoint::PaymentAuthorized).await;
        match decide::believe(self.payment.amount, &answer) {
            Believed::CommitSeats(money) => self.commit_seats(money, Some(&answer)).await,
            Believed::End(status, why) => self.end(status, why.as_deref()).await,
            Believed::StillPending => self.wait_or_give_up().await,
            Believed::Park(mismatch) => self.park(mismatch).await,
        }
    }

    /// Until the window's end the buyer may still act; then the provider is told to give up, and asked what it did.
    async fn wait_or_give_up(self) -> Result<Step, FinalizePaymentError> {
        let now_ms = to_ms(self.stores.pg.now().await?);
        match decide::patience(now_ms, to_ms(self.payment.deadline)) {
            Patience::Wait(wait_ms) => return Ok(Step::Progress(PaymentProgress::Waiting { wait_ms })),
            Patience::GiveUp => {}
        }
        let answer = match self.gateway.void(&self.request()).await {
            Ok(answer) => answer,
            Err(unknown) => return Ok(unknown.into()),
        };
        match decide::believe(self.payment.amount, &answer) {
            Believed::CommitSeats(money) => self.commit_seats(money, Some(&answer)).await,
            Believed::End(status, why) => self.end(status, why.as_deref()).await,
            Believed::StillPending => Ok(Step::unknown("the provider does not give up")),
            Believed::Park(mismatch) => self.park(mismatch).await,
        }
    }

    /// The seats are this reservation's for good, or the money goes back.
    async fn commit_seats(
        self,
        money: MoneyAt,
        answer: Option<&ProviderPayment>,
    ) -> Result<Step, FinalizePaymentError> {
        self.mark_unsettled().await;
        let mut tx = self.stores.pg.begin().await?;
        let Some(head) = lock_reservation(&mut tx, self.reservation(), self.offset_ms()).await? else {
            return Err(FinalizePaymentError::NotFound(self.payment.id));
        };
        let Some(payment) = lock_payment(&mut tx, head.event, self.payment.id).await? else {
            return Err(FinalizePaymentError::NotFound(self.payment.id));
        };
        if !decide::may_commit_seats(payment.status) {
            // Another delivery of this job was faster.
            return Ok(Step::Next);
        }
        if let Some(answer) = answer {
            set_provider_reference(&mut tx, &payment, &answer.reference).await?;
        }
        if own_seats(&mut tx, &head, self.offset_ms()).await? {
            set_payment_status(&mut tx, &payment, (PaymentStatus::Capturing, None), self.offset_ms()).await?;
            commit(tx).await?;
            // It cannot expire any more: key and index entry go, the bucket loses its deadline.
            show_after_change(self.stores, head.id).await;
            self.stores.faults.pass(FaultPoint::PaymentSeatsCommitted).await;
            return Ok(Step::Next);
        }
        let too_late = decide::too_late(money);
        if too_late == TooLate::Refund {
            self.note_late_capture(&mut tx, &payment).await?;
        }
        commit(tx).await?;
        show_after_change(self.stores, head.id).await;
        match too_late {
            TooLate::End => self.end(PaymentStatus::Voided, Some("late")).await,
            TooLate::GiveUp => self.give_up_late().await,
            TooLate::Refund => Ok(Step::Next),
        }
    }

    /// The refund's row and key exist before the provider is called.
    async fn note_late_capture(&self, tx: &mut Tx, payment: &Payment) -> Result<(), PgError> {
        late_refund(tx, payment, RefundId(new_uuid()), self.offset_ms()).await?;
        set_payment_status(tx, payment, (PaymentStatus::Captured, Some("late")), self.offset_ms()).await
    }

    /// Authorised too late, and the seats are gone: nothing was taken, so nothing need be given back.
    async fn give_up_late(self) -> Result<Step, FinalizePaymentError> {
        let answer = match self.gateway.void(&self.request()).await {
            Ok(answer) => answer,
            Err(unknown) => return Ok(unknown.into()),
        };
        match decide::given_up(self.payment.amount, &answer) {
            GivenUp::End(status, why) => self.end(status, Some(&why)).await,
            GivenUp::Refund => {
                let mut tx = self.stores.pg.begin().await?;
                let locked = lock_payment(&mut tx, self.payment.event, self.payment.id).await?;
                if let Some(payment) = locked.filter(|payment| payment.status == self.payment.status) {
                    self.note_late_capture(&mut tx, &payment).await?;
                    commit(tx).await?;
                }
                Ok(Step::Next)
            }
            GivenUp::NotYet => Ok(Step::unknown("the provider does not give up")),
            GivenUp::Park(mismatch) => self.park(mismatch).await,
        }
    }

    async fn capture(self) -> Result<Step, FinalizePaymentError> {
        let answer = match self.gateway.capture(&self.request()).await {
            Ok(answer) => answer,
            Err(unknown) => return Ok(unknown.into()),
        };
        self.stores.faults.pass(FaultPoint::PaymentCaptured).await;
        match decide::captured(self.payment.amount, &answer) {
            Captured::Confirm => self.confirm().await,
            Captured::Fail(why) => self.fail(&why).await,
            Captured::NotYet => Ok(Step::unknown("the provider has not captured yet")),
            Captured::Park(mismatch) => self.park(mismatch).await,
        }
    }

    async fn confirm(self) -> Result<Step, FinalizePaymentError> {
        self.mark_unsettled().await;
        let Some((mut tx, head, payment)) = self.lock_capturing().await? else { return Ok(Step::Next) };
        let sold = sell_claims(&mut tx, (head.event, head.id), self.offset_ms()).await?;
        // Money is taken for seats that were committed to it: going on without them would sell a seat twice.
        assert!(sold, "the committed seats of reservation {} are not all its own", head.id);
        set_payment_status(&mut tx, &payment, (PaymentStatus::Captured, None), self.offset_ms()).await?;
        close_outbox(&mut tx, head.event, OutboxId(payment.id.0)).await?;
        commit(tx).await?;
        self.stores.faults.pass(FaultPoint::PaymentConfirmed).await;
        show_after_change(self.stores, head.id).await;
        Ok(Step::Progress(PaymentProgress::Ended(PaymentStatus::Captured)))
    }

    /// A definite refusal to capture frees the seats.
    async fn fail(self, why: &str) -> Result<Step, FinalizePaymentError> {
        self.mark_unsettled().await;
        let Some((mut tx, head, payment)) = self.lock_capturing().await? else { return Ok(Step::Next) };
        let cancel = (CancelReason::PaymentFailed, "payment");
        cancel_locked(&mut tx, &[(head.event, head.id)], cancel, self.offset_ms()).await?;
        set_payment_status(&mut tx, &payment, (PaymentStatus::Declined, Some(why)), self.offset_ms()).await?;
        close_outbox(&mut tx, head.event, OutboxId(payment.id.0)).await?;
        commit(tx).await?;
        self.stores.faults.pass(FaultPoint::PaymentFailed).await;
        show_after_change(self.stores, head.id).await;
        Ok(Step::Progress(PaymentProgress::Ended(PaymentStatus::Declined)))
    }

    /// None where another delivery of this job was faster.
    async fn lock_capturing(&self) -> Result<Option<(Tx, ReservationHead, Payment)>, FinalizePaymentError> {
        let missing = FinalizePaymentError::NotFound(self.payment.id);
        let mut tx = self.stores.pg.begin().await?;
        let Some(head) = lock_reservation(&mut tx, self.reservation(), self.offset_ms()).await? else {
            return Err(missing);
        };
        let Some(payment) = lock_payment(&mut tx, head.event, self.payment.id).await? else { return Err(missing) };
        Ok((payment.status == PaymentStatus::Capturing).then_some((tx, head, payment)))
    }

    /// Captured: either it is confirmed, or it came too late and goes back.
    async fn settle_captured(self) -> Result<Step, FinalizePaymentError> {
        let Some(refund) = find_late_refund(&self.stores.pg, &self.payment).await? else { return self.close().await };
        if let Err(unknown) = self.gateway.refund(refund, &self.request(), self.payment.amount).await {
            return Ok(unknown.into());
        }
        self.stores.faults.pass(FaultPoint::PaymentRefunded).await;
        let mut tx = self.stores.pg.begin().await?;
        finish_refund(&mut tx, &self.payment, refund, self.offset_ms()).await?;
        close_outbox(&mut tx, self.payment.event, OutboxId(self.payment.id.0)).await?;
        commit(tx).await?;
        Ok(Step::Progress(PaymentProgress::Ended(PaymentStatus::Refunded)))
    }

    /// Ends a payment that took no money. Its reservation stays as it is: another attempt may follow.
    async fn end(self, status: PaymentStatus, why: Option<&str>) -> Result<Step, FinalizePaymentError> {
        let mut tx = self.stores.pg.begin().await?;
        let Some(payment) = lock_payment(&mut tx, self.payment.event, self.payment.id).await? else {
            return Err(FinalizePaymentError::NotFound(self.payment.id));
        };
        if payment.status != self.payment.status {
            return Ok(Step::Next);
        }
        set_payment_status(&mut tx, &payment, (status, why), self.offset_ms()).await?;
        close_outbox(&mut tx, payment.event, OutboxId(payment.id.0)).await?;
        commit(tx).await?;
        Ok(Step::Progress(PaymentProgress::Ended(status)))
    }

    /// Parks a payment whose money is not what was asked for. It confirms nothing, and its seats stay the reservation's
    /// while it is under review; where they are gone already, only the money is left to look at.
    async fn park(self, mismatch: Mismatch) -> Result<Step, FinalizePaymentError> {
        let why = mismatch.to_string();
        self.mark_unsettled().await;
        let missing = FinalizePaymentError::NotFound(self.payment.id);
        let mut tx = self.stores.pg.begin().await?;
        let Some(head) = lock_reservation(&mut tx, self.reservation(), self.offset_ms()).await? else {
            return Err(missing);
        };
        let Some(payment) = lock_payment(&mut tx, head.event, self.payment.id).await? else { return Err(missing) };
        if payment.status != self.payment.status {
            return Ok(Step::Next);
        }
        let keeps_seats = decide::keeps_seats_under_review(head.state());
        let has_seats = keeps_seats && own_seats(&mut tx, &head, self.offset_ms()).await?;
        set_payment_status(&mut tx, &payment, (PaymentStatus::NeedsReview, Some(&why)), self.offset_ms()).await?;
        close_outbox(&mut tx, head.event, OutboxId(payment.id.0)).await?;
        commit(tx).await?;
        self.stores.faults.pass(FaultPoint::PaymentParked).await;
        tracing::error!(payment = %payment.id, why, has_seats, "a payment is parked: look at it by hand");
        show_after_change(self.stores, head.id).await;
        Ok(Step::Progress(PaymentProgress::Ended(PaymentStatus::NeedsReview)))
    }

    /// Whatever becomes of this process after its commit, the sweep looks at the reservation.
    async fn mark_unsettled(&self) {
        if self.stores.redis.mark_unsettled(self.reservation().0).await.is_err() {
            self.stores.note_redis_missed();
        }
    }

    /// It had ended already: only the outbox row may be left.
    async fn close(self) -> Result<Step, FinalizePaymentError> {
        let mut tx = self.stores.pg.begin().await?;
        close_outbox(&mut tx, self.payment.event, OutboxId(self.payment.id.0)).await?;
        commit(tx).await?;
        show_after_change(self.stores, self.payment.reservation).await;
        Ok(Step::Progress(PaymentProgress::Ended(self.payment.status)))
    }
}

/// Makes the seats the reservation's for good: commits those it holds, or claims all again in one step where its
/// deadline has passed and nobody else came. False where they are gone.
async fn own_seats(tx: &mut Tx, head: &ReservationHead, offset_ms: i64) -> Result<bool, PgError> {
    let place = (head.event, head.id);
    match decide::own_seats(head.state()) {
        Owning::Commit => {
            let all = commit_claims(tx, place, offset_ms).await?;
            assert!(all, "the held seats of reservation {} are not all its own", head.id);
            Ok(true)
        }
        Owning::ClaimAgain => {
            expire_reservations(tx, &[head.id], offset_ms).await?;
            reclaim_seats(tx, place, offset_ms).await
        }
        Owning::Refuse => Ok(false),
    }
}
