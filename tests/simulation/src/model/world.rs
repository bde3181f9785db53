//! What there is: Postgres's rows, Redis's keys, the provider's books, and the processes that are under way.

use std::hash::{Hash, Hasher};

use domain::decide::reservation::{Cancelling, Paying};
use domain::payment::PaymentStatus;
use domain::reservation::{CancelReason, ReservationState, state_at};
use domain::seat::ClaimState;
use domain::time::{Instant, from_ms};

use super::process::Process;

/// Seats that a model may have.
pub const SEATS_MAX: usize = 3;
/// One tick of the model's clock, in the engine's ms.
pub const TICK_MS: i64 = 1_000;

/// A seat, a buyer, a reservation, a payment: indices.
pub type Index = u8;
/// Ticks since the beginning.
pub type Ticks = i16;

/// What is modelled, and how it may go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Seats, at most [`SEATS_MAX`].
    pub seats: Index,
    /// Buyers.
    pub buyers: Index,
    /// How long a hold lives.
    pub hold_ttl: Ticks,
    /// The payment window.
    pub payment_window: Ticks,
    /// Extensions of a hold.
    pub extensions_max: i32,
    /// How long a gate stands, and a mark in the deadline index.
    pub gate: Ticks,
    /// How long a claimed deadline belongs to whoever claimed it.
    pub lease: Ticks,
    /// Minor units of one seat.
    pub price: i64,
    /// Reservations that are ever asked for.
    pub reservations_max: usize,
    /// Payments that are ever asked for.
    pub payments_max: usize,
    /// Processes under way at once.
    pub processes_max: usize,
    /// How often Redis is lost.
    pub losses_max: u8,
    /// How many processes crash.
    pub crashes_max: u8,
}

impl Plan {
    /// Two seats, three buyers: what the random histories run.
    pub const SMALL: Self = Self {
        seats: 2,
        buyers: 3,
        hold_ttl: 4,
        payment_window: 3,
        extensions_max: 1,
        gate: 2,
        lease: 2,
        price: 100,
        reservations_max: 6,
        payments_max: 5,
        processes_max: 4,
        losses_max: 1,
        crashes_max: 3,
    };
    /// One seat, two buyers: small enough for every interleaving.
    pub const TINY: Self = Self {
        seats: 1,
        buyers: 2,
        hold_ttl: 1,
        payment_window: 1,
        extensions_max: 0,
        gate: 1,
        lease: 1,
        reservations_max: 2,
        payments_max: 1,
        processes_max: 2,
        losses_max: 0,
        crashes_max: 1,
        ..Self::SMALL
    };
}

/// A row of `seat_claims`; the primary key is its place in [`World::claims`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Whose.
    pub reservation: Index,
    /// What.
    pub state: ClaimState,
    /// When it dies, if it is held.
    pub expires_at: Option<Ticks>,
}

/// Where a reservation's row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Row {
    /// There is none yet, and there may never be one.
    Absent,
    /// PENDING, not committed.
    Pending,
    /// PENDING, committed.
    Committed,
    /// CONFIRMED.
    Confirmed,
    /// CANCELLED.
    Cancelled(CancelReason),
}

/// A reservation that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reservation {
    /// Whose.
    pub buyer: Index,
    /// A bit for each seat.
    pub seats: u8,
    /// Its row.
    pub row: Row,
    /// Its deadline.
    pub expires_at: Ticks,
    /// No extension goes past this.
    pub extends_until: Ticks,
    /// How often it was extended.
    pub extensions: i32,
    /// Whether a payment has stretched its deadline.
    pub payment_stretched: bool,
}

impl Reservation {
    /// Where it stands at `now`, by the engine's own comparison; none where there is no row.
    #[must_use]
    pub fn state(&self, now: Ticks) -> Option<ReservationState> {
        let at = instant(0);
        let stored = match self.row {
            Row::Absent => return None,
            Row::Pending => ReservationState::Pending,
            Row::Committed => ReservationState::Committed { at },
            Row::Confirmed => ReservationState::Confirmed { at },
            Row::Cancelled(reason) => ReservationState::Cancelled { at, reason },
        };
        Some(state_at(stored, instant(self.expires_at), instant(now)))
    }
}

/// The instant of a tick.
#[must_use]
pub fn instant(ticks: Ticks) -> Instant {
    from_ms(i64::from(ticks) * TICK_MS)
}

/// A row of `refunds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refund {
    /// None.
    None,
    /// Made before the provider is asked.
    Requested,
    /// Given back.
    Done,
}

