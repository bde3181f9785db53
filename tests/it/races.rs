//! Many buyers at once: one winner for each seat, no deadlock, nobody waits long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::flow::place_hold::PlaceHoldError;
use domain::flow::start_payment::StartPaymentError;
use domain::flow::unhold::cancel_reservation;
use domain::flow::{Access, Stores};
use domain::reservation::{CancelReason, Reservation};
use holdfast_tests::audit::{assert_settled, assert_sound};
use holdfast_tests::provider::{Ask, ScriptedProvider};
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

type Held = Result<Reservation, PlaceHoldError>;

/// All requests at once, through two processes in turn; each with the time it took.
async fn all_at_once(
    processes: [&Stores; 2],
    sale: &Sale,
    requests: Vec<(String, Vec<String>)>,
) -> Vec<(Held, Duration)> {
    let barrier = Arc::new(Barrier::new(requests.len()));
    let mut running = JoinSet::new();
    for (index, (buyer, seats)) in requests.into_iter().enumerate() {
        let (stores, sale, barrier) = (processes[index % 2].clone(), sale.clone(), Arc::clone(&barrier));
        running.spawn(async move {
            let seats: Vec<&str> = seats.iter().map(String::as_str).collect();
            barrier.wait().await;
            let began = Instant::now();
            (sale.hold(&stores, &buyer, &seats).await, began.elapsed())
        });
    }
    running.join_all().await
}

async fn one_winner_in_each_round(test: &TestStores, processes: [&Stores; 2], sale: &Sale, rounds: usize) {
    for round in 1..=rounds {
        let seat = format!("A-{round}");
        let requests = (0..200).map(|buyer| (format!("u{buyer}"), vec![seat.clone()])).collect();
        let answers = all_at_once(processes, sale, requests).await;
        let (won, lost): (Vec<Held>, Vec<Held>) = answers.into_iter().map(|(held, _)| held).partition(Result::is_ok);
        assert_eq!(won.len(), 1, "round {round}");
        for refusal in lost {
            let refusal = refusal.unwrap_err();
            assert!(matches!(&refusal, PlaceHoldError::Unavailable(conflicts) if conflicts.len() == 1), "{refusal:?}");
        }
        let winner = won.into_iter().next().unwrap().unwrap();
        let owner: String = sqlx::query_scalar("SELECT buyer FROM reservations WHERE id = $1")
            .bind(winner.id.0)
            .fetch_one(&test.sql)
            .await
            .unwrap();
        assert_eq!(owner, winner.buyer.as_str());
    }
    assert_eq!(test.count("SELECT count(*) FROM reservations").await, i64::try_from(rounds).unwrap());
}

// A-D1: 200 buyers, two processes, one seat.
#[tokio::test(flavor = "multi_thread")]
async fn a_seat_that_two_hundred_buyers_want_has_one_winner() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 10)])).await;
    let other = test.another_process();
    one_winner_in_each_round(&test, [&test.stores, &other], &sale, 10).await;
    assert_settled(&test, &ScriptedProvider::default()).await;
}

// A-D1 where Redis turns nobody away: the claims' primary key decides alone.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_alone_has_one_winner_too() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 10)])).await;
    let (one, two) = (test.a_process_without_redis(), test.a_process_without_redis());
    one_winner_in_each_round(&test, [&one, &two], &sale, 4).await;
    assert_sound(&test).await;
    settle(&test, &test.another_process_after_a_loss().await, &ScriptedProvider::default()).await;
}

