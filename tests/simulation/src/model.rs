//! The engine as a pure model: no store, no clock, no task. Its steps are the engine's transactions, scripts and calls of
//! the provider; what it decides, it decides by the engine's own `domain::decide`. Everything that may happen between two
//! steps happens: by chance, millions of times ([`run`]), or every way there is ([`explore`]).

pub mod act;
pub mod check;
mod paying;
pub mod postgres;
pub mod process;
pub mod provider;
pub mod random;
pub mod redis;
pub mod world;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::Hasher as _;
use std::time::{Duration, Instant};

use act::{Act, choose};
use check::{check, settle};
use random::Random;
use world::{Plan, World};

/// Acts of one random history, at most.
const ACTS_MAX: usize = 90;
/// How often progress is told, in histories.
const PROGRESS_EVERY: u64 = 10_000;

/// A history that breaks an invariant.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What is broken.
    pub broken: &'static str,
    /// Its seed.
    pub seed: u64,
    /// Which history of the seed.
    pub history: u64,
    /// What happened, as little of it as still breaks it. Then everything came to rest.
    pub acts: Vec<Act>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.broken)?;
        write_history(f, &Plan::SMALL, &self.acts)?;
        write!(f, "again: holdfast sim --model --seed {} --history {}", self.seed, self.history)
    }
}

/// One line for each act, with the step that a process takes.
fn write_history(f: &mut fmt::Formatter<'_>, plan: &Plan, acts: &[Act]) -> fmt::Result {
    let mut world = World::new(plan);
    for (at, act) in acts.iter().enumerate() {
        write!(f, "  {:2} {act}", at + 1)?;
        if let Act::Step(process, _) | Act::Crash(process) = act
            && let Some(process) = world.processes.get(*process)
        {
            write!(f, ": {:?}", process.next)?;
        }
        world.apply(plan, *act);
        writeln!(f)?;
    }
    Ok(())
}

/// What random histories came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// Their seed.
    pub seed: u64,
    /// How many.
    pub histories: u64,
    /// Steps taken in all.
    pub steps: u64,
    /// How long it took.
    pub took: Duration,
    /// The first that broke an invariant: nothing runs after it.
    pub failure: Option<Failure>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let violations = u8::from(self.failure.is_some());
        write!(
            f,
            "{} histories, {} steps, {violations} violations, seed {}, {:.1} seconds",
            self.histories,
            self.steps,
            self.seed,
            self.took.as_secs_f64()
        )?;
        self.failure.iter().try_for_each(|failure| write!(f, "\n{failure}"))
    }
}

/// Runs the histories `first..first + histories` of a seed on [`Plan::SMALL`]; `progress` is told how many are done.
pub fn run(seed: u64, first: u64, histories: u64, mut progress: impl FnMut(u64)) -> Report {
    let begun = Instant::now();
    let mut report = Report { seed, histories: 0, steps: 0, took: Duration::ZERO, failure: None };
    let mut acts = Vec::with_capacity(ACTS_MAX);
    for history in first..first.saturating_add(histories) {
        let broken = random_history(&Plan::SMALL, &mut Random::of(seed, history), &mut acts);
        report.histories += 1;
        report.steps += u64::try_from(acts.len()).unwrap_or(0);
        if let Some(broken) = broken {
            let acts = shrink(&Plan::SMALL, broken, &acts);
            report.failure = Some(Failure { broken, seed, history, acts });
            break;
        }
        if report.histories.is_multiple_of(PROGRESS_EVERY) {
            progress(report.histories);
        }
    }
    report.took = begun.elapsed();
    report
}

fn random_history(plan: &Plan, random: &mut Random, acts: &mut Vec<Act>) -> Option<&'static str> {
    let mut world = World::new(plan);
    acts.clear();
    let length = ACTS_MAX / 3 + random.below(ACTS_MAX * 2 / 3);
    for _ in 0..length {
        let act = choose(&world, plan, random);
        if world.apply(plan, act) {
            acts.push(act);
            if let Some(broken) = check(&world) {
                return Some(broken);
            }
        }
    }
    settle(&mut world, plan)
}

/// What a history breaks.
#[must_use]
pub fn replay(plan: &Plan, acts: &[Act]) -> Option<&'static str> {
    let mut world = World::new(plan);
    for act in acts {
        if world.apply(plan, *act)
            && let Some(broken) = check(&world)
        {
            return Some(broken);
        }
    }
    settle(&mut world, plan)
}

