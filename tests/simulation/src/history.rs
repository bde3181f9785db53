//! One history: an event of its own, steps that are drawn, and at the end a look at everything once it has come to rest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use domain::event::EventRules;
use domain::flow::FaultPoint;
use domain::flow::import_venue::{ImportMode, VenueFile, import_venue};
use domain::flow::open_event::open_event;
use domain::flow::set_up_event::{EventPlan, create_event, start_sale};
use domain::flow::warm_up::warm_up;
use domain::gateway::ProviderState;
use domain::id::{EventId, VenueId};
use domain::import::MapFormat;
use domain::seat::SeatRef;

use crate::jobs::{acknowledge, waiting_jobs};
use crate::lane::{Lane, PROCESSES, SimulationError, fail_over};
use crate::op::{Caller, Job, Op, Told, perform};
use crate::oracle::answers::Answer;
use crate::oracle::{Before, Oracle, Rules, Violation};
use crate::provider::{self, Ask};
use crate::proxy::Link;
use crate::rng::Rng;
use crate::settle::settle;
use crate::stop::{Break, Driven, Flow};
use crate::workload::{Scene, Shape, Step, VENUES, draw_answers, draw_step};

/// Flows that may be stopped at once.
const STOPPED_MAX: usize = 3;
/// After so much time, ms, the marks and leases in Redis are over that live by its own clock.
const LEASES_END_MS: i64 = 10_000;

/// What came of a history.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Steps taken.
    pub steps: u64,
    /// What broke where, and how often.
    pub faults: BTreeMap<(FaultPoint, &'static str), u64>,
    /// Holds that were acknowledged.
    pub holds: u64,
    /// Reservations that were confirmed.
    pub sold: u64,
    /// Payments that were refunded.
    pub refunded: u64,
    /// What must not be; the history ends with it.
    pub violations: Vec<Violation>,
    /// Every step in words.
    pub log: Vec<String>,
}

/// A flow that is stopped.
pub(crate) struct Stopped {
    pub(crate) flow: Flow,
    pub(crate) op: Op,
    pub(crate) before: Before,
    pub(crate) process: usize,
}

/// A history under way.
pub(crate) struct World<'a> {
    pub(crate) lane: &'a mut Lane,
    pub(crate) shape: Shape,
    pub(crate) event: EventId,
    pub(crate) seats: Arc<Vec<SeatRef>>,
    pub(crate) blocks: Vec<Range<usize>>,
    pub(crate) oracle: Oracle,
    pub(crate) stopped: Vec<Stopped>,
    pub(crate) replaced: Option<u32>,
    pub(crate) outcome: Outcome,
    ran: Vec<Job>,
    keyed: Vec<Op>,
    runs: u32,
    waited_ms: i64,
    unplugged: [bool; PROCESSES],
    /// Processes that have taken the place of a dead one, and have not done yet what they do when they start.
    pub(crate) started: [bool; PROCESSES],
}

/// Runs one history.
///
/// # Errors
/// The simulation itself cannot go on; what the engine does wrong is in the outcome.
pub async fn run_history(lane: &mut Lane, seed: u64, history: u64) -> Result<Outcome, SimulationError> {
    let shape = Shape::draw(seed, history);
    lane.start_afresh(shape.skew_ms).await?;
    let mut world = World::open(lane, shape, history).await?;
    for step in 0..shape.steps {
        let mut rng = Rng::of(seed, history, step);
        if let Err(violation) = world.step(&mut rng).await? {
            world.outcome.violations.push(violation);
            return Ok(world.end());
        }
    }
    let mut rng = Rng::of(seed, history, shape.steps);
    let found = settle(&mut world, &mut rng).await?;
    world.outcome.violations.extend(found);
    Ok(world.end())
}

type Judged = Result<Result<(), Violation>, SimulationError>;

