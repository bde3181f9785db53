//! The invariants, at any moment and once everything has come to rest.

use domain::payment::PaymentStatus;
use domain::reservation::ReservationState;
use domain::seat::ClaimState;

use super::act::Act;
use super::provider::Answer;
use super::world::{Bucket, Index, Plan, Refund, Row, World, seats_of};

/// More rounds than anything takes to come to rest.
const ROUNDS_MAX: usize = 60;
/// More steps than any process has, the last of its retries included.
const STEPS_MAX: usize = 200;

/// What is broken right now.
#[must_use]
pub fn check(world: &World) -> Option<&'static str> {
    world.broken.or_else(|| check_owners(world)).or_else(|| check_money(world))
}

/// I1, read from the reservations' side, and I3.
fn check_owners(world: &World) -> Option<&'static str> {
    let mut owned = 0;
    for (id, reservation) in world.reservations.iter().enumerate() {
        let alive = match reservation.state(world.now) {
            Some(
                ReservationState::Pending | ReservationState::Committed { .. } | ReservationState::Confirmed { .. },
            ) => reservation.seats,
            Some(ReservationState::Cancelled { .. }) | None => 0,
        };
        if owned & alive != 0 {
            return Some("I1: a seat has two living owners");
        }
        owned |= alive;
        let wanted = match reservation.row {
            Row::Pending => Some(ClaimState::Held),
            Row::Committed => Some(ClaimState::Committed),
            Row::Confirmed => Some(ClaimState::Sold),
            Row::Absent | Row::Cancelled(_) => None,
        };
        for seat in seats_of(reservation.seats) {
            let own = world.claims[seat].filter(|claim| usize::from(claim.reservation) == id);
            if own.map(|claim| claim.state) != wanted {
                return Some("I1: a reservation's claims are not what its row says");
            }
            if own.is_some_and(|claim| claim.expires_at.is_some_and(|at| at != reservation.expires_at)) {
                return Some("I3: a claim and its reservation have different deadlines");
            }
        }
    }
    let mut claims = world.claims.iter().enumerate();
    let stray = claims
        .any(|(seat, claim)| claim.is_some_and(|claim| world.reservation(claim.reservation).seats & (1 << seat) == 0));
    stray.then_some("I4: a claim belongs to a reservation without that seat")
}

/// I2 and I5, as far as they are true at any moment.
fn check_money(world: &World) -> Option<&'static str> {
    for payment in &world.payments {
        if let Some(entry) = payment.entry {
            if entry.captures > 1 {
                return Some("I5: money was taken twice");
            }
            if entry.refunds > entry.captures {
                return Some("I5: more was given back than taken");
            }
        }
    }
    for (id, reservation) in world.reservations.iter().enumerate() {
        if reservation.row != Row::Confirmed {
            continue;
        }
        let of = world.payments.iter().filter(|payment| usize::from(payment.reservation) == id);
        let kept = |payment: &super::world::Payment| {
            payment.status == PaymentStatus::Captured
                && payment.entry.is_none_or(|entry| entry.captures == 1 && entry.refunds == 0 && entry.surplus == 0)
        };
        if of.filter(|payment| kept(payment)).count() != 1 {
            return Some("I2: CONFIRMED is said without the money, or money was kept twice");
        }
    }
    None
}

/// Lets everything come to rest, as the workers would: by queued jobs, the deadline index and the warm-up, never by
/// looking for rows. Then says what is broken.
pub fn settle(world: &mut World, plan: &Plan) -> Option<&'static str> {
    let begun = world.now;
    for _ in 0..ROUNDS_MAX {
        run_all(world, plan);
        if world.apply(plan, Act::WarmUp) {
            run_all(world, plan);
        }
        for payment in (0..world.payments.len()).filter_map(|at| Index::try_from(at).ok()) {
            world.apply(plan, Act::Deliver(payment));
            run_all(world, plan);
        }
        for id in (0..world.reservations.len()).filter_map(|at| Index::try_from(at).ok()) {
            world.apply(plan, Act::Sweep(id));
            run_all(world, plan);
        }
        if let Some(broken) = check(world) {
            return Some(broken);
        }
        let last = world.reservations.iter().map(|it| it.expires_at).max().unwrap_or(0);
        let idle = world.redis.index.iter().all(Option::is_none) && world.payments.iter().all(|it| !it.queued);
        if idle && world.now > last.max(begun) + plan.gate + plan.lease {
            break;
        }
        world.apply(plan, Act::Tick);
    }
    check_rest(world, plan)
}

fn run_all(world: &mut World, plan: &Plan) {
    for _ in 0..STEPS_MAX {
        if !world.apply(plan, Act::Step(0, Answer::Obey)) {
            return;
        }
    }
    world.break_with("a process never ends");
}

fn check_rest(world: &World, plan: &Plan) -> Option<&'static str> {
    for (id, reservation) in world.reservations.iter().enumerate() {
        let under_review = world
            .payments
            .iter()
            .any(|it| usize::from(it.reservation) == id && it.status == PaymentStatus::NeedsReview);
        match reservation.row {
            Row::Pending => return Some("I3: a reservation is PENDING long past its deadline"),
            Row::Committed if !under_review => return Some("I5: a reservation stays committed"),
            _ => {}
        }
    }
    for payment in &world.payments {
        if payment.outbox {
            return Some("I5: a job is open, and nothing will run it");
        }
        if payment.refund == Refund::Requested {
            return Some("I5: a refund was never made");
        }
        if payment.status == PaymentStatus::NeedsReview {
            continue;
        }
        let kept = payment.entry.map_or(0, |entry| entry.captures.saturating_sub(entry.refunds));
        let is_sold =
            payment.status == PaymentStatus::Captured && world.reservation(payment.reservation).row == Row::Confirmed;
        if plan.price > 0 && (kept == 1) != is_sold {
            return Some("I2: money is kept without seats, or seats are sold without money");
        }
    }
    let shown = |bucket: Bucket| match bucket {
        Bucket::Absent => Bucket::Available,
        Bucket::Gate(_, at) | Bucket::Held(_, Some(at)) if at <= world.now => Bucket::Available,
        bucket => bucket,
    };
    let drifts = |seat: usize| shown(world.redis.buckets[seat]) != world.wanted_bucket(seat);
    if (0..usize::from(plan.seats)).any(drifts) {
        return Some("I6: Redis shows something else than Postgres has");
    }
    world.redis.index.iter().any(Option::is_some).then_some("the deadline index never empties")
}
