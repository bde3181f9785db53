//! The report: one page that needs nothing else, its pictures drawn here.

mod charts;
mod svg;

use std::fmt::Write as _;
use std::time::Duration;

use super::faults::FaultKind;
use super::figures::{Figures, LAG_BARS_MS};
use charts::{bars, fault_lanes, histogram, latency, throughput};
use svg::escape;

const STYLE: &str = include_str!("report/style.css");
/// Findings of one rule that the page shows.
const FINDINGS_MAX: usize = 50;

/// The whole page.
#[must_use]
pub fn page(figures: &Figures) -> String {
    let title = if figures.verdict == "clean" { "Nothing was lost" } else { "An invariant is broken" };
    let mut body = String::new();
    // Writing to a String never fails.
    let _infallible = write_body(&mut body, figures, title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Holdfast, chaos run {}: {title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        figures.seed
    )
}

fn write_body(page: &mut String, figures: &Figures, title: &str) -> std::fmt::Result {
    let kinds: std::collections::BTreeSet<FaultKind> = figures.faults.iter().map(|fault| fault.kind).collect();
    let load = span(figures.load_ms);
    writeln!(
        page,
        "<header class=\"{}\">\n<p class=\"brand\">Holdfast · chaos run</p>\n<h1>{title}</h1>",
        figures.verdict
    )?;
    writeln!(
        page,
        "<p>{load} of buyers at full load while {} faults of {} kinds struck the API, the workers, Redis, Postgres and the \
         links between them. Afterwards every answer that a client had got was compared with Postgres, Redis and the \
         payment provider’s ledger.</p>\n<p class=\"repeat\"><code>{}</code></p>\n</header>",
        figures.faults.len(),
        kinds.len(),
        escape(&figures.command)
    )?;
    tiles(page, figures)?;
    checks(page, figures)?;
    writeln!(
        page,
        "<section>\n<h2>Throughput and faults</h2>\n<p>Each second of the load. A band is a fault, from the blow to the mending.</p>"
    )?;
    legend(page, &[("process", "a process"), ("link", "a link"), ("redis", "Redis"), ("postgres", "Postgres")])?;
    writeln!(page, "<div class=\"chart\">{}{}</div>\n</section>", throughput(figures), fault_lanes(figures))?;
    writeln!(
        page,
        "<section>\n<h2>Latency</h2>\n<p>As clients met it, per second, however the request ended; they give up after 4 s and ask again. The scale is logarithmic.</p>"
    )?;
    legend(page, &[("p50", "half of the requests are faster"), ("p99", "99 of 100 are faster")])?;
    writeln!(page, "<div class=\"chart\">{}</div>\n</section>", latency(figures))?;
    lag(page, figures)?;
    endings(page, figures)?;
    faults(page, figures)?;
    machine(page, figures)
}

fn tiles(page: &mut String, figures: &Figures) -> std::fmt::Result {
    let counts = &figures.counts;
    let lost: usize = figures.checks.iter().map(|check| check.findings.len()).sum();
    let rest = figures.settled_ms.map_or("never".to_owned(), span);
    let tiles = [
        (grouped(counts.holds_acknowledged), "holds acknowledged"),
        (grouped(counts.confirmed_told), "sales confirmed"),
        (grouped(lost), "broken promises"),
        (grouped(counts.requests), "requests"),
        (format!("{} ms", grouped(usize::try_from(figures.lag.p50_ms).unwrap_or(0))), "deadline to seen free, median"),
        (rest, "until all was at rest"),
    ];
    writeln!(page, "<ul class=\"tiles\">")?;
    for (number, words) in tiles {
        writeln!(page, "<li><b>{number}</b> {words}</li>")?;
    }
    writeln!(page, "</ul>")
}

fn checks(page: &mut String, figures: &Figures) -> std::fmt::Result {
    writeln!(page, "<section>\n<h2>Verdict</h2>\n<table class=\"checks\">")?;
    for check in &figures.checks {
        let (class, mark) = if check.findings.is_empty() { ("ok", "✓") } else { ("broken", "✗") };
        writeln!(
            page,
            "<tr class=\"{class}\"><td class=\"mark\">{mark}</td><td>{}<span class=\"of\">{} {}</span></td>\
             <td class=\"invariant\">{}</td></tr>",
            escape(check.rule),
            grouped(check.looked_at),
            check.of,
            check.invariant
        )?;
        for finding in check.findings.iter().take(FINDINGS_MAX) {
            writeln!(page, "<tr class=\"finding\"><td></td><td colspan=\"2\">{}</td></tr>", escape(finding))?;
        }
        if check.findings.len() > FINDINGS_MAX {
            let more = check.findings.len() - FINDINGS_MAX;
            writeln!(page, "<tr class=\"finding\"><td></td><td colspan=\"2\">and {more} more</td></tr>")?;
        }
    }
    let excused: i64 = figures.excused.iter().map(|span| span.until_ms - span.from_ms).sum();
    let percent = (excused * 100 / figures.load_ms.max(1)).min(100);
    writeln!(
        page,
        "</table>\n<p class=\"note\">For {percent} % of the time no worker could do its work, or had been able to for \
         less than a second: what looked held then is excused from the rule on deadlines. All other rules hold at any \
         time.</p>\n</section>"
    )
}

fn legend(page: &mut String, entries: &[(&str, &str)]) -> std::fmt::Result {
    write!(page, "<p class=\"legend\">")?;
    for (class, words) in entries {
        write!(page, "<span><i class=\"{class}\"></i>{words}</span> ")?;
    }
    writeln!(page, "</p>")
}

fn lag(page: &mut String, figures: &Figures) -> std::fmt::Result {
    let lag = &figures.lag;
    writeln!(page, "<section>\n<h2>From the deadline to a free seat</h2>")?;
    writeln!(
        page,
        "<p>Seats whose buyers walked away: how long after the deadline a reader was first shown the seat as available, or \
         another buyer got it. It includes the wait until somebody looked. {} seats; median {} ms, 99 of 100 within {} ms, \
         the longest {} ms.</p>\n<div class=\"chart\">{}</div>\n</section>",
        grouped(lag.count),
        lag.p50_ms,
        lag.p99_ms,
        lag.max_ms,
        histogram(&lag.bars, &LAG_BARS_MS)
    )
}

fn endings(page: &mut String, figures: &Figures) -> std::fmt::Result {
    writeln!(
        page,
        "<section class=\"pair\">\n<div>\n<h2>Refused</h2>\n<p>By the rules: somebody else was faster, or the time was over.</p>"
    )?;
    writeln!(page, "{}</div>", bars(&figures.refusals, "refused"))?;
    writeln!(page, "<div>\n<h2>Failed</h2>\n<p>No answer, or “try again”: clients did, under the same key.</p>")?;
    writeln!(page, "{}</div>\n</section>", bars(&figures.failures, "failed"))
}

fn faults(page: &mut String, figures: &Figures) -> std::fmt::Result {
    writeln!(
        page,
        "<section>\n<h2>Faults</h2>\n<details><summary>All {} of them, by time</summary>\n<table class=\"faults\">",
        figures.faults.len()
    )?;
    for fault in &figures.faults {
        let at = Duration::from_millis(fault.at_ms.unsigned_abs()).as_secs_f64();
        writeln!(
            page,
            "<tr><td class=\"time\">{at:.1} s</td><td><i class=\"{}\"></i>{}</td></tr>",
            fault.kind.class(),
            escape(&fault.what)
        )?;
    }
    writeln!(page, "</table></details>")?;
    if !figures.counts.ended_by_themselves.is_empty() {
        let ended = figures.counts.ended_by_themselves.join("; ");
        writeln!(
            page,
            "<p class=\"note\">Ended though nobody killed them, and started again: {}.</p>",
            escape(&ended)
        )?;
    }
    writeln!(page, "</section>")
}

fn machine(page: &mut String, figures: &Figures) -> std::fmt::Result {
    let machine = &figures.machine;
    let rows = [
        ("Seed", figures.seed.to_string()),
        ("Began", figures.began.clone()),
        ("Load", span(figures.load_ms)),
        (
            "Machine",
            format!(
                "{} cores, {} MiB, {}",
                machine.cores,
                grouped(usize::try_from(machine.memory_mib).unwrap_or(0)),
                machine.processor
            ),
        ),
        ("Kernel", machine.kernel.clone()),
        ("Postgres", machine.postgres.clone()),
        ("Redis", machine.redis.clone()),
        ("Holdfast", machine.holdfast.clone()),
        ("Commit", machine.commit.clone()),
    ];
    writeln!(page, "<section>\n<h2>Where and when</h2>\n<table class=\"machine\">")?;
    for (name, value) in rows {
        writeln!(page, "<tr><th>{name}</th><td>{}</td></tr>", escape(&value))?;
    }
    writeln!(page, "</table>\n</section>")
}

/// `4,711`
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `5 min 3 s`, `8.2 s`
fn span(ms: i64) -> String {
    let seconds = ms / 1_000;
    match (seconds / 60, seconds % 60) {
        (0, _) => format!("{}.{} s", seconds, ms % 1_000 / 100),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

#[cfg(test)]
mod tests;
