//! What the model finds in a moment; the binary `model` and `holdfast sim --model` run millions.

use simulation::model::act::Act;
use simulation::model::provider::Answer;
use simulation::model::world::{EntryState, Plan, Row, World};
use simulation::model::{check, explore, replay, run};

#[test]
fn random_histories_break_no_invariant() {
    let report = run(11, 0, 2_000, |_| {});
    assert!(report.failure.is_none(), "{report}");
    assert!(report.steps > 40_000, "{report}");
}

#[test]
fn every_interleaving_of_two_buyers_and_one_seat_keeps_the_invariants_so_far() {
    let found = explore(&Plan::TINY, 13, 2, usize::MAX);
    assert!(found.failure.is_none(), "{found}");
    assert!(found.states > 5_000, "{found}");
}

#[test]
fn a_history_is_the_same_whenever_it_is_run() {
    let (once, again) = (run(5, 40, 200, |_| {}), run(5, 40, 200, |_| {}));
    assert_eq!((once.steps, once.failure.is_none()), (again.steps, again.failure.is_none()));
    assert_ne!(once.steps, run(6, 40, 200, |_| {}).steps, "another seed is another history");
}

/// A hold of seat 0, paid for and confirmed.
fn sold() -> World {
    let mut world = World::new(&Plan::SMALL);
    let mut go = |act| assert!(world.apply(&Plan::SMALL, act), "{act}");
    go(Act::Hold(0, 0b01));
    (0..5).for_each(|_| go(Act::Step(0, Answer::Obey)));
    go(Act::Pay(0));
    (0..6).for_each(|_| go(Act::Step(0, Answer::Obey)));
    go(Act::Deliver(0));
    while world.apply(&Plan::SMALL, Act::Step(0, Answer::Obey)) {}
    world
}

#[test]
fn a_paid_hold_is_sold_and_nothing_is_left_over() {
    let mut world = sold();
    assert_eq!(world.reservation(0).row, Row::Confirmed);
    assert_eq!(world.payment(0).entry.map(|entry| (entry.state, entry.captures)), Some((EntryState::Captured, 1)));
    assert_eq!(check::settle(&mut world, &Plan::SMALL), None);
}

#[test]
fn the_checks_notice_what_they_are_for() {
    let broken = |spoil: &dyn Fn(&mut World)| {
        let mut world = sold();
        spoil(&mut world);
        check::check(&world)
    };
    assert_eq!(broken(&|_| {}), None);
    let taken_twice = broken(&|world| world.payment_mut(0).entry.as_mut().unwrap().captures = 2);
    assert!(taken_twice.unwrap().starts_with("I5"));
    let unpaid = broken(&|world| world.payment_mut(0).entry.as_mut().unwrap().captures = 0);
    assert!(unpaid.unwrap().starts_with("I2"));
    let lost_claim = broken(&|world| world.claims[0] = None);
    assert!(lost_claim.unwrap().starts_with("I1"));
    let unfinished = {
        let mut world = sold();
        world.payment_mut(0).outbox = true;
        check::settle(&mut world, &Plan::SMALL)
    };
    assert!(unfinished.unwrap().starts_with("I5"));
}

#[test]
fn nothing_at_all_breaks_nothing() {
    assert_eq!(replay(&Plan::SMALL, &[]), None);
}
