//! Does the engine do what the model says? The same history runs in both, one operation after the other: the engine's
//! flows on real stores, the model beside them. Every answer and everything that is stored afterwards must agree.
//!
//! Operations die half-way too, at the engine's fault points; jobs come twice and late; Redis is lost.

#![expect(clippy::expect_used, reason = "a harness: whatever fails here is the finding")]

mod provider;
mod real;
mod rows;

use std::fmt::Write as _;

use domain::flow::FaultPoint;

use domain::decide::reservation::{Cancelling, Paying};
use domain::payment::PaymentStatus;

use crate::model::act::{Act, answers, choose};
use crate::model::check::check;
use crate::model::process::Next;
use crate::model::provider::{Answer, Ask};
use crate::model::random::Random;
use crate::model::world::{Last, Plan, Told, World};
pub use real::Installation;
use real::{Event, Outcome};

/// What is run: as the random histories, one process at a time, which may die as often as it likes.
const PLAN: Plan = Plan {
    processes_max: 1,
    losses_max: 2,
    crashes_max: u8::MAX,
    reservations_max: 12,
    payments_max: 8,
    ..Plan::SMALL
};
/// Operations of one history.
const OPERATIONS: usize = 24;

/// Where a history begins: with nothing, or with what chance alone rarely comes to.
const OPENINGS: [&[(Act, &[Answer])]; 4] =
    [&[], COMMITTED_PAST_ITS_DEADLINE, CHARGED_TOO_LATE, CHARGED_TOO_LATE_IN_PART];
/// The seats are committed, the provider does not answer, the deadline passes.
const COMMITTED_PAST_ITS_DEADLINE: &[(Act, &[Answer])] = &[
    (Act::Hold(0, 0b01), &[]),
    (Act::Pay(0), &[]),
    (Act::Deliver(0), &[Answer::Obey, Answer::Fail]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Late(0), &[]),
];
/// The buyer pays when somebody else has the seat; the answer to the refund is lost.
const CHARGED_TOO_LATE: &[(Act, &[Answer])] = &[
    (Act::Hold(0, 0b01), &[]),
    (Act::Pay(0), &[]),
    (Act::Deliver(0), &[Answer::Pend]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Hold(1, 0b01), &[]),
    (Act::BuyerActs(0, true), &[]),
    (Act::Deliver(0), &[Answer::Obey, Answer::Lose]),
    (Act::Deliver(0), &[]),
];
/// The buyer pays when somebody else has one of two seats.
const CHARGED_TOO_LATE_IN_PART: &[(Act, &[Answer])] = &[
    (Act::Hold(0, 0b11), &[]),
    (Act::Pay(0), &[]),
    (Act::Deliver(0), &[Answer::Pend]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Tick, &[]),
    (Act::Hold(1, 0b10), &[]),
    (Act::BuyerActs(0, true), &[]),
    (Act::Deliver(0), &[]),
];

/// An operation as it ran in the model.
struct Ran {
    act: Act,
    /// What the provider was asked, and how it answered.
    asked: Vec<(Ask, Answer)>,
    /// Where it died.
    died_at: Option<FaultPoint>,
    outcome: Outcome,
}

/// Runs the histories `first..first + histories` of a seed. The first difference ends it.
///
/// # Errors
/// The difference, after the history that led to it.
pub async fn conform(installation: &Installation, seed: u64, first: u64, histories: u64) -> Result<u64, String> {
    let mut operations = 0;
    for history in first..first + histories {
        let mut log = String::new();
        let mut random = Random::of(seed, history);
        let run = one_history(installation, &mut random, &mut log);
        match tokio::time::timeout(std::time::Duration::from_secs(60), run).await {
            Ok(Ok(done)) => operations += done,
            Ok(Err(difference)) => return Err(format!("history {history} of seed {seed}:\n{log}{difference}")),
            Err(_) => return Err(format!("history {history} of seed {seed}:\n{log}it does not end")),
        }
    }
    Ok(operations)
}

async fn one_history(installation: &Installation, random: &mut Random, log: &mut String) -> Result<u64, String> {
    let mut world = World::new(&PLAN);
    let mut event = Event::open(installation, &PLAN).await;
    let mut operations = 0;
    let opening = OPENINGS[random.below(OPENINGS.len())];
    for at in 0..opening.len() + OPERATIONS {
        let opens = opening.get(at);
        let act = opens.map_or_else(|| choose(&world, &PLAN, random), |(act, _)| *act);
        if !is_modelled(&world, act) || !world.apply(&PLAN, act) {
            continue;
        }
        let ran = run_in_model(&mut world, act, (random, opens.map(|(_, answers)| *answers)));
        let _infallible =
            writeln!(log, "  {:2} {} {:?} {:?} -> {:?}", operations + 1, ran.act, ran.asked, ran.died_at, ran.outcome);
        operations += 1;
        let outcome = event.run(&ran).await?;
        if outcome != ran.outcome {
            return Err(format!("the engine answers {outcome:?}"));
        }
        if let Some(broken) = check(&world) {
            return Err(format!("the model itself: {broken}"));
        }
        event.compare(&world).await?;
    }
    event.end().await;
    Ok(operations)
}

