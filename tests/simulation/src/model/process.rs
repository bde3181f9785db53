//! What is under way: each flow of the engine as a state machine, whose steps are its transactions, its scripts and its
//! calls of the provider. Between two steps anything else may happen, and the process may die.

use domain::decide::payment::MoneyAt;
use domain::decide::reservation::Cancelling;
use domain::payment::PaymentStatus;
use domain::reservation::ReservationState;

use super::postgres::HoldOutcome;
use super::provider::{Answer, Ask};
use super::redis::Showing;
use super::world::{Bucket, Index, Last, Plan, Row, SEATS_MAX, Ticks, Told, World};

/// A process, and whether Redis still knows that it is about to commit something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its next step.
    pub next: Next,
    /// When its mark in the deadline index comes due: it commits before, or never (the engine's statement timeout).
    pub mark: Option<Ticks>,
    /// Redis was lost while it ran.
    pub lost_mark: bool,
}

/// A change of a payment's reservation, announced to Redis before it commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Commit the seats, or see the money go back.
    Commit(MoneyAt),
    /// Sell the seats and confirm.
    Confirm,
    /// Free the seats.
    Fail,
    /// Leave it to an operator.
    Park,
}

/// What follows once a reservation is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// Nothing.
    End,
    /// The job of this payment is done.
    Done(Index),
    /// This payment is looked at again.
    Load(Index),
    /// The provider is told to give up money that came too late.
    GiveUp(Index, PaymentStatus),
    /// A payment of nothing ends.
    EndFree(Index, PaymentStatus),
}

/// What was read of a reservation, to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seen {
    showing: Option<Showing>,
    /// Its deadline, where it can still expire.
    alive_until: Option<Ticks>,
    /// Payments whose job is to be queued.
    jobs: u8,
}

/// The next step of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// `place_hold`: take the gate.
    HoldGate(Index),
    /// … register the deadline.
    HoldRegister(Index),
    /// … the transaction.
    HoldCommit(Index),
    /// … give the gate back.
    HoldUndo(Index),
    /// … stretch the gate.
    HoldShow(Index, Ticks),
    /// … register the deadline itself.
    HoldIndex(Index, Ticks, bool),
    /// `cancel_reservation`: the mark, then the transaction.
    CancelMark(Index),
    /// … the transaction.
    CancelCommit(Index),
    /// `extend_reservation`: the mark.
    ExtendMark(Index),
    /// … the transaction.
    Extend(Index),
    /// `start_payment`: the mark.
    PayMark(Index),
    /// … the transaction.
    PayCommit(Index),
    /// `expire_reservations`.
    Expire(Index),
    /// `finalize_payment`: read the row.
    Load(Index),
    /// … ask the provider. The status is the row's when it was read.
    Asking(Index, PaymentStatus, Ask),
    /// … the provider answered that the seats' money came too late.
    AskingLate(Index, PaymentStatus),
    /// … mark the reservation.
    Mark(Index, PaymentStatus, Change),
    /// … the transaction.
    Commit(Index, PaymentStatus, Change),
    /// … end a payment that took no money.
    EndPayment(Index, PaymentStatus, PaymentStatus),
    /// … note that money was taken too late.
    NoteLate(Index, PaymentStatus),
    /// … note that it is given back.
    FinishRefund(Index),
    /// … close the outbox row of one that has ended.
    Close(Index),
    /// `show_reservations`: read Postgres.
    ShowRead(Index, Then),
    /// … write the buckets.
    ShowWrite(Index, Then, Seen),
    /// … heal seats that show something else: Redis is read.
    HealRead(Index, Then, Seen, u8),
    /// … Postgres is read; the last is what changed in Redis since.
    HealPostgres(Index, Then, Seen, u8, u8),
    /// … write what is unchanged.
    HealWrite(Index, Then, Seen, u8, u8, [Bucket; SEATS_MAX]),
    /// … queue jobs.
    ShowJobs(Index, Then, Seen, bool),
    /// … write the deadline index.
    ShowIndex(Index, Then, Seen, bool),
    /// … read Postgres again for what is alive and not in the index.
    MissingRead(Index, Then),
    /// … and register it if it still is.
    MissingWrite(Index, Then, Option<Ticks>),
    /// `warm_up`: read deadlines and open rows.
    WarmRead,
    /// … register deadlines, by seat.
    WarmDeadlines([Option<(Index, Ticks)>; SEATS_MAX]),
    /// … queue the jobs of open rows.
    WarmJobs(u8),
    /// … heal a seat: Redis is read.
    WarmHeal(u8),
    /// … Postgres is read.
    WarmPostgres(u8, u8),
    /// … write if unchanged.
    WarmWrite(u8, u8, Bucket),
    /// … set the epoch.
    WarmEpoch,
}

