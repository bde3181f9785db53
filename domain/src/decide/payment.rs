//! A payment's way to its end: seats first, money after (I2).

use std::fmt;

use crate::gateway::{ProviderPayment, ProviderState};
use crate::money::Money;
use crate::payment::PaymentStatus;
use crate::reservation::{CancelReason, ReservationState};

/// How often a provider is asked again about a payment that has not ended.
pub const ASK_AGAIN_MS: i64 = 1_000;

/// What brings a payment on, by its row alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NextStep {
    /// Have the money kept ready.
    Authorize,
    /// Commit the seats: there is nothing to pay.
    CommitSeats,
    /// Take the money for the committed seats.
    Capture,
    /// Sell the committed seats: there is nothing to take.
    Confirm,
    /// It is confirmed, or goes back.
    SettleCaptured,
    /// It has ended; only its outbox row may be left.
    Close,
}

/// What comes next for a payment in `status`.
#[must_use]
pub fn next_step(status: PaymentStatus, amount: Money) -> NextStep {
    let is_free = amount.amount == 0;
    match status {
        PaymentStatus::Requested | PaymentStatus::Authorized if is_free => NextStep::CommitSeats,
        PaymentStatus::Requested | PaymentStatus::Authorized => NextStep::Authorize,
        PaymentStatus::Capturing if is_free => NextStep::Confirm,
        PaymentStatus::Capturing => NextStep::Capture,
        PaymentStatus::Captured => NextStep::SettleCaptured,
        PaymentStatus::Declined
        | PaymentStatus::Voided
        | PaymentStatus::Refunded
        | PaymentStatus::PartlyRefunded
        | PaymentStatus::NeedsReview => NextStep::Close,
    }
}

/// Whether the seats of a payment in `status`, read under its lock, are still to be committed: otherwise another
/// delivery of the job was faster.
#[must_use]
pub fn may_commit_seats(status: PaymentStatus) -> bool {
    match status {
        PaymentStatus::Requested | PaymentStatus::Authorized => true,
        PaymentStatus::Capturing
        | PaymentStatus::Captured
        | PaymentStatus::Declined
        | PaymentStatus::Voided
        | PaymentStatus::Refunded
        | PaymentStatus::PartlyRefunded
        | PaymentStatus::NeedsReview => false,
    }
}

/// The provider's sum or currency is not what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// What the provider has.
    pub found: Money,
    /// What we asked for.
    pub asked: Money,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the provider has {}, we asked for {}", self.found, self.asked)
    }
}

/// Nothing is believed before sum and currency agree.
fn check_money(asked: Money, answer: &ProviderPayment) -> Result<(), Mismatch> {
    if answer.amount == asked { Ok(()) } else { Err(Mismatch { found: answer.amount, asked }) }
}

/// Whether the money is kept ready or taken already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoneyAt {
    /// There is none to take.
    Nothing,
    /// Kept ready by the provider.
    Ready,
    /// Taken.
    Taken,
}

/// What follows from what the provider says before the seats are committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Believed {
    /// Commit the seats.
    CommitSeats(MoneyAt),
    /// No money was taken: the payment ends. The reservation stays as it is.
    End(PaymentStatus, Option<String>),
    /// The buyer or the bank has still to act.
    StillPending,
    /// Park it for an operator.
    Park(Mismatch),
}

/// Judges the provider's answer to authorising, to fetching, and to giving up at the window's end.
#[must_use]
pub fn believe(asked: Money, answer: &ProviderPayment) -> Believed {
    if let Err(mismatch) = check_money(asked, answer) {
        return Believed::Park(mismatch);
    }
    match &answer.state {
        ProviderState::Authorized => Believed::CommitSeats(MoneyAt::Ready),
        ProviderState::Captured => Believed::CommitSeats(MoneyAt::Taken),
        ProviderState::Declined(why) => Believed::End(PaymentStatus::Declined, Some(why.clone())),
        ProviderState::Voided => Believed::End(PaymentStatus::Voided, None),
        ProviderState::Pending => Believed::StillPending,
    }
}

/// What to do about a payment that its buyer has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Look again after so many ms.
    Wait(i64),
    /// The window is over: tell the provider to give up, and see what it did.
    GiveUp,
}

/// Until the window's end the buyer may still act. Half-open: at the deadline it is over.
#[must_use]
pub fn patience(now_ms: i64, deadline_ms: i64) -> Patience {
    if now_ms < deadline_ms { Patience::Wait((deadline_ms - now_ms).min(ASK_AGAIN_MS)) } else { Patience::GiveUp }
}

/// How a reservation comes by its seats for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owning {
    /// It holds them: commit them.
    Commit,
    /// Its deadline passed: claim all again in one step, if all are free.
    ClaimAgain,
    /// It gave them up, or is paid for already.
    Refuse,
}

/// How the reservation that a payment is for comes by its seats.
#[must_use]
pub fn own_seats(state: ReservationState) -> Owning {
    match state {
        ReservationState::Pending | ReservationState::Committed { .. } => Owning::Commit,
        ReservationState::Cancelled { reason: CancelReason::Expired, .. } => Owning::ClaimAgain,
        ReservationState::Cancelled { .. } | ReservationState::Confirmed { .. } => Owning::Refuse,
    }
}

/// Whether a payment under review keeps its reservation's seats: only those that it still has.
#[must_use]
pub fn keeps_seats_under_review(state: ReservationState) -> bool {
    match state {
        ReservationState::Pending | ReservationState::Committed { .. } => true,
        ReservationState::Cancelled { .. } | ReservationState::Confirmed { .. } => false,
    }
}

