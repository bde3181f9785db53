//! Placing holds: whole or not at all, of seats that exist, in events that are on sale.

use std::collections::BTreeMap;

use domain::event::SaleState;
use domain::flow::place_hold::PlaceHoldError;
use domain::flow::set_up_event::{EventChange, change_event, end_sale, start_sale};
use domain::flow::unhold::cancel_reservation;
use domain::flow::{Access, Stores};
use domain::id::SeatId;
use domain::reservation::{CancelReason, ReservationStatus};
use domain::seat::{SeatRef, SeatStatus};
use domain::time::{VenueZone, rfc3339_ms, to_ms};
use holdfast_tests::audit::{assert_settled, assert_sound};
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;

fn conflicts(refusal: PlaceHoldError) -> Vec<(usize, SeatStatus)> {
    let PlaceHoldError::Unavailable(conflicts) = refusal else { panic!("not a conflict: {refusal:?}") };
    conflicts.into_iter().map(|conflict| (conflict.index, conflict.status)).collect()
}

/// Held: B1/A-2 and B2/A-3. Sold: B2/A-4. Asked for: these and B1/A-1.
async fn a_hold_that_meets_three_others(test: &TestStores, stores: &Stores) {
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 5), ("B2", "A", 5)])).await;
    sale.hold(stores, "u1", &["B1/A-2", "B2/A-3"]).await.unwrap();
    let bought = sale.hold(stores, "u1", &["B2/A-4"]).await.unwrap();
    let payment = pay(stores, bought.id, "tok_ok").await.unwrap();
    finalize(stores, &provider, payment.id).await;
    let refusal = sale.hold(stores, "u2", &["B2/A-4", "B1/A-1", "B2/A-3", "B1/A-2"]).await.unwrap_err();
    assert_eq!(conflicts(refusal), [(0, SeatStatus::Sold), (2, SeatStatus::Held), (3, SeatStatus::Held)]);
    assert_eq!(sale.status(&test.stores, "B1/A-1").await, SeatStatus::Available);
    sale.hold(stores, "u3", &["B1/A-1"]).await.expect("the refused hold left nothing behind");
    settle(test, &test.stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_all_or_nothing_over_blocks_and_a_refusal_names_every_seat_in_conflict() {
    let test = TestStores::start().await;
    a_hold_that_meets_three_others(&test, &test.stores).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_alone_refuses_as_the_gate_does() {
    let test = TestStores::start().await;
    let blind = test.a_process_without_redis();
    a_hold_that_meets_three_others(&test, &blind).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_postgres_heals_what_redis_showed() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    sale.hold(&test.a_process_without_redis(), "u1", &["A-1"]).await.unwrap();
    assert_eq!(sale.status(&test.stores, "A-1").await, SeatStatus::Available, "Redis was not told");
    let refusal = sale.hold(&test.stores, "u2", &["A-1"]).await.unwrap_err();
    assert_eq!(conflicts(refusal), [(0, SeatStatus::Held)]);
    holdfast_tests::wait::until("the bucket to show held", async || {
        (sale.status(&test.stores, "A-1").await == SeatStatus::Held).then_some(())
    })
    .await;
}

// A-D7
#[tokio::test(flavor = "multi_thread")]
async fn seats_that_the_event_does_not_have_are_refused_and_nothing_changes() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default()).await;
    let other = SalePlan { venue: "Another house".to_owned(), ..SalePlan::of_rows(&[("B9", "A", 3)]) };
    let other = Sale::open(stores, other).await;
    let elsewhere = SeatRef::Id(other.sheet.map.seats()[0].id);
    let (keys, rows) = (test.keys().await, rows(&test).await);
    let unknown: [(&[SeatRef], &[usize]); 6] = [
        (&[sale.seat("A-11")], &[0]),
        (&[sale.seat("B9/A-1")], &[0]),
        (&[sale.seat("A-1"), sale.seat("ZZ-9")], &[1]),
        (&[sale.seat("A-1"), elsewhere.clone(), elsewhere], &[1, 2]),
        (&[SeatRef::Id(SeatId(-1)), SeatRef::Id(SeatId(i64::MAX)), sale.seat("A-1")], &[0, 1]),
        (&[sale.seat("a-1")], &[0]),
    ];
    for (seats, wrong) in unknown {
        let refusal = sale.hold_refs(stores, "u1", seats.to_vec()).await.unwrap_err();
        assert!(matches!(&refusal, PlaceHoldError::UnknownSeats(named) if named == wrong), "{seats:?}: {refusal:?}");
    }
    let many = vec![sale.seat("A-1"); 10_000];
    let refusal = sale.hold_refs(stores, "u1", many).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::TooManySeats { max: 8 }), "{refusal:?}");
    let refusal = sale.hold_refs(stores, "u1", Vec::new()).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::NoSeats), "{refusal:?}");
    assert_eq!((test.keys().await, self::rows(&test).await), (keys, rows));
    sale.hold(stores, "u1", &["A-1"]).await.expect("it is still available");
}

