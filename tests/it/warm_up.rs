//! Redis may be lost at any moment: warm-up rebuilds it, also twice at once, interrupted, and under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::flow::place_hold::PlaceHoldError;
use domain::flow::warm_up::{WarmUpError, warm_up};
use domain::flow::{FaultPoint, Faults};
use domain::seat::SeatStatus;
use holdfast_tests::audit::{assert_settled, assert_sound};
use holdfast_tests::provider::{Answer, Ask, ScriptedProvider};
use holdfast_tests::repair::{finalize, run_jobs, settle, sweep_deadlines};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;

// A-D8: 30 of 100 sold, 5 being paid for; everybody wants them while Redis is rebuilt.
#[tokio::test(flavor = "multi_thread")]
async fn no_sold_seat_is_held_while_a_lost_redis_is_rebuilt() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let plan = SalePlan { price: 1_000, ..SalePlan::of_rows(&[("B1", "A", 100)]) };
    let sale = Sale::open(&test.stores, plan).await;
    let taken: Vec<String> = (1..=35).map(|column| format!("A-{column}")).collect();
    for (index, seat) in taken.iter().enumerate() {
        let held = sale.hold(&test.stores, "owner", &[seat]).await.unwrap();
        let payment = pay(&test.stores, held.id, "tok_ok").await.unwrap();
        if index < 30 {
            finalize(&test.stores, &provider, payment.id).await;
        }
    }
    test.lose_redis().await;
    let (one, two) = (test.another_process(), test.another_process());
    let done = Arc::new(AtomicBool::new(false));
    let hammering: Vec<_> = (0..20)
        .map(|client| {
            let (stores, sale, taken) = ([&one, &two][client % 2].clone(), sale.clone(), taken.clone());
            let done = Arc::clone(&done);
            tokio::spawn(async move {
                let mut asked = 0;
                while !done.load(Ordering::Relaxed) {
                    let seat = &taken[(client * 7 + asked) % taken.len()];
                    let refusal = sale.hold(&stores, "thief", &[seat]).await.expect_err("it is not available");
                    assert!(matches!(refusal, PlaceHoldError::Unavailable(_)), "{seat}: {refusal:?}");
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    let (first, kept) = tokio::join!(warm_up(&one), sale.hold(&two, "u1", &["A-50"]));
    first.unwrap();
    let kept = kept.expect("A-50 is available");
    warm_up(&two).await.expect("a second start warms up again and changes nothing");
    done.store(true, Ordering::Relaxed);
    for client in hammering {
        assert!(client.await.unwrap() > 0);
    }
    // A refused hold that took a gate while the bucket was lost has the block healed a moment later.
    until("30 sold, 5 being paid for and one held", async || {
        let reading = sale.read(&one, "B1").await;
        let count = |status| reading.seats.iter().filter(|seat| seat.status_at(reading.now_ms) == status).count();
        ((count(SeatStatus::Sold), count(SeatStatus::Held)) == (30, 6)).then_some(())
    })
    .await;
    let stored = two.pg.find_reservation(kept.id).await.unwrap().unwrap();
    assert_eq!(stored.expires_at, kept.expires_at, "with its first deadline");
    assert_eq!(test.count("SELECT count(*) FROM reservations WHERE buyer = 'thief'").await, 0);
    settle(&test, &one, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_warm_ups_at_once_are_one() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    test.lose_redis().await;
    let others: Vec<_> = (0..4)
        .map(|_| {
            let stores = test.another_process();
            tokio::spawn(async move { warm_up(&stores).await })
        })
        .collect();
    let mut done = 0;
    for other in others {
        match other.await.unwrap() {
            Ok(report) => {
                done += 1;
                assert_eq!((report.deadlines, report.blocks), (1, 1));
            }
            Err(WarmUpError::Elsewhere) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(done > 0);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

/// The process died between commit and showing, and a warm-up has registered the deadline that Postgres has: the seat must
/// not look available from when the gate opens until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_died_before_it_was_shown_is_shown_though_a_warm_up_came_between() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mut doomed = test.another_process();
    let reached = Arc::new(tokio::sync::Notify::new());
    let notify = Arc::clone(&reached);
    doomed.faults = Faults::crash_where(move |point| {
        let crash = point == FaultPoint::HoldCommitted;
        if crash {
            notify.notify_one();
        }
        crash
    });
    tokio::select! {
        held = sale.hold(&doomed, "u1", &["A-1", "A-2"]) => panic!("{held:?}"),
        () = reached.notified() => {}
    }
    warm_up(&test.stores).await.unwrap();
    test.advance(test.stores.timing.gate_ms);
    sweep_deadlines(&test.stores).await;
    assert_eq!(sale.status(&test.stores, "A-1").await, SeatStatus::Held);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_that_was_broken_off_begins_again_elsewhere() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 5), ("B2", "A", 5)])).await;
    sale.hold(&test.stores, "u1", &["B1/A-1", "B2/A-1"]).await.unwrap();
    test.lose_redis().await;
    let mut doomed = test.another_process();
    let reached = Arc::new(tokio::sync::Notify::new());
    let notify = Arc::clone(&reached);
    doomed.faults = Faults::crash_where(move |point| {
        notify.notify_one();
        point == FaultPoint::WarmUpHalfDone
    });
    tokio::select! {
        report = warm_up(&doomed) => panic!("{report:?}"),
        () = reached.notified() => {}
    }
    assert_eq!(test.stores.redis.epoch().await.unwrap(), None, "it does not claim to be whole");
    // The right of the dead one runs out by itself; most of its fifteen seconds are over.
    let lease = test.key("holdfast:warm-up");
    let shortened: i64 =
        redis::cmd("PEXPIRE").arg(&lease).arg(2_000).query_async(&mut test.redis().await).await.unwrap();
    assert_eq!(shortened, 1, "the right has an end");
    assert!(matches!(warm_up(&test.stores).await, Err(WarmUpError::Elsewhere)));
    until("the next warm-up", async || match warm_up(&test.stores).await {
        Ok(report) => Some(report),
        Err(WarmUpError::Elsewhere) => None,
        Err(other) => panic!("{other:?}"),
    })
    .await;
    assert!(test.stores.redis.epoch().await.unwrap().is_some());
    assert_settled(&test, &ScriptedProvider::default()).await;
}

/// A job's row is open, its job was lost with Redis.
#[tokio::test(flavor = "multi_thread")]
async fn open_jobs_are_queued_again_after_a_loss_of_redis() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    pay(&test.stores, held.id, "tok_ok").await.unwrap();
    test.lose_redis().await;
    let report = warm_up(&test.stores).await.unwrap();
    assert_eq!((report.jobs, report.deadlines), (1, 1));
    assert_eq!(warm_up(&test.stores).await.unwrap().jobs, 0, "it is queued already");
    run_jobs(&test.stores, &provider).await;
    settle(&test, &test.stores, &provider).await;
}

/// Overdue while Redis was away: it comes due for the sweep at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_died_while_redis_was_away_expires_after_the_warm_up() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(6_000).window_ms(6_000)).await;
    let dead = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    test.advance(3_000);
    let alive = sale.hold(&test.stores, "u2", &["A-2"]).await.unwrap();
    let committed = sale.hold(&test.stores, "u3", &["A-3"]).await.unwrap();
    let payment = pay(&test.stores, committed.id, "tok_ok").await.unwrap();
    provider.script(Ask::Capture, [Answer::Fail]);
    let _unknown =
        domain::flow::finalize_payment::finalize_payment(&test.stores, &provider.gateways(), payment.id).await;
    test.lose_redis().await;
    test.advance(3_000);
    warm_up(&test.stores).await.unwrap();
    assert_sound(&test).await;
    for (seat, status) in [("A-1", SeatStatus::Available), ("A-2", SeatStatus::Held), ("A-3", SeatStatus::Held)] {
        assert_eq!(sale.status(&test.stores, seat).await, status, "{seat}");
    }
    settle(&test, &test.stores, &provider).await;
    for (id, status) in [(dead.id, "CANCELLED"), (alive.id, "PENDING"), (committed.id, "CONFIRMED")] {
        let stored: String = sqlx::query_scalar("SELECT status FROM reservations WHERE id = $1")
            .bind(id.0)
            .fetch_one(&test.sql)
            .await
            .unwrap();
        assert_eq!(stored, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_heals_what_was_changed_behind_its_back() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let key = |seat: &str| test.key(&format!("seat:{}:B1:{seat}:A", sale.sheet.event.date_key));
    let mut redis = test.redis().await;
    let mut set = async |seat: &str, value: &str| {
        let _: String = redis::cmd("SET").arg(key(seat)).arg(value).query_async(&mut redis).await.unwrap();
    };
    set("1", "{\"status\":\"available\",\"matchId\":\"x\"}").await;
    set("2", "not JSON").await;
    set("3", "[]").await;
    set("4", "{\"status\":\"sold\",\"matchId\":\"x\",\"version\":\"7\"}").await;
    let _: i64 = redis::cmd("DEL").arg(key("5")).query_async(&mut redis).await.unwrap();
    warm_up(&test.stores).await.unwrap();
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_says_how_far_it_is_and_at_its_end_nothing_more() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 5), ("B2", "A", 5)])).await;
    sale.hold(&test.stores, "u1", &["B1/A-1"]).await.unwrap();
    test.lose_redis().await;
    let mut watched = test.another_process();
    let steps = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let passed = Arc::clone(&steps);
    // Two pages of deadlines, the second of them empty, and a block have been said; it stops before the next.
    watched.faults = Faults::crash_where(move |point| {
        point == FaultPoint::WarmUpHalfDone && passed.fetch_add(1, Ordering::SeqCst) == 3
    });
    tokio::select! {
        report = warm_up(&watched) => panic!("{report:?}"),
        () = until("the fourth step", async || (steps.load(Ordering::SeqCst) == 4).then_some(())) => {}
    }
    let said = test.stores.redis.warm_up_progress().await.unwrap();
    assert_eq!(said.as_deref(), Some("1 deadlines, 0 jobs, 0 of 1 events (1 blocks, 5 buckets)"));
    let _: i64 =
        redis::cmd("DEL").arg(test.key("holdfast:warm-up")).query_async(&mut test.redis().await).await.unwrap();
    warm_up(&test.stores).await.unwrap();
    assert_eq!(test.stores.redis.warm_up_progress().await.unwrap(), None);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

/// A hold's process died after the commit; its gate still stands when another worker starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_does_not_put_off_what_a_crash_left_to_be_shown() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mut doomed = test.another_process();
    doomed.faults = Faults::crash_where(|point| point == FaultPoint::HoldCommitted);
    tokio::select! {
        held = sale.hold(&doomed, "u1", &["A-1"]) => panic!("{held:?}"),
        () = async {
            let made = async || test.count("SELECT count(*) FROM reservations").await;
            until("the commit", async || (made().await == 1).then_some(())).await;
        } => {}
    }
    warm_up(&test.stores).await.unwrap();
    test.advance(test.stores.timing.gate_ms);
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
    assert_eq!(sale.status(&test.stores, "A-1").await, SeatStatus::Held);
}
