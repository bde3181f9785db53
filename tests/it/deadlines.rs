//! A deadline is a comparison, not a signal (I3): here no worker runs, and nothing tidies up.

use std::time::Duration;

use domain::flow::expire_reservations::expire_reservations;
use domain::flow::place_hold::PlaceHoldError;
use domain::flow::start_payment::StartPaymentError;
use domain::flow::unhold::{ChangeReservationError, cancel_reservation, extend_reservation};
use domain::flow::{Access, Stores};
use domain::reservation::{CancelReason, ReservationState};
use domain::runtime::clock::Clock;
use domain::seat::SeatStatus;
use domain::store::redis::Redis;
use domain::store::redis::deadlines::SweepSpans;
use domain::time::to_ms;
use holdfast_tests::audit::assert_sound;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::settle;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until_within;

const GONE: CancelReason = CancelReason::Expired;

/// Moves time to so many ms before an instant.
async fn advance_to(test: &TestStores, at: domain::time::Instant, before_ms: i64) {
    let now = test.stores.pg.now().await.unwrap();
    test.advance(to_ms(at) - before_ms - to_ms(now));
}

async fn a_dead_hold_is_the_next_buyers(test: &TestStores, stores: &Stores) {
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(6_000)).await;
    let dead = sale.hold(stores, "u1", &["A-5", "A-6"]).await.unwrap();
    test.advance(5_000);
    assert_eq!(sale.status(stores, "A-5").await, SeatStatus::Held);
    assert!(matches!(sale.hold(stores, "u2", &["A-5"]).await, Err(PlaceHoldError::Unavailable(_))));
    test.advance(3_000);
    assert_eq!(sale.status(stores, "A-5").await, SeatStatus::Available);
    let next = sale.hold(stores, "u2", &["A-5", "A-7"]).await.expect("available means that it can be held");
    pay(stores, next.id, "tok_ok").await.expect("and paid for");
    // The dead reservation is over in the same transaction; its other seat is available too.
    let (status, reason): (String, String) =
        sqlx::query_as("SELECT status, cancel_reason FROM reservations WHERE id = $1")
            .bind(dead.id.0)
            .fetch_one(&test.sql)
            .await
            .unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("CANCELLED", "expired"));
    sale.hold(stores, "u3", &["A-6"]).await.unwrap();
    let refusal = pay(stores, dead.id, "tok_ok").await.unwrap_err();
    assert!(matches!(refusal, StartPaymentError::Reservation(ChangeReservationError::Gone(GONE))), "{refusal:?}");
    assert_sound(test).await;
}

// A-D6
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_hold_is_the_next_buyers_though_no_worker_runs() {
    let test = TestStores::start().await;
    a_dead_hold_is_the_next_buyers(&test, &test.stores).await;
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}

// A-D6 without Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_hold_is_the_next_buyers_though_neither_worker_nor_redis_run() {
    let test = TestStores::start().await;
    a_dead_hold_is_the_next_buyers(&test, &test.a_process_without_redis()).await;
}

// A-D4
#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_or_extension_cannot_touch_the_next_buyers_hold() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let mut plan = SalePlan::default().ttl_ms(6_000);
    plan.rules.extensions_max = 1;
    let sale = Sale::open(stores, plan).await;
    let first = sale.hold(stores, "u1", &["A-4"]).await.unwrap();
    test.advance(8_000);
    let second = sale.hold(&test.another_process(), "u2", &["A-4"]).await.unwrap();
    let own = Access::Own(first.buyer.clone());
    for _ in 0..2 {
        let refusal = cancel_reservation(stores, &own, first.id, CancelReason::User).await.unwrap_err();
        assert!(matches!(refusal, ChangeReservationError::Gone(GONE)), "{refusal:?}");
    }
    let refusal = extend_reservation(stores, &own, first.id).await.unwrap_err();
    assert!(matches!(refusal, ChangeReservationError::Gone(GONE)), "{refusal:?}");
    let (owner, deadline): (uuid::Uuid, i64) =
        sqlx::query_as("SELECT reservation_id, (extract(epoch FROM expires_at) * 1000)::bigint FROM seat_claims")
            .fetch_one(&test.sql)
            .await
            .unwrap();
    assert_eq!((owner, deadline), (second.id.0, to_ms(second.expires_at)));
    settle(&test, stores, &ScriptedProvider::default()).await;
}

/// Each reading carries the clock that it was made by: Pending before the deadline, over at it, to the millisecond.
#[tokio::test(flavor = "multi_thread")]
async fn at_its_deadline_a_reservation_is_over_in_every_reading() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default()).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    advance_to(&test, held.expires_at, 40).await;
    let mut seen = [0_u32; 2];
    until_within(Duration::from_secs(5), "readings on both sides of the deadline", async || {
        let read = stores.pg.find_reservation(held.id).await.unwrap().unwrap();
        let is_over = read.read_at >= read.expires_at;
        let over = ReservationState::Cancelled { at: held.expires_at, reason: GONE };
        assert_eq!(read.state, if is_over { over } else { ReservationState::Pending }, "at {}", read.read_at);
        seen[usize::from(is_over)] += 1;
        (seen[1] > 20).then_some(())
    })
    .await;
    assert!(seen[0] > 0, "no reading before the deadline");
}

