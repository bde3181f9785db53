//! The verdict: every acknowledgement, every seat and every payment, compared with the books.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::books::{Books, Payment, Reservation};
use super::history::{Answer, History, Hold, Placed, SeatOf};
use super::rest::{Queues, pending};

/// A seat may look held for so long after its deadline, in ms (I3).
const LOOKS_HELD_MS: i64 = 1_000;
/// A gate stands for so long before the commit that it guards, in ms.
const GATE_MS: i64 = 5_000;

/// A request that its client gave up may be worked on for so long: the API's own limit, and a process that is frozen.
const UNANSWERED_MS: i64 = 22_000;

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The rule.
    pub rule: &'static str,
    /// The invariant behind it.
    pub invariant: &'static str,
    /// How many things were looked at, and what they are.
    pub looked_at: usize,
    /// What was looked at.
    pub of: &'static str,
    /// What breaks the rule.
    pub findings: Vec<String>,
}

impl Check {
    fn new(
        (invariant, rule): (&'static str, &'static str),
        (looked_at, of): (usize, &'static str),
        mut findings: Vec<String>,
    ) -> Self {
        findings.sort();
        Self { rule, invariant, looked_at, of, findings }
    }
}

/// Judges a run whose books were read after everything had come to rest.
#[must_use]
pub fn judge(history: &History, books: &Books, queues: &Queues) -> Vec<Check> {
    vec![
        acknowledged(history, books),
        owners(history, books),
        answers(history, books),
        repeats(history, books),
        money(books),
        claims(books),
        sightings(history, books),
        jobs(books, queues),
        rest(books),
        Check::new(
            ("I6", "Redis shows every seat as Postgres says"),
            (books.seats_compared, "seats"),
            books.differences.clone(),
        ),
    ]
}

fn placed(history: &History) -> impl Iterator<Item = (&Hold, &Placed)> {
    history.holds.iter().filter_map(|hold| match &hold.answer {
        Answer::Placed(placed) => Some((hold, placed)),
        Answer::Refused(_) | Answer::Unknown => None,
    })
}

fn acknowledged(history: &History, books: &Books) -> Check {
    let mut findings = Vec::new();
    for (hold, told) in placed(history) {
        let Some(row) = books.reservations.get(&told.reservation) else {
            findings.push(format!(
                "{} was acknowledged to {}, and Postgres does not know it",
                told.reservation, hold.buyer
            ));
            continue;
        };
        let seats: BTreeSet<i64> = hold.seats.iter().copied().collect();
        let kept: BTreeSet<i64> = row.seats.iter().copied().collect();
        if (row.buyer.as_str(), row.event.as_str(), row.amount) != (&*hold.buyer, &*hold.event, told.amount)
            || seats != kept
        {
            findings.push(format!(
                "{} was acknowledged with {seats:?} for {}, and kept with {kept:?} for {}",
                row.id, hold.buyer, row.buyer
            ));
        }
        for payment in told.payments.iter().filter(|id| !books.payments.iter().any(|row| row.id == **id)) {
            findings.push(format!("payment {payment} was acknowledged, and Postgres does not know it"));
        }
    }
    Check::new(
        ("I1, I5", "No acknowledged reservation or payment is lost"),
        (placed(history).count(), "acknowledged holds"),
        findings,
    )
}

/// I1 twice: by the reservations that live in the books, and by what clients were told to own, and when.
fn owners(history: &History, books: &Books) -> Check {
    let mut findings = Vec::new();
    let mut living: BTreeMap<(&str, i64), Vec<&str>> = BTreeMap::new();
    let lives = |row: &&Reservation| match row.status.as_str() {
        "CONFIRMED" => true,
        "PENDING" => row.committed_ms.is_some() || row.expires_ms > books.now_ms,
        _ => false,
    };
    for row in books.reservations.values().filter(lives) {
        for seat in &row.seats {
            living.entry((&row.event, *seat)).or_default().push(&row.id);
        }
    }
    for ((event, seat), owners) in living.into_iter().filter(|(_, owners)| owners.len() > 1) {
        findings.push(format!("seat {seat} of event {event} belongs to {}", owners.join(" and ")));
    }
    let mut told: BTreeMap<SeatOf, Vec<(i64, i64, &str)>> = BTreeMap::new();
    for (hold, placed) in placed(history) {
        for seat in &hold.seats {
            let seat = SeatOf { event: hold.event.clone(), seat: *seat };
            told.entry(seat).or_default().push((placed.created_ms, owned_until(placed), &placed.reservation));
        }
    }
    let seats = told.len();
    for (seat, mut spans) in told {
        spans.sort_unstable();
        for pair in spans.windows(2) {
            let [(_, until_ms, first), (from_ms, _, second)] = pair else { continue };
            if from_ms < until_ms && first != second {
                let early = until_ms.saturating_sub(*from_ms);
                findings.push(format!(
                    "seat {} of event {} was given to {second} {early} ms before {first} was over",
                    seat.seat, seat.event
                ));
            }
        }
    }
    Check::new(("I1", "No seat has two owners, at the end or at any moment"), (seats, "seats that were held"), findings)
}

/// Until when its client may rely on it: a cancellation, once asked for, may have happened at once, and so may a
/// payment that the provider refuses.
fn owned_until(placed: &Placed) -> i64 {
    if placed.confirmed_told {
        return i64::MAX;
    }
    let given_up = [placed.cancel_sent_ms, placed.pay_sent_ms.filter(|_| placed.cancelled_told)];
    given_up.into_iter().flatten().fold(placed.deadline_ms, i64::min)
}

fn answers(history: &History, books: &Books) -> Check {
    let mut findings = Vec::new();
    let known = placed(history).filter_map(|(_, told)| Some((told, books.reservations.get(&told.reservation)?)));
    for (told, row) in known {
        let id = &row.id;
        if told.confirmed_told && row.status != "CONFIRMED" {
            findings.push(format!("{id} was told to be CONFIRMED, and is {}", row.status));
        }
        // Late money claims its seats again if all are still free: then what had expired is CONFIRMED after all.
        let is_final = told.cancel_told || (told.cancelled_told && told.pay_sent_ms.is_none());
        if is_final && row.status != "CANCELLED" {
            findings.push(format!("{id} was told to be CANCELLED, and is {}", row.status));
        }
        if row.status == "CANCELLED" && row.cancel_reason.as_deref() == Some("user") && told.cancel_sent_ms.is_none() {
            findings.push(format!("{id} was cancelled for its user, who never asked"));
        }
        if row.expires_ms < told.deadline_ms {
            findings
                .push(format!("{id} was told a deadline {} ms later than it has", told.deadline_ms - row.expires_ms));
        }
        let is_early =
            row.cancel_reason.as_deref() == Some("expired") && row.ended_ms.is_some_and(|at| at < told.deadline_ms);
        if is_early {
            findings.push(format!("{id} expired before the deadline that was told"));
        }
    }
    Check::new(("I2", "What a client was told is so"), (placed(history).count(), "acknowledged holds"), findings)
}

fn repeats(history: &History, books: &Books) -> Check {
    let mut by_buyer: HashMap<&str, Vec<&str>> = HashMap::new();
    for row in books.reservations.values() {
        by_buyer.entry(&row.buyer).or_default().push(&row.id);
    }
    let twice = history.holds.iter().filter_map(|hold| {
        let made = by_buyer.get(hold.buyer.as_str())?;
        (made.len() > 1).then(|| format!("the one request of {} made {}", hold.buyer, made.join(" and ")))
    });
    let mut findings: Vec<String> = twice.collect();
    for (_, told) in placed(history) {
        if let Some(again) = told.repeated.as_ref().filter(|again| **again != told.reservation) {
            findings.push(format!("the request that made {}, repeated, was answered {again}", told.reservation));
        }
    }
    Check::new(
        ("I5", "A request that is repeated has one effect"),
        (history.holds.len(), "requests for a hold"),
        findings,
    )
}

/// I2: CONFIRMED, sold and paid are one. Each payment of a reservation counts, whatever the engine thinks of it.
fn money(books: &Books) -> Check {
    let mut findings = Vec::new();
    let payments: HashMap<&str, &Payment> = books.payments.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut kept: HashMap<&str, i64> = HashMap::new();
    for entry in &books.ledger {
        if entry.captures > 1 {
            findings.push(format!("the provider took the money of {} {} times", entry.key, entry.captures));
        }
        let Some(payment) = payments.get(entry.key.as_str()) else {
            findings.push(format!("the provider knows {}, and Postgres does not", entry.key));
            continue;
        };
        *kept.entry(&payment.reservation).or_default() += entry.amount * i64::from(entry.captures) - entry.refunded;
    }
    for row in books.reservations.values() {
        let price = if row.status == "CONFIRMED" { row.amount } else { 0 };
        let kept = kept.get(row.id.as_str()).copied().unwrap_or(0);
        if kept != price {
            findings
                .push(format!("the provider keeps {kept} for {}, which is {} for {}", row.id, row.status, row.amount));
        }
        let of = |wanted: &Payment| wanted.reservation == row.id && wanted.status == "captured";
        let captured: i64 = books.payments.iter().filter(|it| of(it)).map(|it| it.amount - it.refunded).sum();
        if row.status == "CONFIRMED" && captured != row.amount {
            findings.push(format!("{} is CONFIRMED for {}, and {captured} is captured", row.id, row.amount));
        }
    }
    let ends = ["captured", "declined", "voided", "refunded"];
    for payment in books.payments.iter().filter(|row| !ends.contains(&row.status.as_str())) {
        findings.push(format!("payment {} is still {}", payment.id, payment.status));
    }
    Check::new(
        ("I2, I5", "Money was taken once for each sale, and for nothing else"),
        (books.payments.len(), "payments"),
        findings,
    )
}

fn claims(books: &Books) -> Check {
    let mut findings = Vec::new();
    let mut wanted: BTreeMap<(&str, i64), &str> = BTreeMap::new();
    for row in books.reservations.values().filter(|row| row.status == "CONFIRMED") {
        wanted.extend(row.seats.iter().map(|seat| ((row.event.as_str(), *seat), row.id.as_str())));
    }
    let (sold, other): (Vec<_>, Vec<_>) = books.claims.iter().partition(|claim| claim.state == "sold");
    let sold: BTreeMap<(&str, i64), &str> = sold
        .into_iter()
        .map(|claim| ((claim.event.as_str(), claim.seat), claim.reservation.as_deref().unwrap_or("nobody")))
        .collect();
    for (seat, owner) in &wanted {
        if sold.get(seat) != Some(owner) {
            findings.push(format!("seat {} of event {} is paid for by {owner}, and not sold to it", seat.1, seat.0));
        }
    }
    for (seat, owner) in sold.iter().filter(|(seat, _)| !wanted.contains_key(*seat)) {
        findings.push(format!("seat {} of event {} is sold to {owner}, which is not CONFIRMED", seat.1, seat.0));
    }
    for claim in other.iter().filter(|claim| claim.state != "blocked") {
        let owner = claim.reservation.as_deref().unwrap_or_default();
        if books.reservations.get(owner).is_none_or(|row| row.status != "PENDING") {
            findings.push(format!(
                "seat {} of event {} is {} for {owner}, which is over",
                claim.seat, claim.event, claim.state
            ));
        }
    }
    Check::new(("I2", "A seat is sold exactly where a reservation is CONFIRMED"), (sold.len(), "sold seats"), findings)
}

/// I3: what looked held was held, or being asked for, or had been until a second ago, or nobody could tell.
fn sightings(history: &History, books: &Books) -> Check {
    let mut owned: HashMap<(&str, i64), Vec<&Reservation>> = HashMap::new();
    for row in books.reservations.values() {
        for seat in &row.seats {
            owned.entry((&row.event, *seat)).or_default().push(row);
        }
    }
    let mut asked: HashMap<(&str, i64), Vec<&Hold>> = HashMap::new();
    for hold in &history.holds {
        for seat in &hold.seats {
            asked.entry((&hold.event, *seat)).or_default().push(hold);
        }
    }
    let mut late: BTreeMap<&SeatOf, (i64, i64)> = BTreeMap::new();
    for sighting in &history.sightings {
        let (seat, at_ms) = ((sighting.seat.event.as_str(), sighting.seat.seat), sighting.at_ms);
        let is_owned = owned.get(&seat).is_some_and(|rows| rows.iter().any(|row| looks_held(row, at_ms)));
        let is_asked = asked
            .get(&seat)
            .is_some_and(|holds| holds.iter().any(|hold| (hold.sent_ms - 50..gate_until(hold)).contains(&at_ms)));
        if !is_owned && !is_asked && !history.outages.iter().any(|span| span.contains(at_ms)) {
            let span = late.entry(&sighting.seat).or_insert((at_ms, at_ms));
            span.1 = at_ms;
        }
    }
    let findings = late.into_iter().map(|(seat, (from_ms, until_ms))| {
        format!(
            "seat {} of event {} looked held at {from_ms} and until {until_ms}, and was nobody's",
            seat.seat, seat.event
        )
    });
    Check::new(
        ("I3", "No seat looked held for more than a second past its deadline"),
        (history.sightings.len(), "sightings in doubt"),
        findings.collect(),
    )
}

/// Until when a gate of this request may stand. One that was never answered may still be on its way.
fn gate_until(hold: &Hold) -> i64 {
    let under_way_ms = match hold.answer {
        Answer::Unknown => UNANSWERED_MS,
        Answer::Placed(_) | Answer::Refused(_) => 0,
    };
    hold.done_ms + under_way_ms + GATE_MS + LOOKS_HELD_MS
}

fn looks_held(row: &Reservation, at_ms: i64) -> bool {
    let until_ms = match (row.status.as_str(), row.ended_ms) {
        // A payment may have committed the seats past the deadline.
        ("CANCELLED", Some(ended_ms)) if row.committed_ms.is_some() => ended_ms.max(row.expires_ms),
        ("CONFIRMED", _) => i64::MAX - LOOKS_HELD_MS,
        _ => row.expires_ms,
    };
    (row.created_ms - LOOKS_HELD_MS..until_ms + LOOKS_HELD_MS).contains(&at_ms)
}

fn jobs(books: &Books, queues: &Queues) -> Check {
    let mut findings: Vec<String> = books.open_jobs.iter().map(|job| format!("{job} is open in the outbox")).collect();
    findings.extend(queues.under_way.iter().cloned());
    findings.extend(queues.dead.iter().map(|job| format!("dead: {job}")));
    Check::new(("I5", "Every job is accounted for"), (books.payments.len(), "payments and their jobs"), findings)
}

fn rest(books: &Books) -> Check {
    let mut findings = pending(books);
    findings.extend(books.open_refunds.iter().cloned());
    Check::new(("I2, I3", "Everything has come to rest"), (books.reservations.len(), "reservations"), findings)
}

#[cfg(test)]
mod tests;