/// Leaves out whatever is not needed to break it.
fn shrink(plan: &Plan, broken: &'static str, acts: &[Act]) -> Vec<Act> {
    let mut acts = acts.to_vec();
    let mut size = acts.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shrunk = false;
        while at < acts.len() {
            let mut fewer = acts.clone();
            fewer.drain(at..(at + size).min(acts.len()));
            if replay(plan, &fewer) == Some(broken) {
                acts = fewer;
                shrunk = true;
            } else {
                at += size;
            }
        }
        if size == 1 && !shrunk {
            return acts;
        }
        size = size.div_ceil(2).max(1);
    }
}

/// What every interleaving came to.
#[derive(Debug, Clone)]
pub struct Exploration {
    /// States that differ.
    pub states: u64,
    /// Ways from one to another.
    pub transitions: u64,
    /// States in which nothing was under way, each brought to rest and looked at.
    pub rests: u64,
    /// How many acts from the beginning.
    pub depth: usize,
    /// Whether there was nothing further than that.
    pub complete: bool,
    /// How long it took.
    pub took: Duration,
    /// What is broken, and the way there.
    pub failure: Option<(&'static str, Vec<Act>)>,
}

impl fmt::Display for Exploration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} transitions, {} brought to rest, to depth {} ({}), {} violations, {:.1} seconds",
            self.states,
            self.transitions,
            self.rests,
            self.depth,
            if self.complete { "every state there is" } else { "not every state" },
            u8::from(self.failure.is_some()),
            self.took.as_secs_f64()
        )?;
        let Some((broken, acts)) = &self.failure else { return Ok(()) };
        writeln!(f, "\n{broken}")?;
        write_history(f, &Plan::TINY, acts)
    }
}

/// Goes every way there is from the beginning, `depth` acts far and through `states_max` states. A state is known again
/// by a hash of 64 bits.
#[must_use]
pub fn explore(plan: &Plan, depth: usize, last_tick: i16, states_max: usize) -> Exploration {
    let begun = Instant::now();
    let mut found = Exploration {
        states: 1,
        transitions: 0,
        rests: 0,
        depth: 0,
        complete: true,
        took: Duration::ZERO,
        failure: None,
    };
    let mut seen = HashSet::new();
    let mut layer = vec![World::new(plan)];
    // By layer: the act that led to each state, and from which state of the layer before.
    let mut ways: Vec<Vec<(u32, Act)>> = Vec::new();
    let mut acts = Vec::new();
    seen.insert(fingerprint(&layer[0]));
    for _ in 0..depth {
        let mut next = Vec::new();
        let mut way = Vec::new();
        for (from, world) in layer.iter().enumerate() {
            world.acts(plan, &mut acts);
            for &act in &acts {
                if act == Act::Tick && world.now >= last_tick {
                    continue;
                }
                let mut after = world.clone();
                if !after.apply(plan, act) {
                    continue;
                }
                found.transitions += 1;
                let is_new = seen.insert(fingerprint(&after));
                if !is_new {
                    continue;
                }
                found.states += 1;
                way.push((u32::try_from(from).unwrap_or(u32::MAX), act));
                let broken = check(&after).or_else(|| at_rest(&after, plan, &mut found.rests));
                if let Some(broken) = broken {
                    ways.push(way);
                    found.failure = Some((broken, way_back(&ways)));
                    found.took = begun.elapsed();
                    return found;
                }
                next.push(after);
            }
        }
        ways.push(way);
        found.depth = ways.len();
        layer = next;
        if layer.is_empty() || seen.len() >= states_max {
            break;
        }
    }
    found.complete = layer.is_empty();
    found.took = begun.elapsed();
    found
}

fn at_rest(world: &World, plan: &Plan, rests: &mut u64) -> Option<&'static str> {
    if !world.processes.is_empty() {
        return None;
    }
    *rests += 1;
    settle(&mut world.clone(), plan)
}

fn fingerprint(world: &World) -> u64 {
    // Which of the processes is listed first makes no difference.
    let processes = world.processes.iter().fold(0_u64, |sum, process| sum.wrapping_add(hash_of(process)));
    let mut rest = world.clone();
    rest.processes.clear();
    hash_of(&(processes, rest))
}

fn hash_of(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The acts that led to the last state of the last layer.
fn way_back(ways: &[Vec<(u32, Act)>]) -> Vec<Act> {
    let mut acts = Vec::new();
    let mut at = ways.last().map_or(0, |way| way.len().saturating_sub(1));
    for way in ways.iter().rev() {
        let Some(&(from, act)) = way.get(at) else { break };
        acts.push(act);
        at = usize::try_from(from).unwrap_or(0);
    }
    acts.reverse();
    acts
}
