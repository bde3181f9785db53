//! What the picture says to an answer.

use domain::flow::place_hold::{PlaceHoldError, SeatConflict};
use domain::flow::read_block::BlockReading;
use domain::flow::start_payment::StartPaymentError;
use domain::flow::unhold::ChangeReservationError;
use domain::gateway::ProviderState;
use domain::id::{PaymentId, ReservationId};
use domain::payment::{Payment, PaymentStatus};
use domain::reservation::{CancelReason, Reservation, ReservationState};
use domain::seat::SeatStatus;
use domain::store::pg::claims::Blocking;
use domain::time::to_ms;

use super::{Before, Blocked, Known, Oracle, SLACK_MS, Violation};
use crate::op::{Held, Op, Told};
use crate::provider::ScriptedProvider;

/// An answer with what is needed to judge it.
pub struct Answer<'a> {
    /// What was asked.
    pub op: &'a Op,
    /// What was known then.
    pub before: &'a Before,
    /// Postgres's clock and Redis's, now.
    pub now: (i64, i64),
    /// The provider, whose books are compared.
    pub provider: &'a ScriptedProvider,
}

type Judged = Result<(), Violation>;

impl Oracle {
    /// Compares an answer with the picture, and learns from it.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn judge(&mut self, answer: &Answer<'_>, told: Told) -> Judged {
        match (answer.op, told) {
            (Op::Hold { key, .. }, Told::Held(Ok(held))) => self.held(answer, *key, &held),
            (Op::Hold { .. }, Told::Held(Err(error))) => self.not_held(answer, &error),
            (Op::Cancel(id, reason), Told::Changed(told)) => self.cancelled(answer, (*id, *reason), told),
            (Op::Extend(id, _), Told::Changed(told)) => self.extended(answer, *id, told),
            (Op::Pay(id, _), Told::Paying(told)) => self.paying(answer, *id, told),
            (Op::Read(id), Told::Read(Ok(found))) => self.read(answer, *id, found),
            (Op::Picture(_), Told::Picture(Ok(_))) => Ok(()),
            (Op::Block(seats, blocking), Told::Blocked(told)) => {
                self.blocked(answer, (seats, *blocking), told.is_ok());
                Ok(())
            }
            (_, Told::Finalized(payment, Ok(status))) => self.finalized(answer, payment, status),
            _ => Ok(()),
        }
    }

    fn held(&mut self, answer: &Answer<'_>, key: Option<usize>, held: &Held) -> Judged {
        let tried = answer.before.tried.map(|tried| self.tried[tried].clone());
        let Some(tried) = tried else { return Ok(()) };
        self.forget_tried(answer.before);
        if let Some(first) = key.and_then(|key| self.keys.insert(key, held.id))
            && first != held.id
        {
            return Err(Violation::new("I5", format!("one idempotency key was answered with {first} and {}", held.id)));
        }
        let price = self.rules.price * i64::try_from(tried.seats.len()).unwrap_or(0);
        if held.amount != price {
            return Err(Violation::new("I2", format!("{} costs {}, its seats {price}", held.id, held.amount)));
        }
        if self.known.contains_key(&held.id) {
            return Ok(());
        }
        let known = Known {
            buyer: tried.buyer,
            seats: tried.seats,
            amount: held.amount,
            created_ms: held.created_ms,
            certain_until_ms: held.expires_ms,
            possible_until_ms: held.expires_ms,
            ended_from_ms: None,
            confirmed_from_ms: None,
            is_over: false,
            is_cancel_asked: false,
            payments: Vec::new(),
            is_payment_possible: false,
        };
        self.sole_owner(held.id, &known)?;
        for &seat in &known.seats {
            if let Blocked::Since(since) = self.blocked[seat]
                && since.saturating_add(SLACK_MS) < known.created_ms
            {
                return Err(Violation::new("I1", format!("seat {seat} is blocked, and {} holds it", held.id)));
            }
        }
        let (_, certain) = self.owned_by(known.buyer, (held.created_ms, held.created_ms));
        if let Some(max) = self.rules.per_buyer.filter(|max| certain + known.seats.len() > *max) {
            let what = format!("buyer {} owns {certain} of at most {max}, and got {}", known.buyer, known.seats.len());
            return Err(Violation::new("limit", what));
        }
        self.holds += 1;
        self.known.insert(held.id, known);
        Ok(())
    }

    /// I1, from what callers were told.
    fn sole_owner(&self, id: ReservationId, known: &Known) -> Judged {
        for (other, theirs) in self.known.iter().filter(|(other, _)| **other != id) {
            if let Some(seat) = known.overlaps(theirs) {
                let what = format!("seat {seat} was {id}'s {:?} and {other}'s {:?}", known.spans(), theirs.spans());
                return Err(Violation::new("I1", what));
            }
        }
        Ok(())
    }

    fn not_held(&mut self, answer: &Answer<'_>, error: &PlaceHoldError) -> Judged {
        let Some(tried) = answer.before.tried.map(|tried| self.tried[tried].clone()) else { return Ok(()) };
        if matches!(error, PlaceHoldError::Place(_) | PlaceHoldError::Pg(_)) {
            // Perhaps it is committed all the same.
            self.lost(answer.before, answer.now);
            return Ok(());
        }
        if self.is_troubled {
            self.lost(answer.before, answer.now);
        }
        self.forget_tried(answer.before);
        match error {
            PlaceHoldError::Unavailable(conflicts) => self.in_conflict(answer, &tried.seats, conflicts),
            PlaceHoldError::BuyerLimit { max, .. } => {
                let (possible, _) = self.owned_by(tried.buyer, (answer.before.at_ms, answer.now.0));
                let max = usize::try_from(*max).unwrap_or(0);
                if possible + tried.seats.len() <= max {
                    let what = format!("buyer {} can own {possible} of {max} and was refused", tried.buyer);
                    return Err(Violation::new("limit", what));
                }
                Ok(())
            }
            PlaceHoldError::KeyReused => Err(Violation::new("I5", "the same request was said to be another")),
            PlaceHoldError::UnknownEvent | PlaceHoldError::UnknownSeats(_) => {
                Err(Violation::new("answer", format!("the event's own seats are unknown: {error}")))
            }
            PlaceHoldError::RepeatedSeats(_)
            | PlaceHoldError::NoSeats
            | PlaceHoldError::NotOnSale(_)
            | PlaceHoldError::SalesClosed
            | PlaceHoldError::EventCancelled
            | PlaceHoldError::TooManySeats { .. }
            | PlaceHoldError::InProgress
            | PlaceHoldError::Pg(_)
            | PlaceHoldError::Place(_) => Ok(()),
        }
    }

    fn in_conflict(&self, answer: &Answer<'_>, seats: &[usize], conflicts: &[SeatConflict]) -> Judged {
        if conflicts.is_empty() {
            return Err(Violation::new("I4", "a hold is refused, and no seat is named"));
        }
        for conflict in conflicts {
            let seat = seats.get(conflict.index).copied().unwrap_or_default();
            if !answer.before.possible.get(seat).copied().unwrap_or(true) {
                let what = format!("seat {seat} is refused as {}, and nobody can own it", conflict.status.as_str());
                return Err(Violation::new("I3", what));
            }
        }
        if self.is_troubled || self.rules.skew_ms != 0 {
            return Ok(());
        }
        for (index, &seat) in seats.iter().enumerate() {
            let Some((owner, known)) = self.certain_owner(seat, (answer.before.at_ms, answer.now.0)) else { continue };
            let named = conflicts.iter().find(|conflict| conflict.index == index);
            let wanted = if known.confirmed_from_ms.is_some() { SeatStatus::Sold } else { SeatStatus::Held };
            match named {
                None => {
                    let what = format!("a refusal does not name seat {seat}, which is {owner}'s");
                    return Err(Violation::new("I4", what));
                }
                Some(named) if wanted == SeatStatus::Sold && named.status != wanted => {
                    let what = format!("seat {seat} is sold to {owner}, and named {}", named.status.as_str());
                    return Err(Violation::new("I4", what));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn forget_tried(&mut self, before: &Before) {
        if let Some(tried) = before.tried {
            self.tried[tried].possible_until_ms = Some(i64::MIN);
        }
    }

    fn cancelled(
        &mut self,
        answer: &Answer<'_>,
        (id, reason): (ReservationId, CancelReason),
        told: Result<Option<Reservation>, ChangeReservationError>,
    ) -> Judged {
        match told {
            Ok(Some(reservation)) => {
                if reservation.cancel_reason() != Some(reason) {
                    let what = format!("{id} is cancelled, and is {:?}", reservation.state);
                    return Err(Violation::new("answer", what));
                }
                self.ended(id);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => self.not_changed(answer, id, &error),
        }
    }

    fn ended(&mut self, id: ReservationId) {
        let is_clean = !self.is_troubled;
        if let Some(known) = self.known.get_mut(&id) {
            known.is_over |= is_clean;
        }
    }

    fn extended(
        &mut self,
        answer: &Answer<'_>,
        id: ReservationId,
        told: Result<Option<Reservation>, ChangeReservationError>,
    ) -> Judged {
        match told {
            Ok(Some(reservation)) => {
                if let Some(known) = self.known.get_mut(&id) {
                    let until = to_ms(reservation.expires_at);
                    known.certain_until_ms = known.certain_until_ms.max(until);
                    known.possible_until_ms = known.possible_until_ms.max(until);
                }
                self.known.get(&id).map_or(Ok(()), |known| self.sole_owner(id, known))
            }
            Ok(None) => Ok(()),
            Err(error) => self.not_changed(answer, id, &error),
        }
    }

    /// Whether a reservation can be what its change was refused for.
    fn not_changed(&self, answer: &Answer<'_>, id: ReservationId, error: &ChangeReservationError) -> Judged {
        let Some(known) = self.known.get(&id) else { return Ok(()) };
        match error {
            ChangeReservationError::NotFound => {
                Err(Violation::new("lost", format!("{id} was acknowledged, and is not found")))
            }
            ChangeReservationError::Gone(reason) => self.can_be_over(answer, (id, known), *reason),
            ChangeReservationError::Confirmed if !known.is_payment_possible => {
                Err(Violation::new("I2", format!("{id} is said to be confirmed, and nobody has begun to pay")))
            }
            ChangeReservationError::PaymentInFlight if !known.is_payment_possible => {
                Err(Violation::new("answer", format!("{id} is said to be paid for, and nobody has begun to")))
            }
            ChangeReservationError::KeyReused => Err(Violation::new("I5", "the same request was said to be another")),
            ChangeReservationError::Confirmed
            | ChangeReservationError::PaymentInFlight
            | ChangeReservationError::NoFurtherExtension
            | ChangeReservationError::Pg(_) => Ok(()),
        }
    }

    fn can_be_over(&self, answer: &Answer<'_>, (id, known): (ReservationId, &Known), reason: CancelReason) -> Judged {
        if known.confirmed_from_ms.is_some() {
            return Err(Violation::new("I2", format!("{id} was confirmed, and is cancelled: {}", reason.as_str())));
        }
        let is_possible = match reason {
            CancelReason::Expired => known.certain_until_ms <= answer.now.0.saturating_add(SLACK_MS),
            CancelReason::User | CancelReason::Operator => known.is_cancel_asked,
            CancelReason::PaymentFailed => known.is_payment_possible,
            CancelReason::EventCancelled => false,
        };
        if is_possible {
            return Ok(());
        }
        let what =
            format!("{id} lives until {}, and is {} at {}", known.certain_until_ms, reason.as_str(), answer.now.0);
        Err(Violation::new("lost", what))
    }

    /// I2: CONFIRMED is never said before the money is captured.
    fn is_paid(answer: &Answer<'_>, found: &Reservation) -> Judged {
        let entries = answer.provider.entries();
        let kept: i64 = found
            .payments
            .iter()
            .filter_map(|payment| entries.get(&payment.id))
            .map(|entry| entry.amount.amount * i64::from(entry.captures) - entry.refunded)
            .sum();
        if kept == found.amount.amount {
            return Ok(());
        }
        let what = format!("{} is confirmed for {}, and the provider keeps {kept}", found.id, found.amount);
        Err(Violation::new("I2", what))
    }

    fn paying(
        &mut self,
        answer: &Answer<'_>,
        id: ReservationId,
        told: Result<Option<Payment>, StartPaymentError>,
    ) -> Judged {
        match told {
            Ok(Some(payment)) => {
                let Some(known) = self.known.get_mut(&id) else { return Ok(()) };
                if payment.amount.amount != known.amount {
                    return Err(Violation::new(
                        "I2",
                        format!("{id} costs {}, {} is asked", known.amount, payment.amount),
                    ));
                }
                if !known.payments.contains(&payment.id) {
                    known.payments.push(payment.id);
                }
                if payment.status == PaymentStatus::Requested {
                    known.certain_until_ms = known.certain_until_ms.max(to_ms(payment.deadline));
                }
                self.known.get(&id).map_or(Ok(()), |known| self.sole_owner(id, known))
            }
            Ok(None) => Ok(()),
            Err(StartPaymentError::Reservation(error)) => self.not_changed(answer, id, &error),
            Err(StartPaymentError::KeyReused) => Err(Violation::new("I5", "the same request was said to be another")),
        }
    }

    fn read(&mut self, answer: &Answer<'_>, id: ReservationId, found: Option<Reservation>) -> Judged {
        let Some(known) = self.known.get(&id) else { return Ok(()) };
        let Some(found) = found else {
            return Err(Violation::new("lost", format!("{id} was acknowledged, and does not exist")));
        };
        match found.state {
            ReservationState::Pending | ReservationState::Committed { .. } if known.confirmed_from_ms.is_some() => {
                Err(Violation::new("I2", format!("{id} was confirmed, and is {:?}", found.state)))
            }
            ReservationState::Pending | ReservationState::Committed { .. } => Ok(()),
            ReservationState::Confirmed { .. } => {
                Self::is_paid(answer, &found)?;
                self.confirmed(answer, id)
            }
            ReservationState::Cancelled { reason, .. } => {
                self.can_be_over(answer, (id, known), reason)?;
                if let Some(known) = self.known.get_mut(&id) {
                    known.ended_from_ms.get_or_insert(answer.now.0);
                }
                Ok(())
            }
        }
    }

    fn confirmed(&mut self, answer: &Answer<'_>, id: ReservationId) -> Judged {
        if let Some(known) = self.known.get_mut(&id)
            && known.confirmed_from_ms.is_none()
        {
            known.confirmed_from_ms = Some(answer.now.0);
            self.sold += 1;
        }
        self.known.get(&id).map_or(Ok(()), |known| self.sole_owner(id, known))
    }

    fn blocked(&mut self, answer: &Answer<'_>, (seats, blocking): (&[usize], Blocking), is_done: bool) {
        let to = match (blocking, is_done, self.is_troubled) {
            (Blocking::Block, true, _) => Blocked::Since(answer.now.0),
            (Blocking::Unblock, true, false) => Blocked::No,
            (Blocking::Block | Blocking::Unblock, ..) => Blocked::Perhaps,
        };
        self.set_blocked(seats, to);
    }

    fn finalized(&mut self, answer: &Answer<'_>, payment: PaymentId, status: PaymentStatus) -> Judged {
        let owner = self.known.iter().find(|(_, known)| known.payments.contains(&payment)).map(|(id, _)| *id);
        let entry = answer.provider.entry(payment);
        let kept = entry.as_ref().map_or(0, |entry| entry.amount.amount * i64::from(entry.captures) - entry.refunded);
        let Some(id) = owner else { return Ok(()) };
        match status {
            PaymentStatus::Captured => {
                let amount = self.known.get(&id).map_or(0, |known| known.amount);
                if kept != amount {
                    return Err(Violation::new("I2", format!("{payment} is captured for {amount}, {kept} is kept")));
                }
                self.confirmed(answer, id)
            }
            PaymentStatus::Refunded => {
                self.refunded += 1;
                if kept != 0 {
                    return Err(Violation::new("I2", format!("{payment} is refunded, and {kept} is kept")));
                }
                Ok(())
            }
            PaymentStatus::Declined | PaymentStatus::Voided => {
                let is_taken = entry.is_some_and(|entry| entry.state == ProviderState::Captured);
                if is_taken && kept != 0 {
                    return Err(Violation::new("I2", format!("{payment} is {}, and {kept} is kept", status.as_str())));
                }
                // Refused at the capture, its seats are free; refused before, they are still held.
                if let Some(known) = self.known.get_mut(&id) {
                    known.ended_from_ms.get_or_insert(answer.before.at_ms);
                }
                Ok(())
            }
            PaymentStatus::NeedsReview
            | PaymentStatus::Requested
            | PaymentStatus::Authorized
            | PaymentStatus::Capturing
            | PaymentStatus::PartlyRefunded => Ok(()),
        }
    }

    /// What a block shows must not contradict what is certain, where nothing broke.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn judge_picture(&self, answer: &Answer<'_>, seats: std::ops::Range<usize>, picture: &BlockReading) -> Judged {
        if self.is_troubled || self.rules.skew_ms != 0 {
            return Ok(());
        }
        for (seat, shown) in seats.zip(&picture.seats) {
            let status = shown.status_at(picture.now_ms);
            let owner = self.certain_owner(seat, (answer.before.at_ms, answer.now.0));
            if let Some((id, _)) = owner
                && status == SeatStatus::Available
            {
                return Err(Violation::new("I6", format!("seat {seat} is {id}'s, and looks available")));
            }
            let is_possible = answer.before.possible.get(seat).copied().unwrap_or(true);
            if !is_possible && status != SeatStatus::Available {
                let what = format!("seat {seat} looks {}, and nobody can own it", status.as_str());
                return Err(Violation::new("I3", what));
            }
        }
        Ok(())
    }
}
