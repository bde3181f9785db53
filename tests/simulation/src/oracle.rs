//! Who may own what, and until when, from what callers were told: acknowledged, refused, or nothing. Shares no code with
//! flows and stores. Each answer is compared with this picture as it comes.
//!
//! Two things are believed of a seat at an instant. Somebody *certainly* owns it: a hold was acknowledged, its deadline
//! as told has not come, and nothing was done since that could have ended it. Somebody *possibly* owns it: any hold that
//! was tried may have been committed, any payment may have committed or claimed again its seats. What is certain must be
//! respected; what is not even possible must be available.

pub mod answers;
mod settled;

pub use settled::check_rows;

use std::collections::BTreeMap;

use domain::id::{PaymentId, ReservationId};

/// Clocks are read a moment before or after the stores read theirs, ms.
const SLACK_MS: i64 = 40;
/// A hold that was given up may still be on its way into Postgres for so long, ms.
const ON_ITS_WAY_MS: i64 = 2_000;

/// What must not be: an invariant, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `I1` to `I6`, or what else was promised.
    pub rule: String,
    /// What was seen.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(rule: &str, what: impl Into<String>) -> Self {
        Self { rule: rule.to_owned(), what: what.into() }
    }
}

/// What the history's event allows.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How long a hold lasts, ms.
    pub ttl_ms: i64,
    /// How long a gate stands, ms.
    pub gate_ms: i64,
    /// Seats of one buyer.
    pub per_buyer: Option<usize>,
    /// The price of a seat.
    pub price: i64,
    /// How far Redis's clock is ahead of Postgres's, ms.
    pub skew_ms: i64,
}

/// A reservation that a caller was told of.
#[derive(Debug, Clone)]
pub struct Known {
    /// Whose, by number.
    pub buyer: usize,
    /// Its seats, by number.
    pub seats: Vec<usize>,
    /// What it costs.
    pub amount: i64,
    /// When it was made.
    pub created_ms: i64,
    /// Alive for certain until then, unless something ended it.
    pub certain_until_ms: i64,
    /// Perhaps alive until then.
    pub possible_until_ms: i64,
    /// From then on it may have been ended.
    pub ended_from_ms: Option<i64>,
    /// It was said to be confirmed, at the latest then.
    pub confirmed_from_ms: Option<i64>,
    /// It is over for certain, and both stores know.
    pub is_over: bool,
    /// Somebody asked for its cancellation.
    pub is_cancel_asked: bool,
    /// Its payments.
    pub payments: Vec<PaymentId>,
    /// A payment may have been started without anybody being told.
    pub is_payment_possible: bool,
}

/// A hold that nobody was told the outcome of.
#[derive(Debug, Clone)]
struct Tried {
    buyer: usize,
    seats: Vec<usize>,
    /// Perhaps it owns them until then; none while it is under way.
    possible_until_ms: Option<i64>,
}

/// Whether an operator keeps a seat from sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocked {
    No,
    Since(i64),
    Perhaps,
}

/// What was known when an op began.
#[derive(Debug, Clone, Default)]
pub struct Before {
    /// Postgres's clock.
    pub at_ms: i64,
    /// Seats that somebody may have owned, by number.
    possible: Vec<bool>,
    /// The hold's own number among those tried.
    tried: Option<usize>,
}

/// The picture.
#[derive(Debug)]
pub struct Oracle {
    rules: Rules,
    known: BTreeMap<ReservationId, Known>,
    tried: Vec<Tried>,
    blocked: Vec<Blocked>,
    /// By Redis's clock: a gate may stand before the seat until then.
    gated_until_ms: Vec<i64>,
    /// The hold that each idempotency key was answered with.
    keys: BTreeMap<usize, ReservationId>,
    /// The provider may refuse to capture what it authorised: then its seats are freed, and perhaps nobody is told.
    pub is_capture_refusable: bool,
    /// Something broke: what Redis shows may be old, and what was freed may look held.
    pub is_troubled: bool,
    /// Holds that were acknowledged.
    pub holds: u64,
    /// Reservations that were said to be confirmed.
    pub sold: u64,
    /// Payments that were said to be refunded.
    pub refunded: u64,
}