impl<'a> World<'a> {
    async fn open(lane: &'a mut Lane, shape: Shape, history: u64) -> Result<World<'a>, SimulationError> {
        let venue = venue(lane, shape.venue).await?;
        let stores = &lane.processes[0].stores;
        let failed = |error: &dyn std::error::Error| SimulationError::SetUp(format!("{error:?}"));
        let rules = EventRules {
            hold_ttl_ms: shape.ttl_ms,
            payment_window_ms: shape.window_ms,
            extensions_max: shape.extensions,
            seats_per_reservation_max: 8,
            seats_per_buyer_max: shape.per_buyer,
        };
        // Another day than the last history's: what it left running in the background finds nothing of this one.
        let starts_at = format!("2030-{:02}-{:02}T18:30", 1 + history / 28 % 12, 1 + history % 28);
        let plan = EventPlan {
            venue,
            title: "An evening".to_owned(),
            starts_at,
            sales_open_at: None,
            sales_close_at: None,
            currency: "KRW".parse().map_err(|_| SimulationError::SetUp("no such currency".to_owned()))?,
            prices: BTreeMap::from([("Seat".to_owned(), shape.price)]),
            rules,
        };
        let event = create_event(stores, plan).await.map_err(|error| failed(&error))?.id;
        start_sale(stores, event).await.map_err(|error| failed(&error))?;
        open_event(stores, event).await.map_err(|error| failed(&error))?;
        warm_up(stores).await.map_err(|error| failed(&error))?;
        let sheet = stores.book.fresh_sheet(event).await.map_err(|error| failed(&error))?;
        let sheet = sheet.ok_or_else(|| SimulationError::SetUp("the event is gone".to_owned()))?;
        let (mut seats, mut blocks) = (Vec::new(), Vec::new());
        for block in sheet.map.blocks() {
            let first = seats.len();
            seats.extend(sheet.map.seats_of(block).iter().map(|seat| SeatRef::Id(seat.id)));
            blocks.push(first..seats.len());
        }
        let rules = Rules {
            ttl_ms: shape.ttl_ms,
            gate_ms: stores.timing.gate_ms,
            per_buyer: shape.per_buyer.and_then(|max| usize::try_from(max).ok()),
            price: shape.price,
            skew_ms: shape.skew_ms,
        };
        Ok(Self {
            oracle: Oracle::new(rules, seats.len()),
            seats: Arc::new(seats),
            lane,
            shape,
            event,
            blocks,
            stopped: Vec::new(),
            replaced: None,
            outcome: Outcome::default(),
            ran: Vec::new(),
            keyed: Vec::new(),
            runs: 0,
            waited_ms: 0,
            unplugged: [false; PROCESSES],
            started: [false; PROCESSES],
        })
    }

    fn end(self) -> Outcome {
        let Oracle { holds, sold, refunded, .. } = self.oracle;
        Outcome { holds, sold, refunded, ..self.outcome }
    }

    pub(crate) fn now(&self) -> (i64, i64) {
        (self.lane.now_ms(), self.lane.redis_now_ms())
    }

    pub(crate) fn note(&mut self, what: impl Into<String>) {
        let at = self.outcome.steps;
        self.outcome.log.push(format!("{at:3} {}", what.into()));
    }

    async fn step(&mut self, rng: &mut Rng) -> Judged {
        self.outcome.steps += 1;
        let jobs = waiting_jobs(self.lane).await?;
        let scene = Scene {
            shape: self.shape,
            seats: self.seats.len(),
            blocks: self.blocks.len(),
            oracle: &self.oracle,
            jobs: &jobs,
            ran: &self.ran,
            keyed: &self.keyed,
            stopped: self.stopped.len(),
            replaced: self.replaced,
        };
        let process = rng.below(PROCESSES);
        let step = draw_step(rng, &scene);
        let judged = match step {
            Step::Flow(op, incident) => {
                if matches!(&op, Op::Run { job, .. } if job.kind == "finalize-payment") {
                    self.script(rng);
                }
                let incident = incident.filter(|i| i.what != Break::Pause || self.stopped.len() < STOPPED_MAX);
                self.flow(op, process, incident).await?
            }
            Step::GoOn(number) => self.go_on(number).await?,
            other => {
                self.happen(other, process).await?;
                Ok(())
            }
        };
        let now = self.now();
        for stopped in &mut self.stopped {
            self.oracle.still_under_way(&mut stopped.before, now);
        }
        Ok(judged)
    }

    fn script(&mut self, rng: &mut Rng) {
        if let Some((ask, answer)) = draw_answers(rng) {
            self.oracle.is_capture_refusable |= (ask, answer) == (Ask::Capture, provider::Answer::Decline);
            self.lane.provider.script(ask, [answer]);
            self.note(format!("the provider answers the next {ask:?} by {answer:?}"));
        }
    }

    /// What happens outside of any flow.
    async fn happen(&mut self, step: Step, process: usize) -> Result<(), SimulationError> {
        match step {
            Step::Wait(ms) => self.wait(ms).await?,
            Step::WaitForDeadline(after) => {
                let now = self.lane.now_ms();
                let deadlines = self.oracle.known().values().map(|known| known.certain_until_ms);
                let next = deadlines.filter(|at| *at + after > now).min();
                self.wait(next.map_or(1, |at| (at + after - now).max(1))).await?;
            }
            Step::Forget(number) if number < self.stopped.len() => {
                let stopped = self.stopped.remove(number);
                self.note(format!("never goes on: {}", stopped.op));
                let now = self.now();
                self.oracle.lost(&stopped.before, now);
            }
            Step::BuyerActs(did) => self.buyer_acts(&did),
            Step::LoseRedis => {
                self.note("Redis is flushed");
                self.lane.lose_redis().await?;
                self.oracle.redis_is_older();
            }
            Step::CopyRedis => {
                self.note("a replica of Redis hears no more");
                self.lane.copy_redis().await?;
            }
            Step::FailOver if !self.lane.copy().is_empty() => {
                self.note("the replica takes over");
                fail_over(&mut self.lane.redis.clone(), &self.lane.prefix, &self.lane.copy()).await?;
                self.redis_was_replaced();
            }
            Step::Unplug => {
                let is_down = &mut self.unplugged[process];
                *is_down = !*is_down;
                let link = if *is_down { Link::Cut } else { Link::Whole };
                self.lane.processes[process].redis.set(link);
                self.note(format!("process {process} reaches Redis by a link that is {link:?}"));
                self.oracle.trouble();
            }
            Step::Flow(..) | Step::GoOn(_) | Step::Forget(_) | Step::FailOver | Step::Nothing => {}
        }
        Ok(())
    }

    fn redis_was_replaced(&mut self) {
        self.runs += 1;
        self.replaced = Some(self.runs);
        self.oracle.redis_is_older();
    }

    fn buyer_acts(&mut self, did: &ProviderState) {
        let entries = self.lane.provider.entries();
        // By id, oldest first: the books are in no order.
        let waiting = entries.iter().filter(|(_, entry)| entry.state == ProviderState::Pending);
        if let Some(payment) = waiting.map(|(payment, _)| *payment).min_by_key(|payment| payment.0) {
            self.lane.provider.buyer_acts(payment, did.clone());
            self.note(format!("the buyer acts: {payment} is {did:?}"));
        }
    }

    /// Time passes, for both stores.
    pub(crate) async fn wait(&mut self, ms: i64) -> Result<(), SimulationError> {
        self.note(format!("{ms} ms pass"));
        self.lane.advance(ms);
        self.waited_ms += ms;
        if self.waited_ms >= LEASES_END_MS {
            self.waited_ms = 0;
            self.lane.end_leases().await?;
        }
        if ms >= 1_000 {
            // What a process knows of an event is trusted for a second.
            for process in &self.lane.processes {
                let _stands_in = process.stores.book.fresh_sheet(self.event).await;
            }
        }
        Ok(())
    }

    /// Does an op, to its end or to where it stops.
    pub(crate) async fn flow(&mut self, op: Op, process: usize, incident: Option<crate::stop::Incident>) -> Judged {
        self.note(format!("process {process}: {op}"));
        let before = self.oracle.begin(&op, (self.lane.now_ms(), self.lane.redis_now_ms()));
        let is_kept =
            matches!(&op, Op::Hold { key: Some(_), .. }) && !self.keyed.iter().any(|known| same_key(known, &op));
        if is_kept {
            self.keyed.push(op.clone());
        }
        let caller = |faults| {
            let process = &self.lane.processes[process];
            let mut stores = process.stores.clone();
            stores.faults = faults;
            Caller {
                stores,
                gateways: self.lane.provider.gateways(),
                event: self.event,
                seats: Arc::clone(&self.seats),
            }
        };
        let doing = op.clone();
        let mut flow = Flow::new(self.lane, process, incident, |faults| perform(caller(faults), doing));
        let driven = flow.run().await;
        let broke = flow.hit().zip(incident.map(|incident| incident.what));
        if let Some((point, what)) = broke {
            self.broke(point, what, process);
        }
        self.driven(driven, Stopped { flow, op, before, process }, broke.map(|(_, what)| what)).await
    }

    /// A flow that was stopped goes on.
    pub(crate) async fn go_on(&mut self, number: usize) -> Judged {
        if number >= self.stopped.len() {
            return Ok(Ok(()));
        }
        let mut stopped = self.stopped.remove(number);
        self.note(format!("goes on: {}", stopped.op));
        let now = self.now();
        self.oracle.still_under_way(&mut stopped.before, now);
        let driven = stopped.flow.go_on().await;
        self.driven(driven, stopped, None).await
    }

    fn broke(&mut self, point: FaultPoint, what: Break, process: usize) {
        self.note(format!("    at {point:?}: {what}"));
        *self.outcome.faults.entry((point, what.name())).or_default() += 1;
        match what {
            Break::LoseRedis => self.oracle.redis_is_older(),
            Break::FailOver => self.redis_was_replaced(),
            Break::Kill
            | Break::GiveUp
            | Break::Pause
            | Break::CutRedis
            | Break::BreakPg
            | Break::DeafPg(_)
            | Break::DeafRedis(_) => self.oracle.trouble(),
        }
        // What was broken for this flow is whole for the next.
        self.lane.processes[process].pg.hear_again();
        self.lane.processes[process].redis.hear_again();
        if !self.unplugged[process] {
            self.lane.processes[process].redis.set(Link::Whole);
        }
    }

    async fn driven(&mut self, driven: Driven, stopped: Stopped, what: Option<Break>) -> Judged {
        let now = self.now();
        match driven {
            Driven::Hangs => {
                self.oracle.lost(&stopped.before, now);
                Ok(Err(Violation::new("hangs", format!("{} does not end", stopped.op))))
            }
            Driven::Stopped(_) if what == Some(Break::Pause) => {
                self.stopped.push(stopped);
                Ok(Ok(()))
            }
            Driven::Stopped(_) => {
                self.oracle.lost(&stopped.before, now);
                if what == Some(Break::Kill) {
                    self.kill(stopped.process);
                }
                Ok(Ok(()))
            }
            Driven::Told(told) => self.told(&stopped, told).await,
        }
    }

    /// With a process die all its flows; another process takes its place.
    fn kill(&mut self, process: usize) {
        let now = self.now();
        let (dead, alive) = self.stopped.drain(..).partition(|stopped| stopped.process == process);
        self.stopped = alive;
        for stopped in dead {
            let Stopped { op, before, .. } = stopped;
            self.note(format!("    dies with it: {op}"));
            self.oracle.lost(&before, now);
        }
        self.lane.processes[process].forget();
        self.started[process] = true;
    }

    async fn told(&mut self, done: &Stopped, told: Told) -> Judged {
        self.note(format!("    {}", in_words(&told)));
        if let Op::Run { job, is_acknowledged } = &done.op
            && matches!(told, Told::Ran(Ok(())) | Told::Finalized(_, Ok(_)))
        {
            if *is_acknowledged {
                acknowledge(self.lane, job).await?;
            }
            if job.id != "stray" {
                self.ran.push(job.clone());
            }
        }
        if matches!((&done.op, &told), (Op::Sweep(Some(_)), Told::Worked(Ok(_)))) {
            self.replaced = None;
        }
        let provider = self.lane.provider.clone();
        let answer = Answer { op: &done.op, before: &done.before, now: self.now(), provider: &provider };
        if let (Op::Picture(block), Told::Picture(Ok(Some(picture)))) = (&done.op, &told) {
            let seats = self.blocks.get(*block).cloned().unwrap_or_default();
            return Ok(self.oracle.judge_picture(&answer, seats, picture));
        }
        Ok(self.oracle.judge(&answer, told))
    }
}

fn same_key(a: &Op, b: &Op) -> bool {
    matches!((a, b), (Op::Hold { key: a, .. }, Op::Hold { key: b, .. }) if a == b)
}

fn in_words(told: &Told) -> String {
    let text = match told {
        Told::Changed(Ok(Some(reservation))) | Told::Read(Ok(Some(reservation))) => {
            format!("{} is {:?} until {}", reservation.id, reservation.state, reservation.expires_at)
        }
        Told::Paying(Ok(Some(payment))) => {
            format!("payment {} is {:?} until {}", payment.id, payment.status, payment.deadline)
        }
        other => format!("{other:?}"),
    };
    text.chars().take(400).collect()
}

/// A venue, imported once in each lane.
async fn venue(lane: &mut Lane, number: usize) -> Result<VenueId, SimulationError> {
    if let Some(venue) = lane.venues.get(&number) {
        return Ok(*venue);
    }
    let mut csv = "block,row,column,category\n".to_owned();
    for (block, row, seats) in VENUES[number] {
        for seat in 1..=*seats {
            csv.push_str(&format!("\"{block}\",\"{row}\",{seat},Seat\n"));
        }
    }
    let file = VenueFile {
        format: MapFormat::Csv,
        name: format!("House {number}"),
        time_zone: "Asia/Seoul".to_owned(),
        bytes: csv.into_bytes(),
        mode: ImportMode::Store,
    };
    let import = import_venue(&lane.processes[0].stores, file).await;
    let import = import.map_err(|error| SimulationError::SetUp(format!("{error:?}")))?;
    let venue = import.venue.ok_or_else(|| SimulationError::SetUp("the venue is not stored".to_owned()))?.id;
    lane.venues.insert(number, venue);
    Ok(venue)
}
