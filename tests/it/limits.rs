//! Limits of a reservation and of a buyer: parallel requests cannot pass them.

use domain::flow::Stores;
use domain::flow::place_hold::PlaceHoldError;
use holdfast_tests::audit::assert_sound;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;

/// Seats that u1 owns now, by a count of the test's own.
async fn owned(test: &TestStores) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM seat_claims c JOIN reservations r ON r.event_id = c.event_id AND r.id = c.reservation_id
         WHERE r.buyer = 'u1' AND (c.state <> 'held' OR c.expires_at > clock_timestamp() + $1 * interval '1 millisecond')",
    )
    .bind(test.clock.offset_ms())
    .fetch_one(&test.sql)
    .await
    .unwrap()
}

async fn twenty_at_once(processes: [&Stores; 2], sale: &Sale, seats_each: usize) -> Vec<Result<(), PlaceHoldError>> {
    let requests = (0..20).map(|n| {
        let (stores, sale) = (processes[n % 2].clone(), sale.clone());
        let seats: Vec<String> = (0..seats_each).map(|seat| format!("{}-{}", ["A", "B"][seat], n + 3)).collect();
        tokio::spawn(async move {
            let seats: Vec<&str> = seats.iter().map(String::as_str).collect();
            sale.hold(&stores, "u1", &seats).await.map(|_| ())
        })
    });
    futures::future::join_all(requests).await.into_iter().map(Result::unwrap).collect()
}

/// Two are sold to u1 already, of four that it may own.
async fn the_limit_holds(test: &TestStores, processes: [&Stores; 2]) {
    let provider = ScriptedProvider::default();
    let plan = SalePlan::of_rows(&[("B1", "A", 30), ("B1", "B", 30)]).per_buyer(4).ttl_ms(6_000);
    let sale = Sale::open(&test.stores, plan).await;
    let bought = sale.hold(&test.stores, "u1", &["A-1", "A-2"]).await.unwrap();
    let payment = pay(&test.stores, bought.id, "tok_ok").await.unwrap();
    finalize(&test.stores, &provider, payment.id).await;
    for seats_each in [1, 2] {
        let answers = twenty_at_once(processes, &sale, seats_each).await;
        let won = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(won * seats_each, 2, "{answers:?}");
        for refusal in answers.into_iter().filter_map(Result::err) {
            assert!(matches!(refusal, PlaceHoldError::BuyerLimit { max: 4, owned: 2..=4 }), "{refusal:?}");
        }
        assert_eq!(owned(test).await, 4);
        sale.hold(processes[0], "u2", &["B-30"]).await.expect("another buyer's limit is its own");
        // Dead holds count no more, at once and without a worker.
        test.advance(6_000);
        let again = sale.hold(processes[1], "u1", &["B-29", "B-28"]).await.expect("the dead ones no longer count");
        assert_eq!(again.seats.len(), 2);
        test.advance(6_000);
        assert_sound(test).await;
    }
    settle(test, &test.another_process_after_a_loss().await, &provider).await;
}

// A-Q2
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_cannot_pass_its_limit_by_parallel_requests() {
    let test = TestStores::start().await;
    let other = test.another_process();
    the_limit_holds(&test, [&test.stores, &other]).await;
}

// A-Q2 without the gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_cannot_pass_its_limit_without_redis_either() {
    let test = TestStores::start().await;
    let (one, two) = (test.a_process_without_redis(), test.a_process_without_redis());
    the_limit_holds(&test, [&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_for_the_limit_takes_no_seat_from_others() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().per_buyer(2)).await;
    sale.hold(&test.stores, "u1", &["A-1", "A-2"]).await.unwrap();
    let refusal = sale.hold(&test.stores, "u1", &["A-3"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::BuyerLimit { max: 2, owned: 2 }), "{refusal:?}");
    sale.hold(&test.stores, "u2", &["A-3"]).await.expect("the gate is given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_has_at_most_as_many_seats_as_the_event_allows() {
    let test = TestStores::start().await;
    let mut plan = SalePlan::default();
    plan.rules.seats_per_reservation_max = 2;
    let sale = Sale::open(&test.stores, plan).await;
    let refusal = sale.hold(&test.stores, "u1", &["A-1", "A-2", "A-3"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::TooManySeats { max: 2 }), "{refusal:?}");
    sale.hold(&test.stores, "u1", &["A-1", "A-2"]).await.unwrap();
}