impl Process {
    /// A process before its first step.
    #[must_use]
    pub fn new(next: Next) -> Self {
        Self { next, mark: None, lost_mark: false }
    }

    /// A bucket was written: whoever is healing it must not.
    pub fn seen_changed(&mut self, seat: usize) {
        match &mut self.next {
            Next::HealPostgres(.., changed) | Next::HealWrite(.., changed, _) => *changed |= 1 << seat,
            Next::WarmPostgres(_, changed) | Next::WarmWrite(_, changed, _) => *changed |= 1 << seat,
            _ => {}
        }
    }

    /// Redis is lost.
    pub fn lose_mark(&mut self) {
        self.mark = None;
        self.lost_mark = true;
    }

    /// Whether it warms up.
    #[must_use]
    pub fn is_warming(&self) -> bool {
        matches!(
            self.next,
            Next::WarmRead
                | Next::WarmDeadlines(_)
                | Next::WarmJobs(_)
                | Next::WarmHeal(_)
                | Next::WarmPostgres(..)
                | Next::WarmWrite(..)
                | Next::WarmEpoch
        )
    }

    /// Whether its next step asks the provider, whose answers differ.
    #[must_use]
    pub fn asks(&self) -> Option<Ask> {
        match self.next {
            Next::Asking(_, _, ask) => Some(ask),
            Next::AskingLate(..) => Some(Ask::Void),
            _ => None,
        }
    }
}

impl World {
    /// Takes the next step of a process; what is done is no more.
    pub fn advance(&mut self, plan: &Plan, at: usize, answer: Answer) {
        let process = self.processes[at];
        self.current = Some(at);
        let next = self.step(plan, process, answer);
        self.current = None;
        match next {
            Some(next) => self.processes[at].next = next,
            None => {
                self.processes.swap_remove(at);
            }
        }
    }

    fn step(&mut self, plan: &Plan, process: Process, answer: Answer) -> Option<Next> {
        match process.next {
            Next::HoldGate(_)
            | Next::HoldRegister(_)
            | Next::HoldCommit(_)
            | Next::HoldUndo(_)
            | Next::HoldShow(..)
            | Next::HoldIndex(..) => self.step_hold(plan, process.next),
            Next::CancelMark(id) => {
                self.mark_pending(plan, id);
                Some(Next::CancelCommit(id))
            }
            Next::ExtendMark(id) => {
                self.mark_pending(plan, id);
                Some(Next::Extend(id))
            }
            Next::CancelCommit(id) => {
                let answer = self.cancel(id);
                self.told = Last(answer.map(Told::Cancel));
                self.committed();
                let shows = matches!(answer, Some(Cancelling::Cancel | Cancelling::Already));
                shows.then_some(Next::ShowRead(id, Then::End))
            }
            Next::Extend(id) => {
                let extended = self.extend(plan, id);
                self.told = Last(Some(Told::Extended(extended)));
                self.committed();
                Some(Next::ShowRead(id, Then::End))
            }
            Next::PayMark(id) => {
                self.mark(plan, id);
                Some(Next::PayCommit(id))
            }
            Next::PayCommit(id) => {
                let answer = self.start_payment(plan, id)?;
                self.told = Last(Some(Told::Pay(answer, self.standing(id))));
                self.committed();
                Some(Next::ShowRead(id, Then::End))
            }
            Next::Expire(id) => {
                let expired = self.expire(id);
                self.told = Last(Some(Told::Expired(expired)));
                Some(Next::ShowRead(id, Then::End))
            }
            Next::ShowRead(..)
            | Next::ShowWrite(..)
            | Next::HealRead(..)
            | Next::HealPostgres(..)
            | Next::HealWrite(..)
            | Next::ShowJobs(..)
            | Next::ShowIndex(..)
            | Next::MissingRead(..)
            | Next::MissingWrite(..) => self.step_show(plan, process.next),
            Next::WarmRead
            | Next::WarmDeadlines(_)
            | Next::WarmJobs(_)
            | Next::WarmHeal(_)
            | Next::WarmPostgres(..)
            | Next::WarmWrite(..)
            | Next::WarmEpoch => self.step_warm_up(plan, process.next),
            next => self.step_payment(plan, next, answer),
        }
    }

