//! Seats that an operator keeps from sale.

use std::sync::Arc;

use domain::flow::block_seats::{BlockOrder, BlockSeatsError, block_seats};
use domain::flow::open_event::open_event;
use domain::flow::place_hold::PlaceHoldError;
use domain::flow::set_up_event::start_sale;
use domain::flow::{FaultPoint, Faults};
use domain::seat::SeatStatus;
use domain::store::pg::claims::Blocking;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::settle;
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;
use tokio::sync::Notify;

fn order(sale: &Sale, seats: &[&str], blocking: Blocking) -> BlockOrder {
    BlockOrder {
        event: sale.event,
        seats: seats.iter().map(|seat| sale.seat(seat)).collect(),
        blocking,
        actor: "key:test".to_owned(),
        reason: "the camera stands here".to_owned(),
    }
}

#[tokio::test]
async fn a_blocked_seat_cannot_be_held_until_it_is_unblocked() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, Default::default()).await;
    block_seats(&test.stores, order(&sale, &["A-1", "A-2"], Blocking::Block)).await.unwrap();
    assert_eq!(sale.bucket_status(&test, "A-1").await.as_deref(), Some("blocked"));
    let refused = sale.hold(&test.stores, "anna", &["A-1", "A-3"]).await;
    let Err(PlaceHoldError::Unavailable(conflicts)) = refused else { panic!("{refused:?}") };
    assert_eq!(conflicts.iter().map(|it| it.status).collect::<Vec<_>>(), [SeatStatus::Blocked]);
    let without_redis = test.a_process_without_redis();
    assert!(matches!(sale.hold(&without_redis, "anna", &["A-2"]).await, Err(PlaceHoldError::Unavailable(_))));

    // A repeat changes nothing; what is not blocked is left alone.
    block_seats(&test.stores, order(&sale, &["A-1"], Blocking::Block)).await.unwrap();
    block_seats(&test.stores, order(&sale, &["A-1", "A-4"], Blocking::Unblock)).await.unwrap();
    assert_eq!(sale.bucket_status(&test, "A-1").await.as_deref(), Some("available"));
    sale.hold(&test.stores, "anna", &["A-1"]).await.unwrap();
    open_event(&test.stores, sale.event).await.unwrap();
    assert_eq!(test.count("SELECT count(*) FROM outbox").await, 0);
    assert_eq!(sale.bucket_status(&test, "A-2").await.as_deref(), Some("blocked"));
    assert_eq!(test.count("SELECT count(*) FROM seat_log WHERE reason = 'the camera stands here'").await, 3);
}

#[tokio::test]
async fn seats_are_blocked_all_or_none_and_never_under_a_buyer() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, holdfast_tests::sale::SalePlan::default().ttl_ms(10_000)).await;
    sale.hold(&test.stores, "anna", &["B-2"]).await.unwrap();
    let refused = block_seats(&test.stores, order(&sale, &["B-1", "B-2"], Blocking::Block)).await;
    let Err(BlockSeatsError::Owned(owned)) = refused else { panic!("{refused:?}") };
    assert_eq!(owned.iter().map(|(_, status)| *status).collect::<Vec<_>>(), [SeatStatus::Held]);
    assert_eq!(sale.status(&test.stores, "B-1").await, SeatStatus::Available);
    // At its deadline a hold is dead for an operator too.
    test.advance(10_000);
    block_seats(&test.stores, order(&sale, &["B-1", "B-2"], Blocking::Block)).await.unwrap();
    assert_eq!(sale.status(&test.stores, "B-2").await, SeatStatus::Blocked);
}

#[tokio::test]
async fn blocking_seats_beside_an_opening_leaves_its_job_in_the_outbox() {
    let test = TestStores::start().await;
    let event = Sale::draft(&test.stores, Default::default()).await;
    // This process still remembers the draft when the sale starts.
    test.stores.book.sheet(event).await.unwrap();
    start_sale(&test.stores, event).await.unwrap();
    let sale = Sale::of(&test.another_process(), event).await;
    block_seats(&test.stores, order(&sale, &["A-1"], Blocking::Block)).await.unwrap();
    assert_eq!(test.count("SELECT count(*) FROM outbox").await, 1);
    open_event(&test.stores, event).await.unwrap();
    assert_eq!(test.count("SELECT count(*) FROM outbox").await, 0);
    assert_eq!(test.count("SELECT count(*) FROM events WHERE status = 'on_sale'").await, 1);
    assert_eq!(sale.bucket_status(&test, "A-1").await.as_deref(), Some("blocked"));
}

/// A hold that died left its gate; the operator's block shows at once, and after the gate would have opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_nobody_takes_away_does_not_hide_who_owns_the_seat() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mut doomed = test.another_process();
    let reached = Arc::new(Notify::new());
    let notify = Arc::clone(&reached);
    doomed.faults = Faults::crash_where(move |point| {
        let crash = point == FaultPoint::HoldGateTaken;
        if crash {
            notify.notify_one();
        }
        crash
    });
    tokio::select! {
        held = sale.hold(&doomed, "u1", &["A-1"]) => panic!("{held:?}"),
        () = reached.notified() => {}
    }
    block_seats(&test.stores, order(&sale, &["A-1"], Blocking::Block)).await.unwrap();
    assert_eq!(sale.bucket_status(&test, "A-1").await.as_deref(), Some("blocked"));
    test.advance(test.stores.timing.gate_ms);
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}
