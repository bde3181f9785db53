//! Expiring by the flow: twice, late, by many at once, of what was paid, extended or held again meanwhile.

use domain::flow::expire_reservations::expire_reservations;
use domain::flow::unhold::{cancel_reservation, extend_reservation};
use domain::flow::{Access, Stores};
use domain::id::ReservationId;
use domain::reservation::{CancelReason, ReservationState};
use domain::seat::SeatStatus;
use domain::store::redis::deadlines::SweepSpans;
use domain::time::to_ms;
use futures::StreamExt as _;
use holdfast_tests::audit::{assert_settled, assert_sound};
use holdfast_tests::provider::{Answer, Ask, ScriptedProvider};
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;

const RELEASES: &str = "SELECT count(*) FROM seat_log WHERE after = 'available'";

/// What a sweep of the workers does in one look, all grace aside. Returns how many reservations expired.
async fn sweep(stores: &Stores) -> usize {
    let spans = SweepSpans { since_ms: 0, grace_ms: 0, lease_ms: 5_000, most: 1_000 };
    let claimed = stores.redis.sweep(spans).await.unwrap().claimed;
    let claimed: Vec<ReservationId> = claimed.into_iter().map(|(id, _)| id).collect();
    expire_reservations(stores, &claimed).await.unwrap()
}

// A-E6: one release, however many heard of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_many_processes_hear_releases_each_seat_once() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(6_000)).await;
    let held = sale.hold(&test.stores, "u1", &["A-1", "A-2", "A-3", "A-4", "A-5"]).await.unwrap();
    let client = redis::Client::open(test.settings.redis_url.as_str()).unwrap();
    let mut changes = client.get_async_pubsub().await.unwrap();
    changes.subscribe(test.key(&format!("seatChanges:{}:B1", sale.sheet.event.date_key))).await.unwrap();
    test.advance(6_000);
    let expiring = (0..4).map(|_| {
        let stores = test.another_process();
        tokio::spawn(async move { expire_reservations(&stores, &[held.id]).await.unwrap() })
    });
    let expired: usize = futures::future::join_all(expiring).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(expired, 1);
    assert_eq!(test.count(RELEASES).await, 5);
    // One change that frees all five; whatever else follows is this test's own hold.
    sale.hold(&test.stores, "u2", &["B-1"]).await.unwrap();
    let mut messages = changes.into_on_message();
    let mut freed = Vec::new();
    loop {
        let message = messages.next().await.unwrap();
        let change: serde_json::Value = serde_json::from_slice(message.get_payload_bytes()).unwrap();
        match change["status"].as_str() {
            Some("available") => freed.push(change["seats"].as_array().unwrap().len()),
            _ => break,
        }
    }
    assert_eq!(freed, [5]);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

// A-E7: in each way in which a reservation ends, all of its seats come back, no more and no fewer.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_a_reservation_gives_back_all_its_seats_and_no_others() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::of_rows(&[("B1", "A", 6), ("B2", "A", 6)]).ttl_ms(6_000)).await;
    sale.hold(stores, "u2", &["B1/A-6", "B2/A-6"]).await.unwrap();
    let seats = ["B1/A-1", "B1/A-2", "B1/A-3", "B1/A-4", "B2/A-1", "B2/A-2", "B2/A-3"];
    for way in ["deadline", "payment", "buyer"] {
        let others = sale.hold(stores, "u3", &["B1/A-5", "B2/A-5"]).await.unwrap();
        let held = sale.hold(stores, "u1", &seats).await.unwrap();
        let released = test.count(RELEASES).await;
        match way {
            "deadline" => {
                // The others live longer: only the reservation at its deadline goes.
                pay(stores, others.id, "tok_ok").await.unwrap();
                test.advance(6_000);
                assert_eq!(expire_reservations(stores, &[others.id, held.id]).await.unwrap(), 1);
                cancel_after_decline(stores, &provider, others.id).await;
                assert_eq!(test.count(RELEASES).await, released + 9);
            }
            "payment" => {
                let payment = pay(stores, held.id, "tok_ok").await.unwrap();
                provider.script(Ask::Capture, [Answer::Decline]);
                finalize(stores, &provider, payment.id).await;
                assert_eq!(test.count(RELEASES).await, released + 7);
                cancel_reservation(stores, &Access::Any, others.id, CancelReason::User).await.unwrap();
            }
            _ => {
                cancel_reservation(stores, &Access::Any, held.id, CancelReason::User).await.unwrap();
                assert_eq!(test.count(RELEASES).await, released + 7);
                cancel_reservation(stores, &Access::Any, others.id, CancelReason::User).await.unwrap();
            }
        }
        for seat in seats {
            assert_eq!(sale.status(stores, seat).await, SeatStatus::Available, "{way}: {seat}");
        }
        assert_sound(&test).await;
    }
    settle(&test, stores, &provider).await;
}

async fn cancel_after_decline(stores: &Stores, provider: &ScriptedProvider, id: ReservationId) {
    let payment = stores.pg.find_reservation(id).await.unwrap().unwrap().payments[0].id;
    provider.script(Ask::Capture, [Answer::Decline]);
    finalize(stores, provider, payment).await;
}

