//! Postgres's transactions, each one atomic step, as the SQL of `domain::store::pg` says them.

use domain::decide::payment::{self as decide, Owning};
use domain::decide::reservation::{self as changes, Cancelling, Extensions, Paying};
use domain::payment::PaymentStatus;
use domain::reservation::CancelReason;
use domain::seat::ClaimState;

use super::world::{Claim, Index, Payment, Plan, Refund, Reservation, Row, Ticks, World, instant, seats_of};

/// How a hold ends in Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldOutcome {
    /// It stands.
    Held,
    /// These seats are somebody else's.
    Conflict(u8),
}

impl World {
    fn is_dead(&self, claim: Claim) -> bool {
        claim.expires_at.is_some_and(|at| at <= self.now)
    }

    /// `Pg::place_holds`: one insert of all claims, a takeover of dead ones, then all or nothing.
    pub fn place_hold(&mut self, plan: &Plan, id: Index) -> HoldOutcome {
        let wanted = self.reservation(id).seats;
        let expires_at = self.now + plan.hold_ttl;
        self.insert_claims(id, wanted, expires_at);
        let missing = self.missing(id, wanted);
        let mut dead = Vec::new();
        let mut all_dead = missing != 0;
        for seat in seats_of(missing) {
            match self.claims[seat] {
                Some(claim) if self.is_dead(claim) => dead.push(claim.reservation),
                _ => all_dead = false,
            }
        }
        for dead in dead {
            self.expire(dead);
        }
        if all_dead {
            self.insert_claims(id, wanted, expires_at);
        }
        let missing = self.missing(id, wanted);
        if missing != 0 {
            self.check_refusal(missing);
            for seat in seats_of(wanted) {
                if self.claims[seat].is_some_and(|claim| claim.reservation == id) {
                    self.claims[seat] = None;
                }
            }
            return HoldOutcome::Conflict(missing);
        }
        let span = i16::try_from(plan.extensions_max + 1).unwrap_or(1);
        let reservation = &mut self.reservations[usize::from(id)];
        reservation.row = Row::Pending;
        reservation.expires_at = expires_at;
        reservation.extends_until = self.now + plan.hold_ttl * span;
        HoldOutcome::Held
    }

    fn insert_claims(&mut self, id: Index, wanted: u8, expires_at: Ticks) {
        for seat in seats_of(wanted) {
            let held = Claim { reservation: id, state: ClaimState::Held, expires_at: Some(expires_at) };
            self.claims[seat].get_or_insert(held);
        }
    }

    fn missing(&self, id: Index, wanted: u8) -> u8 {
        let own = |seat: &usize| self.claims[*seat].is_some_and(|claim| claim.reservation == id);
        seats_of(wanted).filter(|seat| !own(seat)).fold(0, |bits, seat| bits | 1 << seat)
    }

    /// I3, I4: whoever is refused is refused because of the living.
    fn check_refusal(&mut self, missing: u8) {
        for seat in seats_of(missing) {
            // A seat beside a living one may be dead: it is named too, since the whole hold is refused.
            if self.claims[seat].is_none_or(|claim| self.is_dead(claim)) && missing.count_ones() == 1 {
                self.break_with("I3: a hold is refused for a seat whose owner is dead");
            }
        }
    }

    /// `expire_reservations`: cancels it if it is PENDING, overdue and not committed.
    pub fn expire(&mut self, id: Index) -> bool {
        let reservation = self.reservation(id);
        let is_due = reservation.row == Row::Pending && reservation.expires_at <= self.now;
        if is_due {
            self.cancel_locked(id, CancelReason::Expired);
        }
        is_due
    }

    /// `cancel_locked`: its claims go, by compare-and-set on the owner.
    fn cancel_locked(&mut self, id: Index, reason: CancelReason) {
        self.reservations[usize::from(id)].row = Row::Cancelled(reason);
        for claim in &mut self.claims {
            if claim.is_some_and(|claim| claim.reservation == id) {
                *claim = None;
            }
        }
    }