/// In one tick the engine's clock moves by some ms, the model's stands: there an extension would gain nothing.
fn is_modelled(world: &World, act: Act) -> bool {
    match act {
        Act::Extend(id) => world
            .reservations
            .get(usize::from(id))
            .is_some_and(|it| it.expires_at != world.now + PLAN.hold_ttl && it.expires_at != it.extends_until),
        _ => true,
    }
}

/// Runs a whole operation, or what it does until it dies.
fn run_in_model(world: &mut World, act: Act, (random, forced): (&mut Random, Option<&[Answer]>)) -> Ran {
    let dies_at = (forced.is_none() && random.below(4) == 0).then(|| DEATHS[random.below(DEATHS.len())]);
    let mut ran = Ran { act, asked: Vec::new(), died_at: None, outcome: Outcome::Done };
    let mut before = None;
    world.told = Last(None);
    while let Some(process) = world.processes.first().copied() {
        if dies_at.is_some() && fault_point(world, before, process.next) == dies_at {
            ran.died_at = dies_at;
            ran.outcome = Outcome::Died;
            world.apply(&PLAN, Act::Crash(0));
            return ran;
        }
        before = Some(process.next);
        let ask = process.asks();
        let choices = answers(ask);
        let forced = forced.map(|answers| answers.get(ran.asked.len()).copied().unwrap_or(Answer::Obey));
        let by_chance = if random.below(3) > 0 { choices[0] } else { choices[random.below(choices.len())] };
        let answer = forced.unwrap_or(by_chance);
        ran.asked.extend(ask.map(|ask| (ask, answer)));
        world.apply(&PLAN, Act::Step(0, answer));
    }
    ran.outcome = outcome(world, act);
    ran
}

/// What the operation is answered.
fn outcome(world: &World, act: Act) -> Outcome {
    match (world.told.0, act) {
        (_, Act::Deliver(payment)) => {
            let row = world.payment(payment);
            if row.queued { Outcome::Unfinished } else { Outcome::Ended(row.status) }
        }
        (Some(Told::Conflict(seats)), _) => Outcome::Refused(seats),
        (Some(Told::Extended(true) | Told::Cancel(Cancelling::Cancel | Cancelling::Already)), _) => Outcome::Done,
        (Some(Told::Pay(Paying::New, Some(payment))), _) => Outcome::NewPayment(payment),
        (Some(Told::Pay(Paying::Standing, Some(payment))), _) => Outcome::StandingPayment(payment),
        (Some(Told::Extended(_) | Told::Cancel(_) | Told::Pay(..)), _) => Outcome::Refusal,
        (Some(Told::Expired(expired)), _) => Outcome::Expired(usize::from(expired)),
        (None, Act::Hold(..)) => Outcome::Held,
        (None, _) => Outcome::Done,
    }
}

/// Where operations die.
const DEATHS: [FaultPoint; 8] = [
    FaultPoint::HoldGateTaken,
    FaultPoint::HoldDeadlineRegistered,
    FaultPoint::HoldCommitted,
    FaultPoint::CancelCommitted,
    FaultPoint::PaymentAuthorized,
    FaultPoint::PaymentSeatsCommitted,
    FaultPoint::PaymentCaptured,
    FaultPoint::ExpiryCommitted,
];

/// The fault point that the engine passes between these two steps.
fn fault_point(world: &World, before: Option<Next>, next: Next) -> Option<FaultPoint> {
    match (before, next) {
        (_, Next::HoldRegister(_)) => Some(FaultPoint::HoldGateTaken),
        (_, Next::HoldCommit(_)) => Some(FaultPoint::HoldDeadlineRegistered),
        (_, Next::HoldShow(..)) => Some(FaultPoint::HoldCommitted),
        (Some(Next::CancelCommit(_)), Next::ShowRead(..)) => Some(FaultPoint::CancelCommitted),
        (Some(Next::Expire(_)), Next::ShowRead(..)) => Some(FaultPoint::ExpiryCommitted),
        (Some(Next::Asking(_, _, Ask::Authorize | Ask::Fetch)), Next::Mark(..)) => Some(FaultPoint::PaymentAuthorized),
        (Some(Next::ShowIndex(..)), Next::Load(payment)) => {
            let committed = world.payment(payment).status == PaymentStatus::Capturing;
            committed.then_some(FaultPoint::PaymentSeatsCommitted)
        }
        (Some(Next::Asking(_, _, Ask::Capture)), Next::Mark(..)) => Some(FaultPoint::PaymentCaptured),
        _ => None,
    }
}
