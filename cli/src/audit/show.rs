//! How an audit is shown: one JSON document, stable for programs; or text for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use domain::flow::audit::AuditReport;
use domain::flow::audit::finding::{Finding, Place};
use domain::time::rfc3339_ms;
use serde_json::{Value, json};

use super::Outcome;

/// The document.
pub fn json(outcome: &Outcome<'_>) -> Value {
    let Outcome { report, before, repaired, limit } = outcome;
    let at = report.looked_at;
    let repaired = repaired.iter().map(|it| json!({ "what": it.repair.describe(), "failure": it.failure }));
    json!({
        "verdict": report.verdict().as_str(),
        "complete": report.skipped.is_empty(),
        "skipped": report.skipped,
        "looked_at": {
            "events": at.events, "blocks": at.blocks, "seats": at.seats, "claims": at.claims,
            "reservations": at.reservations, "payments": at.payments, "payments_asked_about": at.asked,
            "deadlines": at.deadlines, "outbox_rows": at.rows, "jobs": at.jobs,
        },
        "in_motion": report.in_motion,
        "total": report.total(),
        "counts": counts(report),
        "findings": report.findings.iter().take(*limit).map(finding_json).collect::<Vec<_>>(),
        "before": before.map(|before| json!({
            "verdict": before.verdict().as_str(), "total": before.total(), "counts": counts(before),
            "findings": before.findings.iter().take(*limit).map(finding_json).collect::<Vec<_>>(),
        })),
        "repaired": repaired.collect::<Vec<_>>(),
    })
}

fn counts(report: &AuditReport) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for ((_, code), count) in &report.counts {
        *counts.entry(code.as_str()).or_default() += count;
    }
    counts
}

fn finding_json(finding: &Finding) -> Value {
    let Place { event, block, column_row, seat, reservation, payment, job } = &finding.place;
    json!({
        "code": finding.code.as_str(),
        "invariant": finding.code.invariant(),
        "severity": finding.severity.as_str(),
        "event": event,
        "block": block.as_ref().map(|block| block.as_str()),
        "column": column_row.as_ref().map(|(column, _)| column.as_str()),
        "row": column_row.as_ref().map(|(_, row)| row.as_str()),
        "seat": seat,
        "reservation": reservation,
        "payment": payment,
        "queue": job.as_ref().map(|(queue, _)| queue.name()),
        "job": job.as_ref().map(|(_, id)| id),
        "detail": finding.detail,
        "found": finding.found,
        "since": finding.since.map(rfc3339_ms),
        "repairable": finding.repair.is_some(),
        "remedy": finding.remedy(),
    })
}

/// The text.
pub fn text(outcome: &Outcome<'_>) -> String {
    let Outcome { report, before, repaired, limit } = outcome;
    let mut text = String::new();
    if let Some(before) = before {
        line(&mut text, &format!("before: {}, {} findings", before.verdict().as_str(), before.total()));
        for it in *repaired {
            let outcome = it.failure.as_deref().map_or("done".to_owned(), |failure| format!("failed: {failure}"));
            line(&mut text, &format!("repair: {}: {outcome}", it.repair.describe()));
        }
        line(&mut text, "");
    }
    for skipped in &report.skipped {
        line(&mut text, &format!("left out: {skipped}"));
    }
    for ((severity, code), count) in &report.counts {
        let of_kind = |finding: &&Finding| finding.code == *code && finding.severity == *severity;
        line(&mut text, &format!("{:8} {:27} {} {count:>6}", severity.as_str(), code.as_str(), code.invariant()));
        for finding in report.findings.iter().take(*limit).filter(of_kind) {
            finding_text(&mut text, finding);
        }
    }
    let shown = report.findings.len().min(*limit) as u64;
    if report.total() > shown {
        line(&mut text, &format!("{} more findings are not shown: see --limit", report.total() - shown));
    }
    let at = report.looked_at;
    line(
        &mut text,
        &format!(
            "{}: {} events, {} seats in {} blocks, {} claims, {} reservations, {} payments ({} asked about), {} deadlines, \
             {} open rows; {} differences were motion",
            report.verdict().as_str(),
            at.events,
            at.seats,
            at.blocks,
            at.claims,
            at.reservations,
            at.payments,
            at.asked,
            at.deadlines,
            at.rows,
            report.in_motion
        ),
    );
    text
}

fn finding_text(text: &mut String, finding: &Finding) {
    let Place { event, block, column_row, seat: _, reservation, payment, job } = &finding.place;
    let mut place = String::new();
    if let Some(event) = event {
        place.push_str(&format!(" event {event}"));
    }
    if let Some(block) = block {
        place.push_str(&format!(" block {block}"));
    }
    if let Some((column, row)) = column_row {
        place.push_str(&format!(" column {column} row {row}"));
    }
    if let Some(reservation) = reservation {
        place.push_str(&format!(" reservation {reservation}"));
    }
    if let Some(payment) = payment {
        place.push_str(&format!(" payment {payment}"));
    }
    if let Some((queue, id)) = job {
        place.push_str(&format!(" job {id} of {queue}"));
    }
    line(
        text,
        &format!(
            "  {}{}",
            finding.detail,
            finding.since.map_or(String::new(), |at| format!(", since {}", rfc3339_ms(at)))
        ),
    );
    if !place.is_empty() {
        line(text, &format!("   {place}"));
    }
    for (side, says) in &finding.found {
        line(text, &format!("    {side}: {says}"));
    }
    line(text, &format!("    -> {}", finding.remedy()));
}

fn line(text: &mut String, line: &str) {
    let _infallible = writeln!(text, "{line}");
}