/// A row of `payments`, its outbox row and its refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Payment {
    /// For what.
    pub reservation: Index,
    /// Where it stands.
    pub status: PaymentStatus,
    /// When its window ends.
    pub deadline: Ticks,
    /// Whether its outbox row is open.
    pub outbox: bool,
    /// Money that came too late.
    pub refund: Refund,
    /// Whether its job is queued.
    pub queued: bool,
    /// What the provider has under its key.
    pub entry: Option<Entry>,
}

/// Where the provider has a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// It waits for the buyer.
    Pending,
    /// The money is kept ready.
    Authorized,
    /// It is taken.
    Captured,
    /// Refused.
    Declined,
    /// Given up.
    Voided,
}

/// What the provider has under one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Where it stands.
    pub state: EntryState,
    /// Minor units too many.
    pub surplus: i8,
    /// How often money was taken.
    pub captures: u8,
    /// How often it was given back.
    pub refunds: u8,
}

/// A seat bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// None.
    Absent,
    /// `available`.
    Available,
    /// `held` by a gate, before the commit.
    Gate(Index, Ticks),
    /// `held`, shown from Postgres; without a deadline where it is committed.
    Held(Index, Option<Ticks>),
    /// `sold`.
    Sold(Index),
}

/// Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Redis {
    /// Whether the epoch is set: otherwise this Redis has been lost.
    pub epoch: bool,
    /// Whether a warm-up has the lease.
    pub warming: bool,
    /// The seat buckets.
    pub buckets: [Bucket; SEATS_MAX],
    /// The deadline index: when each reservation comes due.
    pub index: Vec<Option<Ticks>>,
}

/// What a transaction answers its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// These seats are somebody else's.
    Conflict(u8),
    /// Whether it was extended.
    Extended(bool),
    /// How a request to cancel is answered.
    Cancel(Cancelling),
    /// How a request to pay is answered, and by which payment.
    Pay(Paying, Option<Index>),
    /// Whether it expired now.
    Expired(bool),
}

/// The last answer: two worlds that differ in it only are the same.
#[derive(Debug, Clone, Copy)]
pub struct Last(pub Option<Told>);

impl PartialEq for Last {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Last {}

impl Hash for Last {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The one clock: that Redis's and Postgres's differ is not modelled.
    pub now: Ticks,
    /// `seat_claims`.
    pub claims: [Option<Claim>; SEATS_MAX],
    /// `reservations`, and those that never came to a row.
    pub reservations: Vec<Reservation>,
    /// `payments`, `refunds`, `outbox`, the queue, and the provider's books.
    pub payments: Vec<Payment>,
    /// Redis.
    pub redis: Redis,
    /// What is under way.
    pub processes: Vec<Process>,
    /// How often Redis was lost.
    pub losses: u8,
    /// How many processes crashed.
    pub crashes: u8,
    /// A process lost its mark with Redis, and then crashed: only the warm-up of a starting worker finds what it did.
    pub needs_start: bool,
    /// What the last transaction answered.
    pub told: Last,
    /// The process that is taking a step; none between two steps.
    pub current: Option<usize>,
    /// What is broken, the first of it.
    pub broken: Option<&'static str>,
}

impl World {
    /// An event on sale, nothing held, nothing under way.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let mut buckets = [Bucket::Absent; SEATS_MAX];
        buckets[..usize::from(plan.seats)].fill(Bucket::Available);
        Self {
            now: 0,
            claims: [None; SEATS_MAX],
            reservations: Vec::with_capacity(plan.reservations_max),
            payments: Vec::with_capacity(plan.payments_max),
            redis: Redis { epoch: true, warming: false, buckets, index: Vec::with_capacity(plan.reservations_max) },
            processes: Vec::with_capacity(plan.processes_max),
            losses: 0,
            crashes: 0,
            needs_start: false,
            told: Last(None),
            current: None,
            broken: None,
        }
    }

    /// Notes that something is broken.
    pub fn break_with(&mut self, what: &'static str) {
        self.broken.get_or_insert(what);
    }

    /// A reservation.
    #[must_use]
    pub fn reservation(&self, id: Index) -> Reservation {
        self.reservations[usize::from(id)]
    }

    /// A payment.
    #[must_use]
    pub fn payment(&self, id: Index) -> Payment {
        self.payments[usize::from(id)]
    }

    /// A payment, to be changed.
    pub fn payment_mut(&mut self, id: Index) -> &mut Payment {
        &mut self.payments[usize::from(id)]
    }

    /// What a payment asks for, minor units.
    #[must_use]
    pub fn amount(&self, plan: &Plan, payment: Index) -> i64 {
        let reservation = self.reservation(self.payment(payment).reservation);
        plan.price * i64::from(reservation.seats.count_ones())
    }
}

/// The seats of a bit set.
pub fn seats_of(bits: u8) -> impl Iterator<Item = usize> {
    (0..SEATS_MAX).filter(move |seat| bits & (1 << seat) != 0)
}
