//! The charts of a run.

use std::collections::{BTreeMap, BTreeSet};

use super::svg::Svg;
use crate::chaos::faults::FaultKind;
use crate::chaos::figures::{Figures, Second};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 22.0;
const PANEL: f64 = 84.0;
const GAP: f64 = 18.0;

/// The share of time at a number of ms, as pixels from the left.
struct TimeAxis {
    load_ms: f64,
}

impl TimeAxis {
    fn of(figures: &Figures) -> Self {
        Self { load_ms: float(figures.load_ms).max(1.0) }
    }

    fn x(&self, ms: f64) -> f64 {
        LEFT + (ms / self.load_ms).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// A line every so many seconds, such that there are at most ten, with its time below.
    fn draw(&self, svg: &mut Svg, (top, bottom): (f64, f64)) {
        let steps = [5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0];
        let seconds = self.load_ms / 1e3;
        let step = steps.into_iter().find(|step| seconds / step <= 10.0).unwrap_or(7_200.0);
        let mut at = 0.0;
        while at <= seconds {
            let x = self.x(at * 1e3);
            svg.line("grid", (x, top), (x, bottom));
            let label = if step >= 60.0 { format!("{} min", at / 60.0) } else { format!("{at} s") };
            svg.text("label", "middle", (x, bottom + 16.0), &label);
            at += step;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
fn float(number: i64) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
fn size(number: usize) -> f64 {
    number as f64
}

fn bands(svg: &mut Svg, figures: &Figures, axis: &TimeAxis, (top, bottom): (f64, f64)) {
    for fault in &figures.faults {
        let (from, until) = (axis.x(float(fault.at_ms)), axis.x(float(fault.until_ms)));
        let class = format!("band {}", fault.kind.class());
        svg.rect(&class, (from, top), ((until - from).max(2.0), bottom - top), &fault.what);
    }
}

/// A round number at or above the highest.
fn ceiling(highest: f64) -> f64 {
    let mut unit = 1.0;
    while unit * 10.0 < highest {
        unit *= 10.0;
    }
    let steps = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * unit).find(|step| *step >= highest).unwrap_or(unit * 10.0)
}

/// Reads, holds, payments, refusals and failures per second, each in a panel of its own, over the faults' bands.
pub fn throughput(figures: &Figures) -> String {
    type Panel = (&'static str, &'static str, fn(&Second) -> usize);
    let panels: [Panel; 5] = [
        ("reads", "per second", |second| second.reads),
        ("holds", "per second", |second| second.holds),
        ("payments", "per second", |second| second.payments),
        ("refused", "per second", |second| second.refused),
        ("failed", "per second", |second| second.failed),
    ];
    let axis = TimeAxis::of(figures);
    let height = (PANEL + GAP) * size(panels.len());
    let mut svg = Svg::new(WIDTH, height + 14.0);
    axis.draw(&mut svg, (0.0, height - GAP + 4.0));
    for (index, (name, unit, value)) in panels.into_iter().enumerate() {
        let top = (PANEL + GAP) * size(index) + 4.0;
        let bottom = top + PANEL;
        bands(&mut svg, figures, &axis, (top, bottom));
        // The last second is not whole.
        let whole = &figures.seconds[..figures.seconds.len().saturating_sub(1)];
        let highest = whole.iter().map(value).max().unwrap_or(0);
        let most = ceiling(size(highest).max(1.0));
        let y = |count: usize| bottom - size(count) / most * PANEL;
        let points: Vec<(f64, f64)> =
            whole.iter().enumerate().map(|(at, second)| (axis.x(size(at) * 1e3 + 500.0), y(value(second)))).collect();
        let class = if name == "failed" { "failed" } else { "series" };
        svg.area(&format!("area {class}"), bottom, &points);
        svg.path(&format!("line {class}"), points.into_iter().map(Some));
        svg.line("base", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        svg.text("name", "start", (0.0, top + 14.0), name);
        svg.text("label", "start", (0.0, top + 30.0), unit);
        svg.text("label", "end", (LEFT - 8.0, top + 10.0), &format!("{most}"));
        svg.text("label", "end", (LEFT - 8.0, bottom), "0");
    }
    svg.finish("Reads, holds, payments, refusals and failures per second, with the faults as bands")
}

/// A lane for each kind of fault that occurred.
pub fn fault_lanes(figures: &Figures) -> String {
    const LANE: f64 = 19.0;
    let axis = TimeAxis::of(figures);
    let kinds: BTreeSet<FaultKind> = figures.faults.iter().map(|fault| fault.kind).collect();
    let height = LANE * size(kinds.len());
    let mut svg = Svg::new(WIDTH, height + 24.0);
    axis.draw(&mut svg, (0.0, height + 2.0));
    for (index, kind) in kinds.into_iter().enumerate() {
        let top = LANE * size(index);
        svg.text("lane", "end", (LEFT - 8.0, top + 13.0), kind.words());
        svg.line("grid", (LEFT, top + LANE), (WIDTH - RIGHT, top + LANE));
        for fault in figures.faults.iter().filter(|fault| fault.kind == kind) {
            let (from, until) = (axis.x(float(fault.at_ms)), axis.x(float(fault.until_ms)));
            svg.rect(
                &format!("blow {}", kind.class()),
                (from, top + 3.0),
                ((until - from).max(3.0), LANE - 6.0),
                &fault.what,
            );
        }
    }
    svg.finish("When which kind of fault struck")
}

/// p50 and p99 of reads and of holds, on a logarithmic scale from 0.1 ms to 10 s.
pub fn latency(figures: &Figures) -> String {
    const TALL: f64 = 150.0;
    type Panel = (&'static str, fn(&Second) -> Option<(f64, f64)>);
    let panels: [Panel; 2] = [("reads", |second| second.read_ms), ("holds", |second| second.hold_ms)];
    let axis = TimeAxis::of(figures);
    let height = (TALL + GAP) * size(panels.len());
    let mut svg = Svg::new(WIDTH, height + 14.0);
    axis.draw(&mut svg, (0.0, height - GAP + 4.0));
    for (index, (name, value)) in panels.into_iter().enumerate() {
        let top = (TALL + GAP) * size(index) + 4.0;
        let bottom = top + TALL;
        bands(&mut svg, figures, &axis, (top, bottom));
        let y = |ms: f64| bottom - (ms.max(0.1).log10() + 1.0) / 5.0 * TALL;
        for (ms, label) in
            [(0.1, "0.1 ms"), (1.0, "1 ms"), (10.0, "10 ms"), (100.0, "0.1 s"), (1_000.0, "1 s"), (10_000.0, "10 s")]
        {
            svg.line("grid", (LEFT, y(ms)), (WIDTH - RIGHT, y(ms)));
            svg.text("label", "end", (LEFT - 8.0, y(ms) + 4.0), label);
        }
        let at = |index: usize| axis.x(size(index) * 1e3 + 500.0);
        let values = || figures.seconds.iter().map(value).enumerate();
        svg.path("line p99", values().map(|(index, ms)| Some((at(index), y(ms?.1)))));
        svg.path("line p50", values().map(|(index, ms)| Some((at(index), y(ms?.0)))));
        svg.text("name", "start", (0.0, top + 14.0), name);
    }
    svg.finish("Latency of reads and holds over time, median and 99th percentile")
}

/// A bar for each span of lag.
pub fn histogram(bars: &[usize], ends_ms: &[i64]) -> String {
    const TALL: f64 = 170.0;
    let (left, top) = (40.0, 22.0);
    let mut svg = Svg::new(WIDTH, TALL + top + 42.0);
    let most = ceiling(size(bars.iter().copied().max().unwrap_or(0)).max(1.0));
    let step = (WIDTH - left - RIGHT) / size(bars.len().max(1));
    for (index, count) in bars.iter().enumerate() {
        let tall = size(*count) / most * TALL;
        let x = left + step * size(index);
        let label = match (index.checked_sub(1).and_then(|before| ends_ms.get(before)), ends_ms.get(index)) {
            (_, Some(end)) => format!("≤ {}", span(*end)),
            (Some(before), None) => format!("> {}", span(*before)),
            (None, None) => String::new(),
        };
        let title = format!("{count} seats {label}");
        svg.rect("bar series", (x + 4.0, top + TALL - tall), (step - 8.0, tall), &title);
        if *count > 0 {
            svg.text("count", "middle", (x + step / 2.0, top + TALL - tall - 6.0), &super::grouped(*count));
        }
        svg.text("label", "middle", (x + step / 2.0, top + TALL + 18.0), &label);
    }
    svg.line("base", (left, top + TALL), (WIDTH - RIGHT, top + TALL));
    svg.finish("How many seats were seen free how long after their deadline")
}

fn span(ms: i64) -> String {
    if ms >= 1_000 { format!("{} s", ms / 1_000) } else { format!("{ms} ms") }
}

/// A row for each word, longest first: plain HTML, so that it wraps on a phone.
pub fn bars(counts: &BTreeMap<String, usize>, class: &str) -> String {
    let mut rows: Vec<(&String, &usize)> = counts.iter().collect();
    rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let most = rows.first().map_or(1, |(_, count)| **count).max(1);
    let mut table = String::from("<table class=\"bars\">\n");
    for (word, count) in rows {
        table.push_str(&format!(
            "<tr><th>{}</th><td><i class=\"{class}\" style=\"width:{:.1}%\"></i></td><td>{}</td></tr>\n",
            super::escape(word),
            (size(*count) / size(most) * 100.0).max(0.5),
            super::grouped(*count)
        ));
    }
    if counts.is_empty() {
        table.push_str("<tr><td>None.</td></tr>\n");
    }
    table.push_str("</table>\n");
    table
}