    /// The process that is taking a step. Marks are made and ended by it alone.
    fn stepping(&mut self) -> Option<&mut Process> {
        self.current.and_then(|at| self.processes.get_mut(at))
    }

    fn mark_pending(&mut self, plan: &Plan, id: Index) {
        if self.reservation(id).state(self.now) == Some(ReservationState::Pending) {
            self.mark(plan, id);
        }
    }

    pub(super) fn mark(&mut self, plan: &Plan, id: Index) {
        let due = self.now + plan.gate;
        self.register(id, due);
        if let Some(process) = self.stepping() {
            process.mark = Some(due);
        }
    }

    pub(super) fn committed(&mut self) {
        if let Some(process) = self.stepping() {
            process.mark = None;
        }
    }

    fn step_hold(&mut self, plan: &Plan, next: Next) -> Option<Next> {
        match next {
            Next::HoldGate(id) => match self.gate_conflicts(id) {
                0 => {
                    self.take_gate(id, plan.gate);
                    Some(Next::HoldRegister(id))
                }
                conflicts => {
                    self.told = Last(Some(Told::Conflict(conflicts)));
                    None
                }
            },
            Next::HoldRegister(id) => {
                self.mark(plan, id);
                Some(Next::HoldCommit(id))
            }
            Next::HoldCommit(id) => {
                let outcome = self.place_hold(plan, id);
                self.committed();
                match outcome {
                    HoldOutcome::Held => Some(Next::HoldShow(id, self.reservation(id).expires_at)),
                    HoldOutcome::Conflict(seats) => {
                        self.told = Last(Some(Told::Conflict(seats)));
                        Some(Next::HoldUndo(id))
                    }
                }
            }
            Next::HoldUndo(id) => {
                self.show_seats(id, Showing::Released);
                // Redis showed what Postgres had given to somebody else: the refusal heals it.
                Some(Next::HealRead(id, Then::End, Seen::NOTHING, (1 << plan.seats) - 1))
            }
            Next::HoldShow(id, expires_at) => {
                let foreign = self.show_seats(id, Showing::Held(expires_at));
                Some(Next::HoldIndex(id, expires_at, foreign != 0))
            }
            Next::HoldIndex(id, expires_at, foreign) => {
                // What is not in the index any more is over, or Redis has lost it.
                let is_registered = self.redis.index[usize::from(id)].is_some();
                if is_registered {
                    self.register(id, expires_at);
                }
                (foreign || !is_registered).then_some(Next::ShowRead(id, Then::End))
            }
            _ => None,
        }
    }

    fn step_show(&mut self, plan: &Plan, next: Next) -> Option<Next> {
        match next {
            Next::ShowRead(id, then) => {
                let seen = self.read_to_show(id);
                let showing = seen.showing.is_some();
                Some(if showing { Next::ShowWrite(id, then, seen) } else { Next::ShowIndex(id, then, seen, true) })
            }
            Next::ShowWrite(id, then, seen) => {
                let foreign = seen.showing.map_or(0, |showing| self.show_seats(id, showing));
                Some(match foreign {
                    0 => Next::ShowJobs(id, then, seen, true),
                    foreign => Next::HealRead(id, then, seen, foreign),
                })
            }
            Next::HealRead(id, then, seen, seats) => Some(Next::HealPostgres(id, then, seen, seats, 0)),
            Next::HealPostgres(id, then, seen, seats, changed) => {
                let wanted = std::array::from_fn(|seat| self.wanted_bucket(seat));
                Some(Next::HealWrite(id, then, seen, seats, changed, wanted))
            }
            Next::HealWrite(id, then, seen, seats, changed, wanted) => {
                let healed = self.heal_seats(seats, &wanted, changed, plan.gate);
                Some(if healed.is_right {
                    Next::ShowJobs(id, then, seen, !healed.waits)
                } else {
                    Next::HealRead(id, then, seen, seats)
                })
            }
            Next::ShowJobs(id, then, seen, settled) => {
                for payment in 0..self.payments.len() {
                    self.payments[payment].queued |= seen.jobs & (1 << payment) != 0;
                }
                Some(Next::ShowIndex(id, then, seen, settled))
            }
            Next::ShowIndex(id, then, seen, settled) => {
                let entry = self.redis.index[usize::from(id)];
                match (settled, seen.alive_until) {
                    (false, _) => self.register(id, self.now + plan.gate),
                    (true, None) => self.redis.index[usize::from(id)] = None,
                    (true, Some(until)) if entry.is_some() => self.register(id, until),
                    (true, Some(_)) => return Some(Next::MissingRead(id, then)),
                }
                self.after(then)
            }
            Next::MissingRead(id, then) => {
                let reservation = self.reservation(id);
                let alive = (reservation.row == Row::Pending).then_some(reservation.expires_at);
                Some(Next::MissingWrite(id, then, alive))
            }
            Next::MissingWrite(id, then, alive) => {
                self.redis.index[usize::from(id)] = alive;
                self.after(then)
            }
            _ => None,
        }
    }

