use super::super::books::{Claim, LedgerEntry};
use super::super::history::{Sighting, Span};
use super::*;

const EVENT: &str = "e";

/// A run in which one reservation was held and paid for, `b1`, and another expired, `b2`, on the same seat before.
fn sound() -> (History, Books) {
    let hold = |buyer: &str, placed: Placed| Hold {
        buyer: buyer.to_owned(),
        event: EVENT.to_owned(),
        seats: vec![1],
        sent_ms: placed.created_ms - 5,
        done_ms: placed.created_ms + 5,
        answer: Answer::Placed(placed),
    };
    let told = |id: &str, created_ms: i64| Placed {
        reservation: id.to_owned(),
        amount: 100,
        created_ms,
        deadline_ms: created_ms + 1_000,
        ..Placed::default()
    };
    let bought = Placed {
        pay_sent_ms: Some(20_100),
        payments: vec!["p1".to_owned()],
        confirmed_told: true,
        ..told("r1", 20_000)
    };
    let row = |id: &str, buyer: &str, created_ms: i64| Reservation {
        id: id.to_owned(),
        event: EVENT.to_owned(),
        buyer: buyer.to_owned(),
        amount: 100,
        created_ms,
        expires_ms: created_ms + 1_000,
        seats: vec![1],
        ..Reservation::default()
    };
    let sold = Reservation {
        status: "CONFIRMED".to_owned(),
        committed_ms: Some(20_200),
        ended_ms: Some(20_300),
        ..row("r1", "b1", 20_000)
    };
    let expired = Reservation {
        status: "CANCELLED".to_owned(),
        cancel_reason: Some("expired".to_owned()),
        ended_ms: Some(10_010),
        ..row("r2", "b2", 9_000)
    };
    let books = Books {
        reservations: [sold, expired].into_iter().map(|row| (row.id.clone(), row)).collect(),
        claims: vec![Claim {
            event: EVENT.to_owned(),
            seat: 1,
            reservation: Some("r1".to_owned()),
            state: "sold".to_owned(),
        }],
        payments: vec![Payment {
            id: "p1".to_owned(),
            reservation: "r1".to_owned(),
            status: "captured".to_owned(),
            amount: 100,
            refunded: 0,
        }],
        ledger: vec![LedgerEntry { key: "p1".to_owned(), amount: 100, captures: 1, refunded: 0 }],
        now_ms: 60_000,
        ..Books::default()
    };
    let history = History { holds: vec![hold("b1", bought), hold("b2", told("r2", 9_000))], ..History::default() };
    (history, books)
}

fn findings(history: &History, books: &Books) -> Vec<(&'static str, String)> {
    let checks = judge(history, books, &Queues::default());
    checks.into_iter().flat_map(|check| check.findings.into_iter().map(move |it| (check.invariant, it))).collect()
}

fn told<'a>(history: &'a mut History, buyer: &str) -> &'a mut Placed {
    let hold = history.holds.iter_mut().find(|hold| hold.buyer == buyer).unwrap();
    match &mut hold.answer {
        Answer::Placed(placed) => placed,
        Answer::Refused(_) | Answer::Unknown => panic!("it was placed"),
    }
}

fn row<'a>(books: &'a mut Books, id: &str) -> &'a mut Reservation {
    books.reservations.get_mut(id).unwrap()
}

#[test]
fn a_sound_run_has_no_findings() {
    let (history, books) = sound();
    assert_eq!(findings(&history, &books), []);
}

#[test]
fn an_acknowledged_hold_that_postgres_does_not_know_is_lost() {
    let (history, mut books) = sound();
    books.reservations.remove("r2");
    let found = findings(&history, &books);
    assert!(
        matches!(&found[..], [("I1, I5", what)] if what.contains("r2") && what.contains("does not know")),
        "{found:?}"
    );
}

#[test]
fn an_acknowledged_hold_with_other_seats_is_lost() {
    let (history, mut books) = sound();
    row(&mut books, "r2").seats = vec![2];
    assert_eq!(findings(&history, &books).len(), 1);
}

#[test]
fn an_acknowledged_payment_that_postgres_does_not_know_is_lost() {
    let (mut history, books) = sound();
    told(&mut history, "b2").payments.push("p9".to_owned());
    assert_eq!(findings(&history, &books).len(), 1);
}

