use simulation::chaos::verdict::Check;

use super::super::figures::{Lag, Second};
use super::super::machine::Machine;
use super::super::strike::Struck;
use super::*;

fn figures(findings: Vec<String>) -> Figures {
    let busy = Second { reads: 300, holds: 9, read_ms: Some((0.4, 3.0)), ..Second::default() };
    Figures {
        verdict: if findings.is_empty() { "clean" } else { "broken" },
        command: "holdfast chaos --minutes 2 --seed 7 --buyers 40".to_owned(),
        seed: 7,
        load_ms: 120_000,
        settled_ms: Some(8_400),
        began: "2031-01-01T00:00:00.000Z".to_owned(),
        machine: Machine::look("15".to_owned(), "7".to_owned()),
        checks: vec![Check {
            rule: "No seat has two owners",
            invariant: "I1",
            looked_at: 4_711,
            of: "seats",
            findings,
        }],
        counts: super::super::figures::Counts::default(),
        faults: vec![Struck {
            at_ms: 4_000,
            until_ms: 6_000,
            kind: FaultKind::RedisKilled,
            what: "Redis <killed>".to_owned(),
        }],
        excused: Vec::new(),
        seconds: vec![busy, Second::default()],
        lag: Lag::of(vec![12, 700]),
        refusals: [("seat_unavailable".to_owned(), 3)].into(),
        failures: std::collections::BTreeMap::new(),
    }
}

#[test]
fn the_page_stands_alone_and_says_the_verdict_first() {
    let page = page(&figures(Vec::new()));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("@import") && !page.contains("url("));
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing"));
    assert!(at("Nothing was lost</h1>") < at("holdfast chaos --minutes 2 --seed 7"));
    assert!(at("No seat has two owners") < at("<svg"));
    assert!(page.contains("4,711 seats") && page.contains("Redis &lt;killed&gt;") && !page.contains("Redis <killed>"));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn a_broken_invariant_is_shown_with_what_broke_it() {
    let page = page(&figures(vec!["seat 1 belongs to a and b".to_owned()]));
    assert!(page.contains("An invariant is broken</h1>") && page.contains("seat 1 belongs to a and b"));
}

#[test]
fn numbers_and_spans_are_written_for_people() {
    assert_eq!(["7", "4,711", "1,000,000"], [7, 4_711, 1_000_000].map(grouped));
    assert_eq!(["0.3 s", "8.4 s", "5 min", "1 min 3 s"], [300, 8_400, 300_000, 63_999].map(span));
}