async fn overlapping_holds(test: &TestStores, processes: [&Stores; 2], sale: &Sale, rounds: usize) {
    let forward: Vec<String> = (1..=8).map(|seat| format!("A-{seat}")).collect();
    let backward: Vec<String> = forward.iter().rev().cloned().collect();
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let before = test.count(deadlocks).await;
    for round in 0..rounds {
        let requests = vec![
            ("u1".to_owned(), forward.clone()),
            ("u2".to_owned(), backward.clone()),
            ("u3".to_owned(), vec!["A-4".to_owned(), "A-2".to_owned()]),
            ("u4".to_owned(), vec!["A-8".to_owned(), "A-1".to_owned()]),
        ];
        let mut won = Vec::new();
        for (held, took) in all_at_once(processes, sale, requests).await {
            assert!(took < Duration::from_secs(2), "round {round}: an answer took {took:?}");
            match held {
                Ok(held) => won.push(held),
                Err(PlaceHoldError::Unavailable(_)) => {}
                Err(other) => panic!("round {round}: {other:?}"),
            }
        }
        let mut seats: Vec<_> = won.iter().flat_map(|held| held.seats.iter().map(|seat| seat.id)).collect();
        let all = seats.len();
        seats.sort_unstable();
        seats.dedup();
        assert_eq!(seats.len(), all, "round {round}: a seat has two owners");
        for held in won {
            cancel_reservation(processes[round % 2], &Access::Any, held.id, CancelReason::User).await.unwrap();
        }
    }
    // A session adds its deadlocks to the statistics at its end, if not before.
    for stores in processes {
        stores.pg.pool().close().await;
    }
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'";
    until("the sessions to end", async || (test.count(sessions).await == 0).then_some(())).await;
    assert_eq!(test.count(deadlocks).await, before);
}

// A-D5
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_holds_never_deadlock() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let (one, other) = (test.another_process(), test.another_process());
    test.stores.pg.pool().close().await;
    overlapping_holds(&test, [&one, &other], &sale, 60).await;
    assert_settled(&test, &ScriptedProvider::default()).await;
}

// A-D5 where all of them meet in Postgres.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_holds_never_deadlock_in_postgres() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let (one, two) = (test.a_process_without_redis(), test.a_process_without_redis());
    test.stores.pg.pool().close().await;
    overlapping_holds(&test, [&one, &two], &sale, 60).await;
    assert_sound(&test).await;
}

// A-D5 and A-D6 together: dead holds are taken over while others want them too.
#[tokio::test(flavor = "multi_thread")]
async fn dead_holds_are_taken_over_without_deadlock_and_by_one_buyer() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(1_000)).await;
    let (one, two) = (test.a_process_without_redis(), test.a_process_without_redis());
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let names = |seats: std::ops::RangeInclusive<usize>| seats.map(|seat| format!("A-{seat}")).collect::<Vec<_>>();
    for round in 0..20 {
        let mut requests = vec![("u1".to_owned(), names(1..=5)), ("u2".to_owned(), names(3..=8))];
        requests.push(("u3".to_owned(), names(1..=8).into_iter().rev().collect()));
        requests.push(("u4".to_owned(), vec!["A-1".to_owned(), "A-8".to_owned()]));
        let won = all_at_once([&one, &two], &sale, requests).await.into_iter().filter(|(held, _)| held.is_ok()).count();
        assert_eq!(won, 1, "round {round}: any two of them share a seat");
        assert_sound(&test).await;
        test.advance(1_000);
    }
    for stores in [&one, &two] {
        stores.pg.pool().close().await;
    }
    assert_eq!(test.count(deadlocks).await, 0);
}

// A-D9
#[tokio::test(flavor = "multi_thread")]
async fn ten_payments_started_at_once_are_one() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let other = test.another_process();
    let held = sale.hold(&test.stores, "u1", &["A-6"]).await.unwrap();
    let starting = (0..10).map(|n| {
        let stores = if n % 2 == 0 { test.stores.clone() } else { other.clone() };
        tokio::spawn(async move { pay(&stores, held.id, "tok_ok").await })
    });
    let started: Vec<_> = futures::future::join_all(starting).await.into_iter().map(Result::unwrap).collect();
    let ids: Vec<_> = started.into_iter().map(|payment: Result<_, StartPaymentError>| payment.unwrap().id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(test.count("SELECT count(*) FROM payments").await, 1);
    let provider = ScriptedProvider::default();
    let finalizing = (0..10).map(|n| {
        let stores = if n % 2 == 0 { test.stores.clone() } else { other.clone() };
        let (provider, id) = (provider.clone(), ids[0]);
        tokio::spawn(async move { finalize(&stores, &provider, id).await })
    });
    for ended in futures::future::join_all(finalizing).await {
        assert_eq!(ended.unwrap(), Some(domain::payment::PaymentStatus::Captured));
    }
    assert_eq!(provider.entry(ids[0]).unwrap().captures, 1);
    assert!(provider.asked().iter().all(|(_, key)| *key == ids[0]), "one key");
    assert!(provider.asked().iter().all(|(ask, _)| matches!(ask, Ask::Authorize | Ask::Capture)));
    settle(&test, &test.stores, &provider).await;
}