/// What becomes of the money where the seats are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TooLate {
    /// There is none: the payment ends.
    End,
    /// It was only kept ready: give that up.
    GiveUp,
    /// It was taken: it goes back, once.
    Refund,
}

/// What becomes of money whose seats are gone.
#[must_use]
pub fn too_late(money: MoneyAt) -> TooLate {
    match money {
        MoneyAt::Nothing => TooLate::End,
        MoneyAt::Ready => TooLate::GiveUp,
        MoneyAt::Taken => TooLate::Refund,
    }
}

/// What follows from the provider's answer to giving up money that came too late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenUp {
    /// Nothing was taken: the payment ends.
    End(PaymentStatus, String),
    /// It was taken meanwhile: it goes back, once.
    Refund,
    /// The provider has not given up yet: ask again.
    NotYet,
    /// Another sum was taken meanwhile: park it for an operator.
    Park(Mismatch),
}

/// Judges the provider's answer to giving up money that came too late.
#[must_use]
pub fn given_up(asked: Money, answer: &ProviderPayment) -> GivenUp {
    match &answer.state {
        ProviderState::Voided => GivenUp::End(PaymentStatus::Voided, "late".to_owned()),
        ProviderState::Declined(why) => GivenUp::End(PaymentStatus::Declined, why.clone()),
        // What goes back must be what was taken.
        ProviderState::Captured => match check_money(asked, answer) {
            Ok(()) => GivenUp::Refund,
            Err(mismatch) => GivenUp::Park(mismatch),
        },
        ProviderState::Authorized | ProviderState::Pending => GivenUp::NotYet,
    }
}

/// What follows from the provider's answer to capturing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Captured {
    /// The money is taken: sell the seats and confirm, in one transaction.
    Confirm,
    /// A definite refusal: the seats are free again.
    Fail(String),
    /// It has not captured yet: ask again.
    NotYet,
    /// Another sum was taken: park it for an operator.
    Park(Mismatch),
}

/// Judges the provider's answer to capturing.
#[must_use]
pub fn captured(asked: Money, answer: &ProviderPayment) -> Captured {
    match &answer.state {
        ProviderState::Captured => match check_money(asked, answer) {
            Ok(()) => Captured::Confirm,
            Err(mismatch) => Captured::Park(mismatch),
        },
        ProviderState::Declined(why) => Captured::Fail(why.clone()),
        ProviderState::Voided => Captured::Fail("the authorisation lapsed".to_owned()),
        ProviderState::Pending | ProviderState::Authorized => Captured::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::from_ms;

    fn won(amount: i64) -> Money {
        Money { amount, currency: "KRW".parse().unwrap() }
    }

    fn says(amount: Money, state: ProviderState) -> ProviderPayment {
        ProviderPayment { reference: String::new(), amount, state }
    }

    #[test]
    fn money_of_another_sum_or_currency_is_parked_whenever_it_is_seen() {
        let dollars = Money { amount: 100, currency: "USD".parse().unwrap() };
        for found in [won(99), won(101), won(0), won(-100), dollars] {
            let mismatch = Mismatch { found, asked: won(100) };
            for state in [ProviderState::Authorized, ProviderState::Captured, ProviderState::Pending] {
                assert_eq!(believe(won(100), &says(found, state)), Believed::Park(mismatch));
            }
            let taken = says(found, ProviderState::Captured);
            assert_eq!(captured(won(100), &taken), Captured::Park(mismatch));
            assert_eq!(given_up(won(100), &taken), GivenUp::Park(mismatch));
        }
    }

    #[test]
    fn an_answer_that_is_no_end_is_asked_about_again() {
        for state in [ProviderState::Pending, ProviderState::Authorized] {
            assert_eq!(captured(won(100), &says(won(100), state.clone())), Captured::NotYet);
            assert_eq!(given_up(won(100), &says(won(100), state)), GivenUp::NotYet);
        }
    }

    #[test]
    fn a_payment_is_given_up_at_its_deadline_and_not_before() {
        assert_eq!(patience(1_000, 20_000), Patience::Wait(ASK_AGAIN_MS));
        assert_eq!(patience(19_999, 20_000), Patience::Wait(1));
        assert_eq!(patience(20_000, 20_000), Patience::GiveUp);
    }

    #[test]
    fn only_an_expired_reservation_may_claim_its_seats_again() {
        let at = from_ms(1);
        let cancelled = |reason| ReservationState::Cancelled { at, reason };
        assert_eq!(own_seats(cancelled(CancelReason::Expired)), Owning::ClaimAgain);
        for reason in
            [CancelReason::User, CancelReason::Operator, CancelReason::PaymentFailed, CancelReason::EventCancelled]
        {
            assert_eq!(own_seats(cancelled(reason)), Owning::Refuse);
        }
        assert_eq!(own_seats(ReservationState::Confirmed { at }), Owning::Refuse);
        assert_eq!(own_seats(ReservationState::Pending), Owning::Commit);
    }

    #[test]
    fn a_price_of_nothing_asks_no_provider() {
        assert_eq!(next_step(PaymentStatus::Requested, won(0)), NextStep::CommitSeats);
        assert_eq!(next_step(PaymentStatus::Capturing, won(0)), NextStep::Confirm);
        assert_eq!(next_step(PaymentStatus::Requested, won(1)), NextStep::Authorize);
        assert_eq!(next_step(PaymentStatus::Capturing, won(1)), NextStep::Capture);
    }
}