    fn move_deadline(&mut self, id: Index, to: Ticks) {
        self.reservations[usize::from(id)].expires_at = to;
        for claim in self.claims.iter_mut().flatten() {
            if claim.reservation == id && claim.state == ClaimState::Held {
                claim.expires_at = Some(to);
            }
        }
    }

    /// `find_standing_payment`.
    #[must_use]
    pub fn standing(&self, reservation: Index) -> Option<Index> {
        let keeps = |payment: &Payment| {
            payment.reservation == reservation
                && matches!(
                    payment.status,
                    PaymentStatus::Requested
                        | PaymentStatus::Authorized
                        | PaymentStatus::Capturing
                        | PaymentStatus::Captured
                        | PaymentStatus::PartlyRefunded
                        | PaymentStatus::NeedsReview
                )
        };
        self.payments.iter().position(keeps).and_then(|at| Index::try_from(at).ok())
    }

    fn standing_status(&self, reservation: Index) -> Option<PaymentStatus> {
        self.standing(reservation).map(|standing| self.payment(standing).status)
    }

    /// `cancel_reservation`'s transaction.
    pub fn cancel(&mut self, id: Index) -> Option<Cancelling> {
        let state = self.reservation(id).state(self.now)?;
        let answer = changes::cancel(state, self.standing_status(id), CancelReason::User);
        if answer == Cancelling::Cancel {
            self.cancel_locked(id, CancelReason::User);
        }
        Some(answer)
    }

    /// `extend_reservation`'s transaction: whether it was extended.
    pub fn extend(&mut self, plan: &Plan, id: Index) -> bool {
        let reservation = self.reservation(id);
        let Some(state) = reservation.state(self.now) else { return false };
        if changes::check_pending(state).is_err() || self.standing(id).is_some() {
            return false;
        }
        let extensions = Extensions {
            done: reservation.extensions,
            max: plan.extensions_max,
            until: instant(reservation.extends_until),
        };
        let deadline = instant(self.now + plan.hold_ttl);
        if changes::extended_deadline(instant(reservation.expires_at), deadline, extensions).is_none() {
            return false;
        }
        let to = (self.now + plan.hold_ttl).min(reservation.extends_until);
        self.reservations[usize::from(id)].extensions += 1;
        self.move_deadline(id, to);
        true
    }

    /// `start_payment`'s transaction: the new payment, if one was made.
    pub fn start_payment(&mut self, plan: &Plan, id: Index) -> Option<Paying> {
        let reservation = self.reservation(id);
        let state = reservation.state(self.now)?;
        let answer = changes::start_payment(state, self.standing_status(id));
        if answer == Paying::New {
            let so_far = (instant(reservation.expires_at), reservation.payment_stretched);
            let window_ms = i64::from(plan.payment_window) * super::world::TICK_MS;
            let mut deadline = reservation.expires_at;
            if changes::payment_deadline(so_far, instant(self.now), window_ms).is_some() {
                deadline = deadline.max(self.now + plan.payment_window);
                self.move_deadline(id, deadline);
                self.reservations[usize::from(id)].payment_stretched = true;
            }
            self.payments.push(Payment {
                reservation: id,
                status: PaymentStatus::Requested,
                deadline,
                outbox: true,
                refund: Refund::None,
                queued: false,
                entry: None,
            });
        }
        Some(answer)
    }

    /// `own_seats` of finalize_payment: whether the seats are the reservation's for good.
    pub fn own_seats(&mut self, id: Index) -> bool {
        let Some(state) = self.reservation(id).state(self.now) else { return false };
        match decide::own_seats(state) {
            Owning::Commit => {
                if !self.commit_claims(id) {
                    self.break_with("I1: the held seats of a reservation are not all its own");
                }
                true
            }
            Owning::ClaimAgain => {
                self.expire(id);
                self.claim_again(id)
            }
            Owning::Refuse => false,
        }
    }