    fn read_to_show(&self, id: Index) -> Seen {
        let reservation = self.reservation(id);
        let open = |payment: PaymentStatus| payment.is_open() && payment != PaymentStatus::NeedsReview;
        let jobs = self.payments.iter().enumerate().filter(|(_, it)| it.reservation == id && open(it.status));
        Seen {
            showing: self.showing(id),
            alive_until: (reservation.row == Row::Pending).then_some(reservation.expires_at),
            jobs: jobs.fold(0, |bits, (at, _)| bits | 1 << at),
        }
    }

    fn after(&mut self, then: Then) -> Option<Next> {
        match then {
            Then::End => None,
            Then::Done(payment) => self.done(payment),
            Then::Load(payment) => Some(Next::Load(payment)),
            Then::GiveUp(payment, seen) => Some(Next::AskingLate(payment, seen)),
            Then::EndFree(payment, seen) => Some(Next::EndPayment(payment, seen, PaymentStatus::Voided)),
        }
    }

    pub(super) fn done(&mut self, payment: Index) -> Option<Next> {
        self.payment_mut(payment).queued = false;
        None
    }

    /// Each step needs the lease, which a Redis that was lost again has lost too.
    fn step_warm_up(&mut self, plan: &Plan, next: Next) -> Option<Next> {
        if !self.redis.warming {
            return None;
        }
        match next {
            Next::WarmRead => Some(Next::WarmDeadlines(std::array::from_fn(|seat| {
                self.claims[seat].and_then(|claim| Some((claim.reservation, claim.expires_at?)))
            }))),
            Next::WarmDeadlines(pending) => {
                for (id, at) in pending.into_iter().flatten() {
                    self.register(id, at);
                }
                let open = self.payments.iter().enumerate().filter(|(_, it)| it.outbox);
                Some(Next::WarmJobs(open.fold(0, |bits, (at, _)| bits | 1 << at)))
            }
            Next::WarmJobs(open) => {
                for payment in 0..self.payments.len() {
                    self.payments[payment].queued |= open & (1 << payment) != 0;
                }
                Some(Next::WarmHeal(0))
            }
            Next::WarmHeal(seat) if seat >= plan.seats => Some(Next::WarmEpoch),
            Next::WarmHeal(seat) => Some(Next::WarmPostgres(seat, 0)),
            Next::WarmPostgres(seat, changed) => {
                Some(Next::WarmWrite(seat, changed, self.wanted_bucket(usize::from(seat))))
            }
            Next::WarmWrite(seat, changed, wanted) => {
                let healed = self.heal_seats(1 << seat, &[wanted; SEATS_MAX], changed, plan.gate);
                // Who has written, or was overtaken, looks again.
                Some(Next::WarmHeal(seat + u8::from(healed.is_right)))
            }
            Next::WarmEpoch => {
                (self.redis.epoch, self.redis.warming) = (true, false);
                None
            }
            _ => None,
        }
    }
}

impl Seen {
    const NOTHING: Self = Self { showing: None, alive_until: None, jobs: 0 };
}
