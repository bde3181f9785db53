//! What an audit has found, bounded.

use std::collections::BTreeMap;

use super::finding::{Finding, FindingCode, Severity};

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was found.
    Clean,
    /// What was found heals by itself, or waits for a person.
    Drift,
    /// An invariant is broken.
    Broken,
}

impl Verdict {
    /// The word in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Drift => "drift",
            Self::Broken => "broken",
        }
    }
}

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookedAt {
    /// Events.
    pub events: u64,
    /// Blocks in Redis.
    pub blocks: u64,
    /// Seats in Redis.
    pub seats: u64,
    /// Claims.
    pub claims: u64,
    /// Reservations.
    pub reservations: u64,
    /// Payments.
    pub payments: u64,
    /// Payments that the provider was asked about.
    pub asked: u64,
    /// Deadlines in the index.
    pub deadlines: u64,
    /// Open rows of the outbox.
    pub rows: u64,
    /// Jobs that wait or are dead.
    pub jobs: u64,
}

/// What an audit has found.
#[derive(Debug, Clone)]
pub struct AuditReport {
    /// What was found, the worst first; no more than were asked for.
    pub findings: Vec<Finding>,
    /// How many of each kind, those left out too.
    pub counts: BTreeMap<(Severity, FindingCode), u64>,
    /// How much was looked at.
    pub looked_at: LookedAt,
    /// What could not be looked at, and why.
    pub skipped: Vec<String>,
    /// Differences that were motion: they were gone, or others, when they were looked at again.
    pub in_motion: u64,
    findings_max: usize,
}

impl AuditReport {
    pub(super) fn new(findings_max: usize) -> Self {
        Self {
            findings: Vec::new(),
            counts: BTreeMap::new(),
            looked_at: LookedAt::default(),
            skipped: Vec::new(),
            in_motion: 0,
            findings_max,
        }
    }

    /// How it stands.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.counts.keys().map(|(severity, _)| *severity).min() {
            None => Verdict::Clean,
            Some(Severity::Broken) => Verdict::Broken,
            Some(Severity::Waiting | Severity::Drift) => Verdict::Drift,
        }
    }

    /// How many findings there are, those left out too.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(super) fn add(&mut self, finding: Finding) {
        *self.counts.entry((finding.severity, finding.code)).or_default() += 1;
        if self.findings.len() < self.findings_max {
            self.findings.push(finding);
            return;
        }
        // Whatever is worse pushes out what is less bad.
        if let Some(mildest) = self.findings.iter_mut().max_by_key(|kept| kept.severity)
            && mildest.severity > finding.severity
        {
            *mildest = finding;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.findings.len() >= self.findings_max
    }

    pub(super) fn skip(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.skipped.contains(&what) {
            self.skipped.push(what);
        }
    }

    pub(super) fn finish(&mut self) {
        self.findings.sort_by_key(|finding| (finding.severity, finding.code));
    }
}
