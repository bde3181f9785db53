//! A run in figures: what the page draws and what stands in the JSON beside it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use simulation::chaos::history::{Answer, History, Span};
use simulation::chaos::verdict::Check;

use super::machine::Machine;
use super::record::{Ending, Kind, Sample};
use super::strike::Struck;

/// Upper ends of the lag histogram's bars, in ms; the last bar has the rest.
pub const LAG_BARS_MS: [i64; 10] = [25, 50, 100, 150, 200, 300, 500, 1_000, 2_000, 5_000];

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// `clean` or `broken`.
    pub verdict: &'static str,
    /// The line that repeats it.
    pub command: String,
    /// The seed.
    pub seed: u64,
    /// How long the load ran, in ms.
    pub load_ms: i64,
    /// How long it took to come to rest afterwards, in ms; none where it did not.
    pub settled_ms: Option<i64>,
    /// When the load began, as RFC 3339.
    pub began: String,
    /// Where it ran.
    pub machine: Machine,
    /// What was compared, and what was found.
    pub checks: Vec<Check>,
    /// Totals.
    pub counts: Counts,
    /// The faults, by time.
    pub faults: Vec<Struck>,
    /// When nobody could tidy up, grace included, in ms after the load began.
    pub excused: Vec<Span>,
    /// Second by second.
    pub seconds: Vec<Second>,
    /// From a deadline to the first time that a reader or a buyer found the seat free.
    pub lag: Lag,
    /// Refusals by code.
    pub refusals: BTreeMap<String, usize>,
    /// Requests without an answer, or with one that says try again, by kind.
    pub failures: BTreeMap<String, usize>,
}

/// Totals.
#[derive(Debug, Default, Serialize)]
pub struct Counts {
    /// Requests sent.
    pub requests: usize,
    /// Holds that were acknowledged.
    pub holds_acknowledged: usize,
    /// Holds whose end their buyers never learned.
    pub holds_unknown: usize,
    /// Reservations that a buyer was told to be CONFIRMED.
    pub confirmed_told: usize,
    /// Payments acknowledged.
    pub payments_acknowledged: usize,
    /// Events opened.
    pub events_opened: usize,
    /// Processes of the engine that ended though nobody killed them.
    pub ended_by_themselves: Vec<String>,
}

/// One second of the load.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Second {
    /// Blocks read.
    pub reads: usize,
    /// Holds placed.
    pub holds: usize,
    /// Payments accepted.
    pub payments: usize,
    /// Requests refused.
    pub refused: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Latency of reads: p50 and p99, in ms.
    pub read_ms: Option<(f64, f64)>,
    /// Latency of holds, however they ended: p50 and p99, in ms.
    pub hold_ms: Option<(f64, f64)>,
}

/// The lags from deadline to free.
#[derive(Debug, Default, Serialize)]
pub struct Lag {
    /// How many.
    pub count: usize,
    /// Half of them are below, in ms.
    pub p50_ms: i64,
    /// 99 of 100 are below, in ms.
    pub p99_ms: i64,
    /// The longest, in ms.
    pub max_ms: i64,
    /// How many end at or below each of [`LAG_BARS_MS`], and beyond the last.
    pub bars: [usize; LAG_BARS_MS.len() + 1],
}

impl Lag {
    /// From single lags, in ms.
    #[must_use]
    pub fn of(mut lags_ms: Vec<i64>) -> Self {
        lags_ms.sort_unstable();
        let at = |percent: usize| lags_ms.get((lags_ms.len() * percent / 100).min(lags_ms.len().saturating_sub(1)));
        let mut bars = [0; LAG_BARS_MS.len() + 1];
        for lag_ms in &lags_ms {
            let bar = LAG_BARS_MS.iter().position(|end| lag_ms <= end).unwrap_or(LAG_BARS_MS.len());
            bars[bar] += 1;
        }
        let p50_ms = at(50).copied().unwrap_or(0);
        let p99_ms = at(99).copied().unwrap_or(0);
        Self { count: lags_ms.len(), p50_ms, p99_ms, max_ms: lags_ms.last().copied().unwrap_or(0), bars }
    }
}

