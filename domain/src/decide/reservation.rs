//! What may be done to a reservation: paid for, cancelled, extended.

use chrono::Duration;

use crate::payment::PaymentStatus;
use crate::reservation::{CancelReason, ReservationState};
use crate::time::Instant;

/// Why a reservation cannot be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Settled {
    /// It is being paid for.
    PaymentInFlight,
    /// It is confirmed.
    Confirmed,
    /// It is over.
    Gone(CancelReason),
}

/// Whether a reservation can still be paid for or extended.
///
/// # Errors
/// Why it cannot.
pub fn check_pending(state: ReservationState) -> Result<(), Settled> {
    match state {
        ReservationState::Pending => Ok(()),
        ReservationState::Committed { .. } => Err(Settled::PaymentInFlight),
        ReservationState::Confirmed { .. } => Err(Settled::Confirmed),
        ReservationState::Cancelled { reason, .. } => Err(Settled::Gone(reason)),
    }
}

/// How a request to pay is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Paying {
    /// By the payment that stands already.
    Standing,
    /// By a new payment.
    New,
    /// Not at all.
    Refuse(Settled),
}

/// How a request to pay for a reservation is answered. `standing` is its payment that may take money or has kept it.
#[must_use]
pub fn start_payment(state: ReservationState, standing: Option<PaymentStatus>) -> Paying {
    if let Some(status) = standing {
        // A double click may come a moment after the capture: it is paid, and that is the answer.
        let is_paid = matches!(state, ReservationState::Confirmed { .. });
        if status.is_open() || is_paid {
            return Paying::Standing;
        }
    }
    match check_pending(state) {
        Ok(()) => Paying::New,
        Err(settled) => Paying::Refuse(settled),
    }
}

/// The deadline that a payment gives its reservation; none where a payment has stretched it already: a declined card
/// does not buy another window.
#[must_use]
pub fn payment_deadline(
    (expires_at, is_stretched): (Instant, bool),
    now: Instant,
    payment_window_ms: i64,
) -> Option<Instant> {
    (!is_stretched).then(|| expires_at.max(now + Duration::milliseconds(payment_window_ms)))
}

/// How a request to cancel is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cancelling {
    /// It is cancelled now.
    Cancel,
    /// It is cancelled for the same reason already.
    Already,
    /// Not at all.
    Refuse(Settled),
}

/// How a request to cancel a reservation is answered.
#[must_use]
pub fn cancel(state: ReservationState, standing: Option<PaymentStatus>, reason: CancelReason) -> Cancelling {
    match state {
        ReservationState::Pending if standing.is_some() => Cancelling::Refuse(Settled::PaymentInFlight),
        ReservationState::Pending => Cancelling::Cancel,
        ReservationState::Cancelled { reason: known, .. } if known == reason => Cancelling::Already,
        ReservationState::Committed { .. }
        | ReservationState::Confirmed { .. }
        | ReservationState::Cancelled { .. } => {
            Cancelling::Refuse(check_pending(state).err().unwrap_or(Settled::PaymentInFlight))
        }
    }
}

/// How often, and until when, a hold was and may be extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extensions {
    /// How often it was.
    pub done: i32,
    /// How often the event allows.
    pub max: i32,
    /// No extension goes past this.
    pub until: Instant,
}

/// The deadline of a hold that is extended; none where that is not allowed, or gains nothing. `hold_deadline` is what a
/// hold made now would get.
#[must_use]
pub fn extended_deadline(expires_at: Instant, hold_deadline: Instant, extensions: Extensions) -> Option<Instant> {
    let deadline = hold_deadline.min(extensions.until);
    (extensions.done < extensions.max && deadline > expires_at).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::from_ms;

    #[test]
    fn a_second_payment_never_stands_beside_an_open_one() {
        let states = [
            ReservationState::Pending,
            ReservationState::Committed { at: from_ms(1) },
            ReservationState::Cancelled { at: from_ms(1), reason: CancelReason::Expired },
        ];
        for state in states {
            for open in [PaymentStatus::Requested, PaymentStatus::Capturing, PaymentStatus::NeedsReview] {
                assert_eq!(start_payment(state, Some(open)), Paying::Standing);
            }
        }
        assert_eq!(start_payment(ReservationState::Pending, None), Paying::New);
    }

    #[test]
    fn what_is_being_paid_for_cannot_be_cancelled() {
        let refused = Cancelling::Refuse(Settled::PaymentInFlight);
        let standing = Some(PaymentStatus::Requested);
        assert_eq!(cancel(ReservationState::Pending, standing, CancelReason::User), refused);
        let committed = ReservationState::Committed { at: from_ms(1) };
        assert_eq!(cancel(committed, standing, CancelReason::User), refused);
        assert_eq!(cancel(ReservationState::Pending, None, CancelReason::User), Cancelling::Cancel);
    }

    #[test]
    fn a_payment_stretches_the_deadline_once() {
        let at = from_ms;
        assert_eq!(payment_deadline((at(6_000), false), at(5_000), 20_000), Some(at(25_000)));
        assert_eq!(payment_deadline((at(60_000), false), at(5_000), 20_000), Some(at(60_000)), "never shortened");
        assert_eq!(payment_deadline((at(25_000), true), at(9_000), 20_000), None);
    }
}