#[test]
fn a_seat_with_two_living_reservations_has_two_owners() {
    let (history, mut books) = sound();
    let second = row(&mut books, "r2");
    (second.status, second.committed_ms, second.cancel_reason) = ("PENDING".to_owned(), Some(9_500), None);
    let found = findings(&history, &books);
    assert!(
        found.iter().any(|(invariant, what)| *invariant == "I1" && what.contains("r1") && what.contains("r2")),
        "{found:?}"
    );
}

#[test]
fn two_clients_who_held_a_seat_at_one_time_are_two_owners() {
    let (mut history, books) = sound();
    told(&mut history, "b1").created_ms = 9_999;
    let found = findings(&history, &books);
    assert!(matches!(&found[..], [("I1", what)] if what.contains("1 ms before r2 was over")), "{found:?}");
    // At the deadline itself it is over, and so it is once its client has given it up.
    told(&mut history, "b1").created_ms = 10_000;
    assert_eq!(findings(&history, &books), []);
    told(&mut history, "b1").created_ms = 9_500;
    told(&mut history, "b2").cancel_sent_ms = Some(9_400);
    assert_eq!(findings(&history, &books), []);
}

#[test]
fn money_without_a_sale_and_a_sale_without_money_are_found() {
    let (history, mut books) = sound();
    row(&mut books, "r1").status = "CANCELLED".to_owned();
    let found = findings(&history, &books);
    assert!(found.iter().any(|(_, what)| what.contains("keeps 100 for r1, which is CANCELLED")), "{found:?}");
    assert!(found.iter().any(|(_, what)| what.contains("told to be CONFIRMED, and is CANCELLED")), "{found:?}");
    assert!(found.iter().any(|(_, what)| what.contains("sold to r1, which is not CONFIRMED")), "{found:?}");
    let (history, mut books) = sound();
    books.ledger[0].refunded = 100;
    assert_eq!(findings(&history, &books).len(), 1);
    let (history, mut books) = sound();
    books.claims.clear();
    assert!(matches!(&findings(&history, &books)[..], [("I2", what)] if what.contains("not sold to it")));
    let (history, mut books) = sound();
    books.ledger[0].captures = 2;
    assert_eq!(findings(&history, &books).len(), 2, "taken twice, and too much kept");
}

#[test]
fn a_request_has_one_effect() {
    let (mut history, books) = sound();
    told(&mut history, "b2").repeated = Some("r3".to_owned());
    assert_eq!(findings(&history, &books).len(), 1);
    let (history, mut books) = sound();
    let twin = Reservation { id: "r3".to_owned(), ..books.reservations["r2"].clone() };
    books.reservations.insert(twin.id.clone(), twin);
    assert_eq!(findings(&history, &books).len(), 1);
}

#[test]
fn an_early_expiry_and_a_cancellation_that_is_not_so_are_found() {
    let (history, mut books) = sound();
    row(&mut books, "r2").ended_ms = Some(9_999);
    assert_eq!(findings(&history, &books).len(), 1);
    let (mut history, books) = sound();
    told(&mut history, "b1").cancel_told = true;
    assert_eq!(findings(&history, &books).len(), 1);
}

#[test]
fn a_seat_that_looks_held_past_its_deadline_is_found_unless_nobody_could_tell() {
    let (mut history, books) = sound();
    let seen = |at_ms| Sighting { seat: SeatOf { event: EVENT.to_owned(), seat: 1 }, at_ms };
    history.sightings = vec![seen(10_900), seen(20_100), seen(20_250)];
    assert_eq!(findings(&history, &books), [], "within a second, and while it is held");
    // The gate of the request that made it may stand until 14 s.
    history.sightings.push(seen(16_000));
    assert!(matches!(&findings(&history, &books)[..], [("I3", what)] if what.contains("16000")));
    history.outages.push(Span { from_ms: 15_000, until_ms: 17_000 });
    assert_eq!(findings(&history, &books), []);
}

#[test]
fn what_has_not_come_to_rest_is_found() {
    let (history, mut books) = sound();
    books.open_jobs.push("finalize-payment of p1".to_owned());
    books.differences.push("seat:1 shows held".to_owned());
    books.open_refunds.push("refund f1 of payment p1 is requested".to_owned());
    assert_eq!(findings(&history, &books).len(), 3);
    let queues = Queues { under_way: vec!["1 ready in payments".to_owned()], dead: vec!["payments 1".to_owned()] };
    assert_eq!(
        super::super::rest::unsettled(&books, &queues).len(),
        4,
        "a dead job waits for an operator, not for time"
    );
    let checks = judge(&history, &books, &queues);
    assert_eq!(checks.iter().map(|check| check.findings.len()).sum::<usize>(), 5);
}
