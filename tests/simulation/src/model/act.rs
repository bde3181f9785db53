//! What may happen next, and a history of it.

use std::fmt;

use domain::reservation::CancelReason;

use super::process::{Next, Process};
use super::provider::{Answer, Ask};
use super::random::Random;
use super::world::{Index, Plan, Row, World};

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    /// A buyer asks for seats.
    Hold(Index, u8),
    /// A buyer cancels.
    Cancel(Index),
    /// A buyer extends.
    Extend(Index),
    /// A buyer pays.
    Pay(Index),
    /// A payment's job is delivered.
    Deliver(Index),
    /// The bridge or the sweep finds a reservation due.
    Sweep(Index),
    /// An expire job comes twice, or long after.
    Late(Index),
    /// A worker begins to warm up.
    WarmUp,
    /// A process takes its next step; the answer is the provider's, where it is asked.
    Step(usize, Answer),
    /// A process dies.
    Crash(usize),
    /// Time passes.
    Tick,
    /// Redis loses all it has.
    LoseRedis,
    /// A buyer does at the provider what was waited for: keeps the money ready, or pays.
    BuyerActs(Index, bool),
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hold(buyer, seats) => write!(f, "buyer {buyer} asks for seats {seats:#b}"),
            Self::Cancel(id) => write!(f, "reservation {id} is to be cancelled"),
            Self::Extend(id) => write!(f, "reservation {id} is to be extended"),
            Self::Pay(id) => write!(f, "reservation {id} is to be paid for"),
            Self::Deliver(payment) => write!(f, "the job of payment {payment} is delivered"),
            Self::Sweep(id) => write!(f, "reservation {id} is found due"),
            Self::Late(id) => write!(f, "an expire job of reservation {id} comes late"),
            Self::WarmUp => f.write_str("a warm-up begins"),
            Self::Step(process, answer) => write!(f, "process {process} goes on ({answer:?})"),
            Self::Crash(process) => write!(f, "process {process} dies"),
            Self::Tick => f.write_str("time passes"),
            Self::LoseRedis => f.write_str("Redis is lost"),
            Self::BuyerActs(payment, charged) => write!(f, "the buyer acts on payment {payment} (charged: {charged})"),
        }
    }
}

impl World {
    /// Lets something happen: whether it could.
    pub fn apply(&mut self, plan: &Plan, act: Act) -> bool {
        let has_row = |id: Index| self.reservations.get(usize::from(id)).is_some_and(|it| it.row != Row::Absent);
        match act {
            Act::Hold(buyer, seats) => {
                let wanted = seats != 0 && u32::from(seats) < 1 << plan.seats;
                if !wanted || self.reservations.len() >= plan.reservations_max || !self.has_room(plan) {
                    return false;
                }
                let Some(id) = self.ask_for(buyer, seats) else { return false };
                self.begin(plan, Next::HoldGate(id))
            }
            Act::Cancel(id) => {
                let over = |row| matches!(row, Row::Cancelled(CancelReason::User));
                has_row(id) && !over(self.reservation(id).row) && self.begin(plan, Next::CancelMark(id))
            }
            Act::Extend(id) => has_row(id) && self.begin(plan, Next::ExtendMark(id)),
            Act::Pay(id) => {
                has_row(id) && self.payments.len() < plan.payments_max && self.begin(plan, Next::PayMark(id))
            }
            Act::Deliver(payment) => {
                let is_queued = self.payments.get(usize::from(payment)).is_some_and(|payment| payment.queued);
                is_queued && self.begin(plan, Next::Load(payment))
            }
            Act::Sweep(id) => {
                let is_due =
                    self.redis.index.get(usize::from(id)).is_some_and(|at| at.is_some_and(|at| at <= self.now));
                if !is_due || !self.begin(plan, Next::Expire(id)) {
                    return false;
                }
                self.register(id, self.now + plan.lease);
                true
            }
            Act::Late(id) => has_row(id) && self.begin(plan, Next::Expire(id)),
            Act::WarmUp => {
                let may = !self.redis.warming && (!self.redis.epoch || self.needs_start);
                if !may || !self.begin(plan, Next::WarmRead) {
                    return false;
                }
                self.redis.warming = true;
                self.needs_start = false;
                true
            }
            Act::Step(process, answer) => {
                let may = process < self.processes.len();
                if may {
                    self.advance(plan, process, answer);
                }
                may
            }
            Act::Crash(process) => {
                let may = self.crashes < plan.crashes_max && process < self.processes.len();
                if may {
                    self.crash(process);
                }
                may
            }
            Act::Tick => {
                // Whoever announced a change commits it before its mark comes due, or not at all.
                let may = self.processes.iter().all(|process| process.mark.is_none_or(|due| due > self.now + 1));
                self.now += i16::from(may);
                may
            }
            Act::LoseRedis => {
                let may = self.losses < plan.losses_max;
                if may {
                    self.lose_redis();
                }
                may
            }
            Act::BuyerActs(payment, charged) => {
                usize::from(payment) < self.payments.len() && self.buyer_acts(payment, charged)
            }
        }
    }

