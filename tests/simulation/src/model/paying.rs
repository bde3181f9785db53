//! `finalize_payment`, step by step: what follows is decided by the engine's own `domain::decide::payment`.

use domain::decide::payment::{self as decide, Believed, Captured, GivenUp, MoneyAt, NextStep, Patience, TooLate};
use domain::payment::PaymentStatus;

use super::process::{Change, Next, Then};
use super::provider::{Answer, Ask, won};
use super::world::{Index, Plan, Refund, TICK_MS, Ticks, World};

impl World {
    pub(super) fn step_payment(&mut self, plan: &Plan, next: Next, answer: Answer) -> Option<Next> {
        match next {
            Next::Load(payment) => Some(self.load(plan, payment)),
            Next::Asking(payment, seen, ask) => self.ask_provider(plan, (payment, seen, ask), answer),
            Next::AskingLate(payment, seen) => {
                let found = self.ask(plan, (payment, Ask::Void), answer)?;
                match decide::given_up(won(self.amount(plan, payment)), &found) {
                    GivenUp::End(status, _) => Some(Next::EndPayment(payment, seen, status)),
                    GivenUp::Refund => Some(Next::NoteLate(payment, seen)),
                    GivenUp::NotYet => None,
                    GivenUp::Park(_) => Some(Next::Mark(payment, seen, Change::Park)),
                }
            }
            Next::Mark(payment, seen, change) => {
                self.mark(plan, self.payment(payment).reservation);
                Some(Next::Commit(payment, seen, change))
            }
            Next::Commit(payment, seen, change) => {
                let then = self.commit_change(payment, seen, change);
                self.committed();
                match then {
                    Some(then) => Some(Next::ShowRead(self.payment(payment).reservation, then)),
                    None => Some(Next::Load(payment)),
                }
            }
            Next::EndPayment(payment, seen, status) => {
                if self.end_if(payment, seen, status) {
                    self.done(payment)
                } else {
                    Some(Next::Load(payment))
                }
            }
            Next::NoteLate(payment, seen) => {
                if self.payment(payment).status == seen {
                    self.note_late_capture(payment);
                }
                Some(Next::Load(payment))
            }
            Next::FinishRefund(payment) => {
                let row = self.payment_mut(payment);
                (row.refund, row.status, row.outbox) = (Refund::Done, PaymentStatus::Refunded, false);
                self.done(payment)
            }
            Next::Close(payment) => {
                self.payment_mut(payment).outbox = false;
                Some(Next::ShowRead(self.payment(payment).reservation, Then::Done(payment)))
            }
            _ => None,
        }
    }

    fn load(&self, plan: &Plan, payment: Index) -> Next {
        let row = self.payment(payment);
        match decide::next_step(row.status, won(self.amount(plan, payment))) {
            NextStep::Authorize => Next::Asking(payment, row.status, Ask::Authorize),
            NextStep::CommitSeats => Next::Mark(payment, row.status, Change::Commit(MoneyAt::Nothing)),
            NextStep::Capture => Next::Asking(payment, row.status, Ask::Capture),
            NextStep::Confirm => Next::Mark(payment, row.status, Change::Confirm),
            NextStep::SettleCaptured if row.refund == Refund::Requested => {
                Next::Asking(payment, row.status, Ask::Refund)
            }
            NextStep::SettleCaptured | NextStep::Close => Next::Close(payment),
        }
    }

    /// None: no definite answer, or the buyer has still to act; the job comes again.
    fn ask_provider(
        &mut self,
        plan: &Plan,
        (payment, seen, ask): (Index, PaymentStatus, Ask),
        answer: Answer,
    ) -> Option<Next> {
        let asked = won(self.amount(plan, payment));
        let Some(found) = self.ask(plan, (payment, ask), answer) else {
            return (ask == Ask::Authorize).then_some(Next::Asking(payment, seen, Ask::Fetch));
        };
        match ask {
            Ask::Authorize | Ask::Fetch | Ask::Void => match decide::believe(asked, &found) {
                Believed::CommitSeats(money) => Some(Next::Mark(payment, seen, Change::Commit(money))),
                Believed::End(status, _) => Some(Next::EndPayment(payment, seen, status)),
                Believed::StillPending if ask == Ask::Void => None,
                Believed::StillPending => {
                    let ms = |ticks: Ticks| i64::from(ticks) * TICK_MS;
                    match decide::patience(ms(self.now), ms(self.payment(payment).deadline)) {
                        Patience::Wait(_) => None,
                        Patience::GiveUp => Some(Next::Asking(payment, seen, Ask::Void)),
                    }
                }
                Believed::Park(_) => Some(Next::Mark(payment, seen, Change::Park)),
            },
            Ask::Capture => match decide::captured(asked, &found) {
                Captured::Confirm => Some(Next::Mark(payment, seen, Change::Confirm)),
                Captured::Fail(_) => Some(Next::Mark(payment, seen, Change::Fail)),
                Captured::NotYet => None,
                Captured::Park(_) => Some(Next::Mark(payment, seen, Change::Park)),
            },
            Ask::Refund => Some(Next::FinishRefund(payment)),
        }
    }

    /// What follows once it is shown; none where another delivery was faster.
    fn commit_change(&mut self, payment: Index, seen: PaymentStatus, change: Change) -> Option<Then> {
        let status = self.payment(payment).status;
        match change {
            Change::Commit(money) => {
                if !decide::may_commit_seats(status) {
                    return None;
                }
                if self.own_seats(self.payment(payment).reservation) {
                    self.payment_mut(payment).status = PaymentStatus::Capturing;
                    return Some(Then::Load(payment));
                }
                match decide::too_late(money) {
                    TooLate::End => Some(Then::EndFree(payment, seen)),
                    TooLate::GiveUp => Some(Then::GiveUp(payment, seen)),
                    TooLate::Refund => {
                        self.note_late_capture(payment);
                        Some(Then::Load(payment))
                    }
                }
            }
            Change::Confirm | Change::Fail if status != PaymentStatus::Capturing => None,
            Change::Confirm => {
                self.confirm(payment);
                Some(Then::Done(payment))
            }
            Change::Fail => {
                self.fail(payment);
                Some(Then::Done(payment))
            }
            Change::Park if status != seen => None,
            Change::Park => {
                self.park(payment, seen);
                Some(Then::Done(payment))
            }
        }
    }
}