/// Sums samples up second by second, and by how requests ended.
#[must_use]
pub fn by_second(samples: &[Sample], load_ms: i64) -> Vec<Second> {
    let length = usize::try_from(load_ms / 1_000 + 1).unwrap_or(1);
    let mut seconds = vec![Second::default(); length];
    let mut latencies: Vec<[Vec<u64>; 2]> = vec![Default::default(); length];
    for sample in samples {
        let index = usize::try_from(sample.at_ms / 1_000).unwrap_or(0);
        let (Some(second), Some(latency)) = (seconds.get_mut(index), latencies.get_mut(index)) else { continue };
        match (&sample.ending, sample.kind) {
            (Ending::Failed(_), _) => second.failed += 1,
            (Ending::Refused(_), _) => second.refused += 1,
            (Ending::Done, Kind::Read) => second.reads += 1,
            (Ending::Done, Kind::Hold) => second.holds += 1,
            (Ending::Done, Kind::Pay) => second.payments += 1,
            (Ending::Done, Kind::Other) => {}
        }
        match sample.kind {
            Kind::Read => latency[0].push(sample.took_us),
            Kind::Hold => latency[1].push(sample.took_us),
            Kind::Pay | Kind::Other => {}
        }
    }
    for (second, [reads, holds]) in seconds.iter_mut().zip(latencies) {
        (second.read_ms, second.hold_ms) = (percentiles(&reads), percentiles(&holds));
    }
    seconds
}

fn percentiles(latencies_us: &[u64]) -> Option<(f64, f64)> {
    let mut histogram = Histogram::<u64>::new(3).ok()?;
    for latency_us in latencies_us {
        // It grows with what it is given, and a minute fits into it.
        histogram.record((*latency_us).clamp(1, 60_000_000)).ok()?;
    }
    let ms =
        |quantile: f64| std::time::Duration::from_micros(histogram.value_at_quantile(quantile)).as_secs_f64() * 1e3;
    (!latencies_us.is_empty()).then(|| (ms(0.5), ms(0.99)))
}

/// How requests were refused, and how they failed.
#[must_use]
pub fn endings(samples: &[Sample]) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let (mut refusals, mut failures) = (BTreeMap::new(), BTreeMap::new());
    for sample in samples {
        match &sample.ending {
            Ending::Done => {}
            Ending::Refused(code) => *refusals.entry(code.clone()).or_default() += 1,
            Ending::Failed(how) => *failures.entry(how.clone()).or_default() += 1,
        }
    }
    (refusals, failures)
}

/// Totals of what clients were told.
#[must_use]
pub fn count(history: &History, requests: usize) -> Counts {
    let mut counts = Counts { requests, ..Counts::default() };
    for hold in &history.holds {
        match &hold.answer {
            Answer::Placed(placed) => {
                counts.holds_acknowledged += 1;
                counts.confirmed_told += usize::from(placed.confirmed_told);
                counts.payments_acknowledged += placed.payments.len();
            }
            Answer::Unknown => counts.holds_unknown += 1,
            Answer::Refused(_) => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lag_is_in_the_first_bar_that_is_long_enough() {
        let lag = Lag::of(vec![0, 25, 26, 5_000, 5_001]);
        assert_eq!((lag.bars[0], lag.bars[1], lag.bars[9], lag.bars[10]), (2, 1, 1, 1));
        assert_eq!((lag.count, lag.p50_ms, lag.p99_ms, lag.max_ms), (5, 26, 5_001, 5_001));
        assert_eq!(Lag::of(Vec::new()).count, 0);
    }

    #[test]
    fn a_sample_counts_in_the_second_in_which_it_was_sent() {
        let sample = |at_ms, ending| Sample { at_ms, kind: Kind::Hold, took_us: 2_000_000, ending };
        let samples =
            [sample(999, Ending::Done), sample(1_000, Ending::Refused("x".to_owned())), sample(9_000, Ending::Done)];
        let seconds = by_second(&samples, 2_000);
        assert_eq!(seconds.len(), 3, "what came after the load is left out");
        assert_eq!((seconds[0].holds, seconds[1].refused, seconds[2].holds), (1, 1, 0));
        let (p50, p99) = seconds[0].hold_ms.unwrap();
        assert!((1_990.0..2_010.0).contains(&p50) && (1_990.0..2_010.0).contains(&p99), "{p50} {p99}");
        assert_eq!(endings(&samples).0["x"], 1);
    }
}