async fn rows(test: &TestStores) -> i64 {
    test.count(
        "SELECT (SELECT count(*) FROM seat_claims) + (SELECT count(*) FROM reservations) + (SELECT count(*) FROM seat_log)
              + (SELECT count(*) FROM reservation_seats) + (SELECT count(*) FROM outbox)",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_seat_named_twice_is_refused_however_it_is_named() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let id = SeatRef::Id(sale.sheet.map.resolve(&sale.seat("A-1")).unwrap().id);
    let seats = vec![sale.seat("A-1"), sale.seat("A-2"), id, sale.seat("A-2")];
    let refusal = sale.hold_refs(&test.stores, "u1", seats).await.unwrap_err();
    assert!(matches!(&refusal, PlaceHoldError::RepeatedSeats(repeats) if repeats == &[2, 3]), "{refusal:?}");
    assert_eq!(test.count("SELECT count(*) FROM seat_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_event_has_no_seats() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let nowhere = Sale { event: domain::id::EventId(domain::runtime::clock::new_uuid()), sheet: sale.sheet.clone() };
    let refusal = nowhere.hold(&test.stores, "u1", &["A-1"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::UnknownEvent), "{refusal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hold_answers_is_what_is_stored() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B2", "A", 12), ("B1", "A", 12)])).await;
    let held = sale.hold(&test.stores, "u1", &["B2/A-10", "B1/A-2", "B2/A-9"]).await.unwrap();
    let stored = test.stores.pg.find_reservation(held.id).await.unwrap().unwrap();
    assert_eq!(held.seats, stored.seats, "in the venue's seat order");
    let names: Vec<_> =
        held.seats.iter().map(|seat| format!("{}/{}", seat.block.as_str(), seat.column.as_str())).collect();
    assert_eq!(names, ["B1/2", "B2/9", "B2/10"]);
    assert_eq!((held.amount, held.amount.amount), (stored.amount, 150_000));
    assert_eq!(
        (held.created_at, held.expires_at, held.extends_until),
        (stored.created_at, stored.expires_at, stored.extends_until)
    );
    assert_eq!(to_ms(held.expires_at) - to_ms(held.created_at), 600_000);
    assert_eq!((held.state, held.generation), (stored.state, stored.generation));
}