    fn has_room(&self, plan: &Plan) -> bool {
        self.processes.len() < plan.processes_max
    }

    fn begin(&mut self, plan: &Plan, next: Next) -> bool {
        let has_room = self.has_room(plan);
        if has_room {
            self.processes.push(Process::new(next));
        }
        has_room
    }

    fn crash(&mut self, at: usize) {
        let process = self.processes.swap_remove(at);
        self.needs_start |= process.lost_mark;
        if process.is_warming() {
            // Its lease runs out.
            self.redis.warming = false;
        }
        self.crashes += 1;
    }

    /// Everything that may happen now.
    pub fn acts(&self, plan: &Plan, acts: &mut Vec<Act>) {
        acts.clear();
        let ids = |len: usize| (0..len).filter_map(|at| Index::try_from(at).ok());
        for (at, process) in self.processes.iter().enumerate() {
            acts.extend(answers(process.asks()).iter().map(|answer| Act::Step(at, *answer)));
            acts.push(Act::Crash(at));
        }
        for buyer in 0..plan.buyers {
            acts.extend((1..1 << plan.seats).map(|seats| Act::Hold(buyer, seats)));
        }
        for id in ids(self.reservations.len()) {
            acts.extend([Act::Cancel(id), Act::Pay(id), Act::Sweep(id), Act::Late(id)]);
            if plan.extensions_max > 0 {
                acts.push(Act::Extend(id));
            }
        }
        for payment in ids(self.payments.len()) {
            acts.extend([Act::Deliver(payment), Act::BuyerActs(payment, false), Act::BuyerActs(payment, true)]);
        }
        acts.extend([Act::Tick, Act::LoseRedis, Act::WarmUp]);
    }
}

/// The answers that make a difference.
#[must_use]
pub fn answers(ask: Option<Ask>) -> &'static [Answer] {
    match ask {
        None => &[Answer::Obey],
        Some(Ask::Authorize) => &Answer::ALL,
        Some(Ask::Capture) => &[Answer::Obey, Answer::Decline, Answer::Lose, Answer::Fail],
        Some(Ask::Fetch | Ask::Void | Ask::Refund) => &[Answer::Obey, Answer::Lose, Answer::Fail],
    }
}

/// Something that may happen, chosen at random: processes under way go on most often.
pub fn choose(world: &World, plan: &Plan, random: &mut Random) -> Act {
    let pick = |random: &mut Random, of: usize| random.below(of.max(1));
    let index = |at: usize| Index::try_from(at).unwrap_or(0);
    if !world.processes.is_empty() && random.below(100) < 70 {
        let process = pick(random, world.processes.len());
        let answers = answers(world.processes[process].asks());
        // Mostly it does as it is asked: otherwise few payments would come far.
        let answer = if random.below(3) > 0 { answers[0] } else { answers[pick(random, answers.len())] };
        return if random.below(40) == 0 { Act::Crash(process) } else { Act::Step(process, answer) };
    }
    let reservation = index(pick(random, world.reservations.len()));
    let payment = index(pick(random, world.payments.len()));
    match random.below(100) {
        0..28 => Act::Hold(index(pick(random, plan.buyers.into())), index(1 + pick(random, (1 << plan.seats) - 1))),
        28..34 => Act::Cancel(reservation),
        34..39 => Act::Extend(reservation),
        39..55 => Act::Pay(reservation),
        55..72 => Act::Deliver(payment),
        72..78 => Act::Sweep(reservation),
        78..80 => Act::Late(reservation),
        80..83 => Act::WarmUp,
        83..94 => Act::Tick,
        94 => Act::LoseRedis,
        _ => Act::BuyerActs(payment, random.below(2) == 0),
    }
}