/// The next buyer is refused until the deadline and served from it: its reservation begins at or after it.
#[tokio::test(flavor = "multi_thread")]
async fn no_seat_changes_hands_before_the_deadline_nor_waits_long_after_it() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let blind = test.a_process_without_redis();
    for (seat, stores) in [("A-1", &test.stores), ("A-2", &blind)] {
        let held = sale.hold(stores, "u1", &[seat]).await.unwrap();
        advance_to(&test, held.expires_at, 60).await;
        let mut refused = 0;
        let next = until_within(Duration::from_secs(5), "the next buyer's turn", async || {
            match sale.hold(stores, "u2", &[seat]).await {
                Ok(next) => Some(next),
                Err(PlaceHoldError::Unavailable(_)) => {
                    refused += 1;
                    None
                }
                Err(other) => panic!("{other:?}"),
            }
        })
        .await;
        assert!(refused > 0, "{seat}: nobody was refused before the deadline");
        let late_ms = to_ms(next.created_at) - to_ms(held.expires_at);
        assert!((0..1_000).contains(&late_ms), "{seat} changed hands {late_ms} ms after the deadline");
    }
    assert_sound(&test).await;
}

// A-P3, its edge: either a whole payment window or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_cannot_be_paid_at_its_deadline() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default().window_ms(20_000)).await;
    let mut held = Vec::new();
    for row in ["A", "B", "C"] {
        for column in 1..=10 {
            held.push(sale.hold(stores, "u1", &[&format!("{row}-{column}")]).await.unwrap());
        }
    }
    let mut paid = [0_u32; 2];
    for held in held {
        // From a little before the deadline to a little after it.
        advance_to(&test, held.expires_at, 30 - i64::from(paid[0] + paid[1]) * 2).await;
        match pay(stores, held.id, "tok_ok").await {
            Ok(payment) => {
                assert!(payment.created_at < held.expires_at, "paid for at {}", payment.created_at);
                assert_eq!(to_ms(payment.deadline) - to_ms(payment.created_at), 20_000, "a full window");
                paid[1] += 1;
            }
            Err(StartPaymentError::Reservation(ChangeReservationError::Gone(GONE))) => {
                assert!(stores.pg.now().await.unwrap() >= held.expires_at, "refused too early");
                paid[0] += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(paid[0] > 0 && paid[1] > 0, "the deadline was never crossed: {paid:?}");
    assert_sound(&test).await;
}

// A-P3: nobody else gets the seat while it is being paid for.
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_window_outlasts_the_holds_deadline_once() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(5_000);
    let payment = pay(stores, held.id, "tok_ok").await.unwrap();
    for _ in 0..14 {
        test.advance(1_000);
        assert!(matches!(sale.hold(stores, "u2", &["A-1"]).await, Err(PlaceHoldError::Unavailable(_))));
        assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Held);
    }
    let again = pay(stores, held.id, "tok_ok").await.unwrap();
    assert_eq!((again.id, again.deadline), (payment.id, payment.deadline), "a second start does not buy more time");
    settle(&test, stores, &ScriptedProvider::default()).await;
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Sold);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_adds_one_ttl_and_never_passes_the_cap() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let mut plan = SalePlan::default().ttl_ms(6_000);
    plan.rules.extensions_max = 1;
    let sale = Sale::open(stores, plan).await;
    let held = sale.hold(stores, "u1", &["A-1", "B-1"]).await.unwrap();
    assert_eq!(to_ms(held.extends_until) - to_ms(held.created_at), 12_000);
    test.advance(4_000);
    let extended = extend_reservation(stores, &Access::Any, held.id).await.unwrap();
    assert!(extended.expires_at > held.expires_at && extended.expires_at <= held.extends_until);
    test.advance(4_000);
    assert!(matches!(sale.hold(stores, "u2", &["B-1"]).await, Err(PlaceHoldError::Unavailable(_))), "it was extended");
    let refusal = extend_reservation(stores, &Access::Any, held.id).await.unwrap_err();
    assert!(matches!(refusal, ChangeReservationError::NoFurtherExtension), "{refusal:?}");
    test.advance(4_000);
    sale.hold(stores, "u2", &["B-1"]).await.expect("past the cap it is dead");
    let refusal = extend_reservation(stores, &Access::Any, held.id).await.unwrap_err();
    assert!(matches!(refusal, ChangeReservationError::Gone(GONE)), "{refusal:?}");
    settle(&test, stores, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_shorter_than_the_gate_is_over_at_its_own_deadline() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let ttl_ms = 1_500;
    assert!(ttl_ms < stores.timing.gate_ms);
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(ttl_ms)).await;
    sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(ttl_ms);
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Available);
    sale.hold(stores, "u2", &["A-1"]).await.expect("the dead hold's seat is the next buyer's at once");
    assert_sound(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_has_passed_in_redis_only_is_looked_at_again_when_postgres_has_it_too() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(6_000)).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    // The same installation, by a Redis whose clock is a minute ahead.
    let (mut ahead, clock) = (test.another_process(), Clock::default());
    clock.advance(60_000);
    ahead.redis = Redis::connect(&test.settings.redis_url, ahead.redis.keys().clone(), clock.clone()).unwrap();
    let spans = SweepSpans { since_ms: 0, grace_ms: 0, lease_ms: 5_000, most: 1_000 };
    let claimed = ahead.redis.sweep(spans).await.unwrap().claimed;
    assert_eq!(claimed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [held.id]);
    assert_eq!(expire_reservations(&ahead, &[held.id]).await.unwrap(), 0);
    for _ in 0..10 {
        assert_eq!(ahead.redis.sweep(spans).await.unwrap().claimed, [], "it would be looked at without end");
    }
    test.advance(6_000);
    clock.advance(6_000);
    let claimed = ahead.redis.sweep(spans).await.unwrap().claimed;
    assert_eq!(claimed.len(), 1);
    assert_eq!(expire_reservations(&ahead, &[held.id]).await.unwrap(), 1);
}