// A-E8
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_reservation_never_expires() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(6_000)).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(5_000);
    let payment = pay(stores, held.id, "tok_ok").await.unwrap();
    finalize(stores, &provider, payment.id).await;
    test.advance(60_000);
    sqlx::query("UPDATE reservations SET expires_at = created_at").execute(&test.sql).await.unwrap();
    // As if an old writer had put it back: the index is not believed.
    let mut redis = test.redis().await;
    let index = test.deadlines_key();
    for _ in 0..20 {
        let _: i64 =
            redis::cmd("ZADD").arg(&index).arg(1).arg(held.id.to_string()).query_async(&mut redis).await.unwrap();
        assert_eq!(sweep(stores).await, 0);
        assert_eq!(expire_reservations(stores, &[held.id]).await.unwrap(), 0);
    }
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Sold);
    assert_eq!(test.count(RELEASES).await, 0);
    assert_settled(&test, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_whose_seats_are_committed_never_expires() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(6_000)).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(stores, held.id, "tok_ok").await.unwrap();
    provider.script(Ask::Capture, [Answer::Fail]);
    let progress =
        domain::flow::finalize_payment::finalize_payment(stores, &provider.gateways(), payment.id).await.unwrap();
    assert!(matches!(progress, domain::flow::finalize_payment::PaymentProgress::Unknown { .. }), "{progress:?}");
    test.advance(3_600_000);
    assert_eq!(expire_reservations(stores, &[held.id]).await.unwrap(), 0);
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Held, "it shows as held, however long it takes");
    assert!(sale.hold(stores, "u2", &["A-1"]).await.is_err());
    let read = stores.pg.find_reservation(held.id).await.unwrap().unwrap();
    assert!(matches!(read.state, ReservationState::Committed { .. }), "{:?}", read.state);
    settle(&test, stores, &provider).await;
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Sold);
}

// A-E9
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_of_an_earlier_hold_cannot_touch_a_later_one() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000)).await;
    let first = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(2_000);
    cancel_reservation(stores, &Access::Any, first.id, CancelReason::User).await.unwrap();
    test.advance(2_000);
    let second = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(2_000);
    for _ in 0..3 {
        assert_eq!(expire_reservations(stores, &[first.id]).await.unwrap(), 0);
    }
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Held);
    assert_settled(&test, &ScriptedProvider::default()).await;
    test.advance(to_ms(second.expires_at) - to_ms(stores.pg.now().await.unwrap()));
    assert_eq!(sweep(stores).await, 1);
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Available);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_at_a_deadline_that_has_moved_waits_for_the_new_one() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let mut plan = SalePlan::default().ttl_ms(6_000).window_ms(6_000);
    plan.rules.extensions_max = 1;
    let sale = Sale::open(stores, plan).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(4_000);
    let extended = extend_reservation(stores, &Access::Any, held.id).await.unwrap();
    test.advance(2_000);
    // The bridge heard of the old deadline, or a warm-up has registered it: the flow looks, and puts the entry right.
    stores.redis.register_deadlines(&[(held.id, to_ms(held.expires_at))]).await.unwrap();
    assert_eq!(sweep(stores).await, 0);
    assert_settled(&test, &ScriptedProvider::default()).await;
    test.advance(to_ms(extended.expires_at) - to_ms(stores.pg.now().await.unwrap()));
    assert_eq!(sweep(stores).await, 1);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_sweeps_one_gets_each_deadline_and_none_is_lost() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(6_000)).await;
    for row in ["A", "B", "C"] {
        for column in 1..=10 {
            sale.hold(&test.stores, "u1", &[&format!("{row}-{column}")]).await.unwrap();
        }
    }
    test.advance(6_000);
    let sweeping = (0..4).map(|_| {
        let stores = test.another_process();
        tokio::spawn(async move { sweep(&stores).await })
    });
    let expired: usize = futures::future::join_all(sweeping).await.into_iter().map(Result::unwrap).sum();
    assert_eq!((expired, test.count(RELEASES).await), (30, 30));
    assert_settled(&test, &ScriptedProvider::default()).await;
}

/// A worker that claims a deadline and dies keeps it from the others for the lease only.
#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_deadline_comes_again_after_its_lease() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000)).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(6_000);
    let (_, claimed) = stores.redis.claim_deadlines(&[held.id], 5_000).await.unwrap();
    assert_eq!(claimed, [(held.id, to_ms(held.expires_at))]);
    assert_eq!(stores.redis.claim_deadlines(&[held.id], 5_000).await.unwrap().1, []);
    assert_eq!(sweep(stores).await, 0, "it is leased");
    test.advance(5_000);
    assert_eq!(sweep(stores).await, 1);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_index_but_nowhere_else_leaves_it() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    Sale::open(stores, SalePlan::default()).await;
    let orphan = ReservationId(domain::runtime::clock::new_uuid());
    stores.redis.register_deadlines(&[(orphan, 1)]).await.unwrap();
    until("the orphan to leave", async || {
        sweep(stores).await;
        (stores.redis.count_deadlines(0).await.unwrap().0 == 0).then_some(())
    })
    .await;
    assert_settled(&test, &ScriptedProvider::default()).await;
}
