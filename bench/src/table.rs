//! How figures of lateness are kept and shown: percentiles in a table, or a line of JSON each.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::say;

/// Some lateness, to the microsecond.
pub struct Lateness {
    micros: Histogram<u64>,
    /// How many were told before they were due: there must be none.
    pub early: u64,
}

impl Lateness {
    /// None yet.
    pub fn new() -> Result<Self> {
        Ok(Self { micros: Histogram::new(3)?, early: 0 })
    }

    /// One that came so many microseconds after it was due.
    pub fn record(&mut self, micros: i64) -> Result<()> {
        match u64::try_from(micros) {
            Ok(micros) => self.micros.record(micros)?,
            Err(_early) => {
                self.early += 1;
                self.micros.record(0)?;
            }
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.micros.len()
    }

    /// Milliseconds at a quantile of all that were `expected`; none where that one never came.
    fn ms_at(&self, quantile: f64, expected: u64) -> Option<f64> {
        let share = self.count() as f64 / expected.max(1) as f64;
        (self.count() > 0 && quantile <= share + 1e-9)
            .then(|| self.micros.value_at_quantile((quantile / share).min(1.0)) as f64 / 1_000.0)
    }
}

/// A line of the table.
pub struct Row {
    /// What was measured.
    pub what: String,
    /// How many should have come.
    pub expected: u64,
    /// What came.
    pub lateness: Lateness,
    /// What else there is to say.
    pub note: String,
}

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];

/// Prints rows as a table, or each as a line of JSON.
pub fn print(title: &str, rows: &[Row], as_json: bool) {
    if !as_json {
        say(&format!(
            "\n{title}\n{:<46} {:>8} {:>8} {:>10} {:>10} {:>10} {:>10}  ",
            "ms after the deadline", "due", "came", "p50", "p90", "p99", "max"
        ));
    }
    for row in rows {
        let figures = QUANTILES.map(|(name, quantile)| (name, row.lateness.ms_at(quantile, row.expected)));
        if as_json {
            let mut line = Map::new();
            line.insert("run".to_owned(), title.into());
            line.insert("what".to_owned(), row.what.clone().into());
            line.insert("due".to_owned(), row.expected.into());
            line.insert("came".to_owned(), row.lateness.count().into());
            line.insert("early".to_owned(), row.lateness.early.into());
            for (name, ms) in figures {
                line.insert(format!("{name}_ms"), json!(ms));
            }
            line.insert("note".to_owned(), row.note.clone().into());
            say(&Value::Object(line).to_string());
        } else {
            let shown = figures.map(|(_, ms)| ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.1}")));
            let early = if row.lateness.early > 0 { format!("{} EARLY; ", row.lateness.early) } else { String::new() };
            let [p50, p90, p99, max] = shown;
            say(&format!(
                "{:<46} {:>8} {:>8} {p50:>10} {p90:>10} {p99:>10} {max:>10}  {early}{}",
                row.what,
                row.expected,
                row.lateness.count(),
                row.note
            ));
        }
    }
}

/// How busy the machine is besides: others may compile on it.
pub fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load {}", load.split(' ').next().unwrap_or("unknown"))
}
