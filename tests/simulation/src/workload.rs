//! What is drawn: an event's shape and rules, the steps, what breaks and when.

use domain::gateway::ProviderState;
use domain::id::ReservationId;
use domain::reservation::CancelReason;
use domain::store::pg::claims::Blocking;

use crate::op::{Job, Op};
use crate::oracle::Oracle;
use crate::provider::{Answer, Ask};
use crate::rng::Rng;
use crate::stop::{Break, Incident};

/// The venues: blocks with their rows' labels and lengths. Few seats, so that many want the same.
pub const VENUES: [&[(&str, &str, usize)]; 4] = [
    &[("B1", "A", 3), ("B2", "A", 3)],
    &[("가 구역", "A:1", 2), ("101", "%", 2), ("C{1}", "나", 2)],
    &[("B1", "A", 4)],
    &[("B1", "A", 2), ("B1", "B", 2), ("B2", "A", 2), ("B3", "A", 1)],
];
/// Buyers who want seats.
const BUYERS: usize = 4;

/// What a history is like.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The venue, by number.
    pub venue: usize,
    /// How many steps.
    pub steps: u64,
    /// Whether anything breaks.
    pub is_troubled: bool,
    /// How far Redis's clock is ahead of Postgres's, ms.
    pub skew_ms: i64,
    /// A hold's length, ms.
    pub ttl_ms: i64,
    /// A payment window's, ms.
    pub window_ms: i64,
    /// How often a hold may be extended.
    pub extensions: i32,
    /// Seats of one buyer.
    pub per_buyer: Option<i32>,
    /// Minor units.
    pub price: i64,
}

impl Shape {
    /// The shape of a history.
    #[must_use]
    pub fn draw(seed: u64, history: u64) -> Self {
        let mut rng = Rng::of(seed, history, u64::MAX);
        let skews = [0, 0, 0, 0, 150_000, -150_000, 1_000, -1_000];
        Self {
            venue: rng.below(VENUES.len()),
            steps: 20 + rng.bits() % 61,
            is_troubled: rng.chance(75),
            skew_ms: rng.pick(&skews).unwrap_or(0),
            ttl_ms: rng.between(2_000, 60_000),
            window_ms: rng.between(2_000, 60_000),
            extensions: i32::try_from(rng.below(3)).unwrap_or(0),
            per_buyer: if rng.chance(30) { Some(2 + i32::try_from(rng.below(3)).unwrap_or(0)) } else { None },
            price: if rng.chance(10) { 0 } else { 50_000 },
        }
    }
}

/// One step.
#[derive(Debug, Clone)]
pub enum Step {
    /// A flow, and perhaps what happens to it.
    Flow(Op, Option<Incident>),
    /// Time passes.
    Wait(i64),
    /// Time passes until so long after the next deadline.
    WaitForDeadline(i64),
    /// A flow that was stopped goes on.
    GoOn(usize),
    /// Its process dies at last.
    Forget(usize),
    /// The buyer does what the provider waits for.
    BuyerActs(ProviderState),
    /// Redis is flushed.
    LoseRedis,
    /// A replica hears no more.
    CopyRedis,
    /// It takes over.
    FailOver,
    /// The process cannot reach Redis from now on, or can again.
    Unplug,
    /// Nothing: what was drawn needs something that is not there.
    Nothing,
}

/// What there is to draw from.
pub struct Scene<'a> {
    /// The history.
    pub shape: Shape,
    /// Seats of the event.
    pub seats: usize,
    /// Its blocks.
    pub blocks: usize,
    /// What callers know.
    pub oracle: &'a Oracle,
    /// Jobs that wait.
    pub jobs: &'a [Job],
    /// Jobs that ran: they may come again.
    pub ran: &'a [Job],
    /// Holds with a key, to be repeated.
    pub keyed: &'a [Op],
    /// Flows that are stopped.
    pub stopped: usize,
    /// Redis was replaced by another since the last sweep.
    pub replaced: Option<u32>,
}

/// Draws a step.
pub fn draw_step(rng: &mut Rng, scene: &Scene<'_>) -> Step {
    let is_troubled = scene.shape.is_troubled;
    let op = match rng.below(100) {
        0..24 => hold(rng, scene),
        24..28 => rng.pick(&(0..scene.keyed.len()).collect::<Vec<_>>()).and_then(|at| scene.keyed.get(at).cloned()),
        28..39 => reservation(rng, scene).map(|id| Op::Pay(id, key(rng))),
        39..57 => job(rng, scene),
        57..62 => Some(Op::Sweep(scene.replaced)),
        62..67 => reservation(rng, scene).map(Op::Read),
        67..71 => Some(Op::Picture(rng.below(scene.blocks))),
        71..75 => {
            let reason = if rng.chance(70) { CancelReason::User } else { CancelReason::Operator };
            reservation(rng, scene).map(|id| Op::Cancel(id, reason))
        }
        75..78 => reservation(rng, scene).map(|id| Op::Extend(id, key(rng))),
        78..81 => {
            let blocking = if rng.chance(50) { Blocking::Block } else { Blocking::Unblock };
            Some(Op::Block(some_seats(rng, scene, 2), blocking))
        }
        81 if rng.chance(40) => Some(Op::EndSale),
        81..84 => Some(Op::StartSale),
        84..86 => Some(Op::RepairMissed),
        86 if is_troubled => Some(Op::StartWorker),
        number => return other_step(rng, scene, number),
    };
    let Some(op) = op else { return Step::Nothing };
    let is_long = matches!(&op, Op::Run { job, .. } if job.kind != "expire-reservations");
    let incident = if is_troubled && rng.chance(35) { Some(draw_incident(rng, is_long)) } else { None };
    Step::Flow(op, incident)
}