    fn commit_claims(&mut self, id: Index) -> bool {
        let mut all = true;
        for seat in seats_of(self.reservation(id).seats) {
            match &mut self.claims[seat] {
                Some(claim)
                    if claim.reservation == id && matches!(claim.state, ClaimState::Held | ClaimState::Committed) =>
                {
                    claim.state = ClaimState::Committed;
                    claim.expires_at = None;
                }
                _ => all = false,
            }
        }
        self.reservations[usize::from(id)].row = Row::Committed;
        all
    }

    fn claim_again(&mut self, id: Index) -> bool {
        let wanted = self.reservation(id).seats;
        if seats_of(wanted).any(|seat| self.claims[seat].is_some()) {
            return false;
        }
        for seat in seats_of(wanted) {
            self.claims[seat] = Some(Claim { reservation: id, state: ClaimState::Committed, expires_at: None });
        }
        self.reservations[usize::from(id)].row = Row::Committed;
        true
    }

    /// `confirm`'s transaction, under the lock of a payment that is being captured.
    pub fn confirm(&mut self, payment: Index) {
        if self.payment(payment).status != PaymentStatus::Capturing {
            return;
        }
        let id = self.payment(payment).reservation;
        for seat in seats_of(self.reservation(id).seats) {
            match &mut self.claims[seat] {
                Some(claim) if claim.reservation == id && claim.state == ClaimState::Committed => {
                    claim.state = ClaimState::Sold;
                }
                _ => self.broken = Some("I1: the committed seats of a reservation are not all its own"),
            }
        }
        self.reservations[usize::from(id)].row = Row::Confirmed;
        self.end_payment(payment, PaymentStatus::Captured);
    }

    /// `fail`'s transaction: a definite refusal to capture frees the seats.
    pub fn fail(&mut self, payment: Index) {
        if self.payment(payment).status == PaymentStatus::Capturing {
            self.cancel_locked(self.payment(payment).reservation, CancelReason::PaymentFailed);
            self.end_payment(payment, PaymentStatus::Declined);
        }
    }

    /// `park`'s transaction.
    pub fn park(&mut self, payment: Index, seen: PaymentStatus) {
        if self.payment(payment).status != seen {
            return;
        }
        let id = self.payment(payment).reservation;
        if self.reservation(id).state(self.now).is_some_and(decide::keeps_seats_under_review) {
            self.own_seats(id);
        }
        self.end_payment(payment, PaymentStatus::NeedsReview);
    }

    /// Ends a payment whose row has not moved since it was read: whether it did.
    pub fn end_if(&mut self, payment: Index, seen: PaymentStatus, status: PaymentStatus) -> bool {
        let unmoved = self.payment(payment).status == seen;
        if unmoved {
            self.end_payment(payment, status);
        }
        unmoved
    }

    fn end_payment(&mut self, payment: Index, status: PaymentStatus) {
        let payment = self.payment_mut(payment);
        payment.status = status;
        payment.outbox = false;
    }

    /// `note_late_capture`: the refund's row exists before the provider is asked.
    pub fn note_late_capture(&mut self, payment: Index) {
        let payment = self.payment_mut(payment);
        payment.status = PaymentStatus::Captured;
        if payment.refund == Refund::None {
            payment.refund = Refund::Requested;
        }
    }

    /// A new request to hold, not committed yet.
    pub fn ask_for(&mut self, buyer: Index, seats: u8) -> Option<Index> {
        let id = Index::try_from(self.reservations.len()).ok()?;
        self.reservations.push(Reservation {
            buyer,
            seats,
            row: Row::Absent,
            expires_at: 0,
            extends_until: 0,
            extensions: 0,
            payment_stretched: false,
        });
        self.redis.index.push(None);
        Some(id)
    }
}