impl Oracle {
    /// Of an event with so many seats, on sale, nobody's.
    #[must_use]
    pub fn new(rules: Rules, seats: usize) -> Self {
        Self {
            rules,
            known: BTreeMap::new(),
            tried: Vec::new(),
            blocked: vec![Blocked::No; seats],
            gated_until_ms: vec![i64::MIN; seats],
            keys: BTreeMap::new(),
            is_capture_refusable: false,
            is_troubled: false,
            holds: 0,
            sold: 0,
            refunded: 0,
        }
    }

    /// The reservations that callers were told of.
    #[must_use]
    pub fn known(&self) -> &BTreeMap<ReservationId, Known> {
        &self.known
    }

    /// An op begins.
    pub fn begin(&mut self, op: &crate::op::Op, (now_ms, redis_now_ms): (i64, i64)) -> Before {
        use crate::op::Op;
        let possible = (0..self.blocked.len())
            .map(|seat| self.is_possible(seat, (now_ms, redis_now_ms), None))
            .collect::<Vec<_>>();
        let mut before = Before { at_ms: now_ms, possible, tried: None };
        match op {
            Op::Hold { buyer, seats, .. } => {
                before.tried = Some(self.tried.len());
                let (buyer, seats) = (*buyer, seats.clone());
                self.tried.push(Tried { buyer, seats, possible_until_ms: None });
            }
            Op::Cancel(id, _) => {
                if let Some(known) = self.known.get_mut(id) {
                    known.is_cancel_asked = true;
                    known.ended_from_ms.get_or_insert(now_ms);
                }
            }
            Op::Extend(id, _) => {
                if let Some(known) = self.known.get_mut(id) {
                    let possible = now_ms + self.rules.ttl_ms + ON_ITS_WAY_MS;
                    known.possible_until_ms = known.possible_until_ms.max(possible);
                }
            }
            Op::Pay(id, _) => {
                if let Some(known) = self.known.get_mut(id) {
                    known.is_payment_possible = true;
                    known.possible_until_ms = i64::MAX;
                }
            }
            Op::Block(seats, _) => self.set_blocked(seats, Blocked::Perhaps),
            Op::Run { job, .. } if self.is_capture_refusable && job.kind == "finalize-payment" => {
                for known in self.known.values_mut().filter(|known| known.is_payment_possible) {
                    known.ended_from_ms.get_or_insert(now_ms);
                }
            }
            Op::Read(_)
            | Op::Picture(_)
            | Op::EndSale
            | Op::StartSale
            | Op::Run { .. }
            | Op::Sweep(_)
            | Op::RepairMissed
            | Op::StartWorker => {}
        }
        before
    }

    /// An op that began then is still under way: what became possible meanwhile was possible for it.
    pub fn still_under_way(&self, before: &mut Before, now: (i64, i64)) {
        for seat in 0..self.blocked.len() {
            before.possible[seat] |= self.is_possible(seat, now, before.tried);
        }
    }

    /// An op never answered, and never will.
    pub fn lost(&mut self, before: &Before, (now_ms, redis_now_ms): (i64, i64)) {
        let (ttl, gate) = (self.rules.ttl_ms, self.rules.gate_ms);
        if let Some(tried) = before.tried.and_then(|tried| self.tried.get_mut(tried)) {
            tried.possible_until_ms = Some(now_ms + ON_ITS_WAY_MS + ttl);
            for &seat in &tried.seats {
                let until = &mut self.gated_until_ms[seat];
                *until = (*until).max(redis_now_ms + gate + SLACK_MS);
            }
        }
    }

    /// Something breaks.
    pub fn trouble(&mut self) {
        self.is_troubled = true;
    }