fn other_step(rng: &mut Rng, scene: &Scene<'_>, number: usize) -> Step {
    let is_troubled = scene.shape.is_troubled;
    match number {
        86..89 => Step::Wait(rng.between(1, 3_000)),
        89..91 => Step::Wait(rng.between(3_000, 40_000)),
        91..94 => Step::WaitForDeadline(rng.pick(&[-150, 60, 60, 400]).unwrap_or(60)),
        94 => {
            let did = if rng.chance(60) { ProviderState::Authorized } else { ProviderState::Captured };
            Step::BuyerActs(did)
        }
        95 | 96 if scene.stopped > 0 => Step::GoOn(rng.below(scene.stopped)),
        97 if scene.stopped > 0 && rng.chance(30) => Step::Forget(rng.below(scene.stopped)),
        97 if is_troubled && rng.chance(30) => Step::LoseRedis,
        98 if is_troubled => {
            if rng.chance(50) {
                Step::CopyRedis
            } else {
                Step::FailOver
            }
        }
        99 if is_troubled => Step::Unplug,
        _ => Step::Wait(rng.between(1, 500)),
    }
}

fn key(rng: &mut Rng) -> Option<usize> {
    if rng.chance(40) { Some(usize::try_from(rng.bits() % 1_000_000).unwrap_or(0)) } else { None }
}

fn hold(rng: &mut Rng, scene: &Scene<'_>) -> Option<Op> {
    let most = 1 + rng.below(4);
    let mut seats = some_seats(rng, scene, most);
    // Rather what somebody else has paid for, perhaps too late.
    let known: Vec<_> = scene.oracle.known().values().filter(|known| known.is_payment_possible).collect();
    if rng.chance(30)
        && let Some(known) = known.get(rng.below(known.len()))
    {
        seats.clone_from(&known.seats);
    }
    Some(Op::Hold { buyer: rng.below(BUYERS), seats, key: key(rng) })
}

/// Each seat once, in any order.
fn some_seats(rng: &mut Rng, scene: &Scene<'_>, most: usize) -> Vec<usize> {
    let mut seats: Vec<usize> = Vec::new();
    for _ in 0..most {
        let seat = rng.below(scene.seats);
        if !seats.contains(&seat) {
            seats.push(seat);
        }
    }
    seats
}

/// A reservation that callers know, rather a young one.
fn reservation(rng: &mut Rng, scene: &Scene<'_>) -> Option<ReservationId> {
    let known: Vec<ReservationId> = scene.oracle.known().keys().copied().collect();
    let young = known.len().saturating_sub(4);
    let from = if rng.chance(80) { young } else { 0 };
    rng.pick(known.get(from..).unwrap_or_default())
}

/// A waiting job, out of order; or one that ran before, once more; or an expiry that nobody asked for.
fn job(rng: &mut Rng, scene: &Scene<'_>) -> Option<Op> {
    let (again, stray) = (rng.chance(15), rng.chance(8));
    if stray {
        let id = reservation(rng, scene)?;
        let payload = serde_json::json!({ "due": [(id, 0)] });
        let job = Job { queue: "expiries", id: "stray".to_owned(), kind: "expire-reservations".to_owned(), payload };
        return Some(Op::Run { job, is_acknowledged: false });
    }
    let jobs = if again { scene.ran } else { scene.jobs };
    let payments: Vec<&Job> = jobs.iter().filter(|job| job.kind == "finalize-payment").collect();
    let job = if rng.chance(50) && !payments.is_empty() {
        payments.get(rng.below(payments.len())).copied()?.clone()
    } else {
        jobs.get(rng.below(jobs.len()))?.clone()
    };
    Some(Op::Run { job, is_acknowledged: !again && rng.chance(85) })
}

fn draw_incident(rng: &mut Rng, is_long: bool) -> Incident {
    let at = rng.below(if is_long { 8 } else { 4 });
    let answers = |rng: &mut Rng, most: usize| u32::try_from(rng.below(most)).unwrap_or(0);
    let what = match rng.below(100) {
        0..20 => Break::Kill,
        20..35 => Break::GiveUp,
        35..65 => Break::Pause,
        65..71 => Break::LoseRedis,
        71..76 => Break::FailOver,
        76..84 => Break::CutRedis,
        84..90 => Break::BreakPg,
        90..96 => Break::DeafPg(answers(rng, 8)),
        _ => Break::DeafRedis(answers(rng, 4)),
    };
    Incident { at, what }
}

/// How the provider answers next, if it does not simply obey.
pub fn draw_answers(rng: &mut Rng) -> Option<(Ask, Answer)> {
    if rng.chance(45) {
        return None;
    }
    let ask = rng.pick(&[
        Ask::Authorize,
        Ask::Authorize,
        Ask::Authorize,
        Ask::Capture,
        Ask::Capture,
        Ask::Fetch,
        Ask::Void,
        Ask::Refund,
    ])?;
    let answer = match ask {
        Ask::Authorize => rng.pick(&[
            Answer::Decline,
            Answer::Lose,
            Answer::Fail,
            Answer::Pend,
            Answer::Pend,
            Answer::Charge,
            Answer::Charge,
            Answer::OtherAmount(7),
        ]),
        Ask::Capture => rng.pick(&[Answer::Decline, Answer::Lose, Answer::Fail]),
        Ask::Fetch | Ask::Void | Ask::Refund => rng.pick(&[Answer::Lose, Answer::Fail]),
    };
    answer.map(|answer| (ask, answer))
}