// A-T1, at the level of flows: the venue's wall clock, whatever this machine's zone.
#[tokio::test(flavor = "multi_thread")]
async fn holds_begin_and_end_with_the_sales_window() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let zone = VenueZone::parse("Asia/Seoul").unwrap();
    let now = stores.pg.now().await.unwrap();
    let in_hours = |hours| zone.local_text(now + chrono::Duration::hours(hours));
    let plan = SalePlan { sales_open_at: Some(in_hours(1)), sales_close_at: Some(in_hours(2)), ..SalePlan::default() };
    let sale = Sale::open(stores, plan).await;
    let opens = sale.sheet.event.sales_open_at.as_ref().unwrap().at;
    let closes = sale.sheet.event.sales_close_at.as_ref().unwrap().at;
    let refusal = sale.hold(stores, "u1", &["A-1"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::NotOnSale(Some(at)) if at == opens), "{refusal:?}");
    assert_eq!(test.count("SELECT count(*) FROM seat_claims").await, 0);

    let to_opening = to_ms(opens) - to_ms(stores.pg.now().await.unwrap());
    test.advance(to_opening);
    sale.look_again(stores).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.expect("the sale is open");
    assert!(held.created_at >= opens);
    assert_eq!(to_ms(held.expires_at) - to_ms(held.created_at), 600_000);

    // A minute before the end: the deadline is the sale's end, and no extension goes past it.
    test.advance(to_ms(closes) - 60_000 - to_ms(stores.pg.now().await.unwrap()));
    sale.look_again(stores).await;
    let last = sale.hold(stores, "u2", &["A-2"]).await.unwrap();
    assert_eq!((rfc3339_ms(last.expires_at), last.extends_until), (rfc3339_ms(closes), closes));

    test.advance(to_ms(closes) - to_ms(stores.pg.now().await.unwrap()));
    // This process still trusts what it saw a moment ago; Postgres's statement does not.
    let refusal = sale.hold(stores, "u3", &["A-3"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::SalesClosed), "{refusal:?}");
    assert!(matches!(sale.sheet.event.sale_at(closes), SaleState::Over));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_goes_by_the_event_as_it_is_not_as_a_process_remembers_it() {
    let test = TestStores::start().await;
    let (here, there) = (&test.stores, test.another_process());
    let sale = Sale::open(here, SalePlan::default()).await;
    sale.hold(here, "u1", &["A-1"]).await.unwrap();
    let dearer = BTreeMap::from([("Seat".to_owned(), 70_000)]);
    let change = EventChange { prices: Some(dearer), ..EventChange::default() };
    change_event(&there, sale.event, change).await.unwrap();
    let held = sale.hold(here, "u1", &["A-2", "A-3"]).await.unwrap();
    assert_eq!(held.amount.amount, 140_000, "the new price");
    end_sale(&there, sale.event).await.unwrap();
    let refusal = sale.hold(here, "u1", &["A-4"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::SalesClosed), "{refusal:?}");
    assert_sound(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_not_open_sells_nothing() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let event = Sale::draft(stores, SalePlan::default()).await;
    let sale = Sale::of(stores, event).await;
    let refusal = sale.hold(stores, "u1", &["A-1"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::NotOnSale(None)), "{refusal:?}");
    start_sale(stores, event).await.unwrap();
    sale.look_again(stores).await;
    let refusal = sale.hold(stores, "u1", &["A-1"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::NotOnSale(None)), "preparing: {refusal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_hold_frees_its_seats_at_once_and_only_for_its_buyer() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default()).await;
    let held = sale.hold(stores, "u1", &["A-1", "A-2"]).await.unwrap();
    let stranger = Access::Own(holdfast_tests::sale::a_buyer("u2"));
    assert!(cancel_reservation(stores, &stranger, held.id, CancelReason::User).await.is_err());
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Held);
    let own = Access::Own(held.buyer.clone());
    for _ in 0..2 {
        let cancelled = cancel_reservation(stores, &own, held.id, CancelReason::User).await.unwrap();
        assert_eq!(
            (cancelled.status(), cancelled.cancel_reason()),
            (ReservationStatus::Cancelled, Some(CancelReason::User))
        );
    }
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Available);
    sale.hold(stores, "u2", &["A-2", "A-1"]).await.unwrap();
    assert_settled(&test, &ScriptedProvider::default()).await;
}