    /// Redis may show again what was long over.
    pub fn redis_is_older(&mut self) {
        self.is_troubled = true;
        for known in self.known.values_mut() {
            if known.is_over && known.is_payment_possible {
                known.possible_until_ms = i64::MAX;
            }
            known.is_over = false;
        }
        for blocked in &mut self.blocked {
            *blocked = Blocked::Perhaps;
        }
    }

    fn set_blocked(&mut self, seats: &[usize], to: Blocked) {
        for &seat in seats {
            self.blocked[seat] = to;
        }
    }

    /// Whether anybody may own a seat, in either store's view.
    fn is_possible(&self, seat: usize, (now_ms, redis_now_ms): (i64, i64), except: Option<usize>) -> bool {
        // Where Redis's clock is behind, what is over in Postgres still stands in Redis for so long.
        let behind = self.rules.skew_ms.min(0).abs() + SLACK_MS;
        let tried = self.tried.iter().enumerate().any(|(number, tried)| {
            except != Some(number)
                && tried.seats.contains(&seat)
                && tried.possible_until_ms.is_none_or(|until| until.saturating_add(behind) > now_ms)
        });
        let known = self.known.values().any(|known| {
            known.seats.contains(&seat)
                && !known.is_over
                && (known.confirmed_from_ms.is_some() || known.possible_until_ms.saturating_add(behind) > now_ms)
        });
        tried || known || self.blocked[seat] != Blocked::No || self.gated_until_ms[seat] > redis_now_ms
    }

    /// Who certainly owns a seat during all of `from..=to`.
    fn certain_owner(&self, seat: usize, (from_ms, to_ms): (i64, i64)) -> Option<(ReservationId, &Known)> {
        let owns = |known: &Known| {
            known.spans().iter().any(|&(start, end)| start <= from_ms && to_ms.saturating_add(SLACK_MS) < end)
        };
        let mut owners = self.known.iter().filter(|(_, known)| known.seats.contains(&seat) && owns(known));
        owners.next().map(|(id, known)| (*id, known))
    }

    /// Seats that a buyer may own at most, and owns for certain.
    fn owned_by(&self, buyer: usize, (from_ms, to_ms): (i64, i64)) -> (usize, usize) {
        let behind = SLACK_MS;
        let known = self.known.values().filter(|known| known.buyer == buyer);
        let mut possible = 0;
        let mut certain = 0;
        for known in known {
            let is_possible = known.confirmed_from_ms.is_some()
                || known.is_payment_possible
                || known.possible_until_ms.saturating_add(behind) > from_ms;
            possible += if is_possible { known.seats.len() } else { 0 };
            let is_certain =
                known.spans().iter().any(|&(start, end)| start <= from_ms && to_ms.saturating_add(SLACK_MS) < end);
            certain += if is_certain { known.seats.len() } else { 0 };
        }
        for tried in self.tried.iter().filter(|tried| tried.buyer == buyer) {
            let is_possible = tried.possible_until_ms.is_none_or(|until| until.saturating_add(behind) > from_ms);
            possible += if is_possible { tried.seats.len() } else { 0 };
        }
        (possible, certain)
    }
}

impl Known {
    /// When it certainly owned its seats: from, and until before.
    fn spans(&self) -> [(i64, i64); 2] {
        let end = self.ended_from_ms.map_or(self.certain_until_ms, |ended| ended.min(self.certain_until_ms));
        [(self.created_ms, end), self.confirmed_from_ms.map_or((0, 0), |from| (from, i64::MAX))]
    }

    /// Whether two reservations certainly owned the same seat at the same instant.
    fn overlaps(&self, other: &Self) -> Option<usize> {
        let meets = |a: (i64, i64), b: (i64, i64)| a.0.max(b.0).saturating_add(SLACK_MS) < a.1.min(b.1);
        let at_once = self.spans().iter().any(|&a| other.spans().iter().any(|&b| meets(a, b)));
        self.seats.iter().copied().find(|seat| at_once && other.seats.contains(seat))
    }
}
