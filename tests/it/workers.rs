//! The workers at work: what the flows leave to them they do, in time.

use std::sync::Arc;
use std::time::Duration;

use domain::flow::set_up_event::start_sale;
use domain::flow::{FaultPoint, Faults};
use domain::id::ReservationId;
use domain::queue::{Queue, stats_of};
use domain::reservation::{CancelReason, ReservationStatus};
use domain::seat::SeatStatus;
use domain::time::{from_ms, to_ms};
use futures::StreamExt as _;
use holdfast_tests::audit::settles_within;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use holdfast_tests::worker::RunningWorker;

/// Deadline to free at most this long, however busy the machine (O3 of the acceptance cases).
const TIDY: Duration = Duration::from_secs(3);
const SETTLED: Duration = Duration::from_secs(10);

/// Waits for the deadline itself, by the stores' clock.
async fn until_deadline(test: &TestStores, deadline: domain::time::Instant) {
    until("the deadline", async || (test.stores.pg.now().await.unwrap() >= deadline).then_some(())).await;
}

async fn status(test: &TestStores, id: ReservationId) -> (ReservationStatus, Option<CancelReason>) {
    let read = test.stores.pg.find_reservation(id).await.unwrap().unwrap();
    assert!(read.is_tidy || read.cancel_reason() == Some(CancelReason::Expired));
    (read.status(), read.cancel_reason())
}

// A-E6: four workers hear of one expiry; each seat is released once, and told once.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_hold_is_shown_as_free_in_time_and_once() {
    let test = TestStores::start().await;
    let workers: Vec<_> = (0..4).map(|_| RunningWorker::start(&test)).collect();
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(1_000)).await;
    settles_within(&test, SETTLED).await;
    let client = redis::Client::open(test.settings.redis_url.as_str()).unwrap();
    let mut changes = client.get_async_pubsub().await.unwrap();
    changes.subscribe(test.key(&format!("seatChanges:{}:B1", sale.sheet.event.date_key))).await.unwrap();
    let seats = ["A-1", "A-2", "A-3", "A-4", "A-5"];
    let held = sale.hold(&test.stores, "u1", &seats).await.unwrap();
    until_deadline(&test, held.expires_at).await;
    until_within(TIDY, "the buckets to be free", async || {
        (sale.bucket_status(&test, "A-5").await.as_deref() == Some("available")).then_some(())
    })
    .await;
    settles_within(&test, SETTLED).await;
    let releases = "SELECT count(*) FROM seat_log WHERE after = 'available' AND reason = 'expired'";
    assert_eq!(test.count(releases).await, 5);
    // The next hold's change ends the listening.
    sale.hold(&test.stores, "u2", &["C-1"]).await.unwrap();
    let mut messages = changes.into_on_message();
    let mut freed = 0;
    loop {
        let message = messages.next().await.unwrap();
        let change: serde_json::Value = serde_json::from_slice(message.get_payload_bytes()).unwrap();
        let first = change["seats"][0].as_str().unwrap_or_default();
        if first.ends_with(":1:C") {
            break;
        }
        freed += usize::from(change["status"] == "available");
    }
    assert_eq!(freed, 1, "one change for all five seats");
    for worker in workers {
        worker.stop().await;
    }
}

// A-E10: what an expiry needs is not in the key that dies, whether it is deleted by hand or expires.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_key_is_gone_ends_at_its_deadline_and_is_known_by_name() {
    let test = TestStores::start().await;
    let _worker = RunningWorker::start(&test);
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(2_000)).await;
    for (buyer, deleted) in [("u1", 1), ("u2", 0)] {
        let held = sale.hold(&test.stores, buyer, &["A-1", "A-2", "A-3"]).await.unwrap();
        if deleted > 0 {
            let key = test.key(&format!("expired:reservation:{}", held.id));
            let gone: i64 = redis::cmd("DEL").arg(&key).query_async(&mut test.redis().await).await.unwrap();
            assert_eq!((gone, sale.status(&test.stores, "A-1").await), (deleted, SeatStatus::Held));
        }
        until_deadline(&test, held.expires_at).await;
        until_within(TIDY, "the release", async || {
            (test.count("SELECT count(*) FROM seat_claims").await == 0).then_some(())
        })
        .await;
        settles_within(&test, SETTLED).await;
        let log: Vec<(i64, String)> = sqlx::query_as(
            "SELECT l.seat_id, l.reason FROM seat_log l JOIN reservations r ON r.id = l.reservation_id
             WHERE l.after = 'available' AND r.buyer = $1 ORDER BY l.seat_id",
        )
        .bind(buyer)
        .fetch_all(&test.sql)
        .await
        .unwrap();
        let wanted: Vec<_> = held.seats.iter().map(|seat| (seat.id.0, "expired".to_owned())).collect();
        assert_eq!(log, wanted, "{buyer}");
    }
}

// A-E8, A-E9: an announcement is a hint; the deadline index decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_announcement_ends_no_hold() {
    let test = TestStores::start().await;
    let _worker = RunningWorker::start(&test);
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(60_000).window_ms(60_000)).await;
    let dying = sale.hold(&test.stores, "u3", &["A-3"]).await.unwrap();
    test.advance(58_000);
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let paid = sale.hold(&test.stores, "u2", &["A-2"]).await.unwrap();
    pay(&test.stores, paid.id, "tok_ok").await.unwrap();
    until("the payment", async || (status(&test, paid.id).await.0 == ReservationStatus::Confirmed).then_some(())).await;
    let mut redis = test.redis().await;
    for id in [held.id, paid.id].repeat(20) {
        let key = test.key(&format!("expired:reservation:{id}"));
        let _: i64 =
            redis::cmd("PUBLISH").arg("__keyevent@0__:expired").arg(key).query_async(&mut redis).await.unwrap();
    }
    // A real one that comes after the forged ones: once it is done, they have been looked at.
    until_deadline(&test, dying.expires_at).await;
    until_within(TIDY, "the real one", async || {
        (sale.bucket_status(&test, "A-3").await.as_deref() == Some("available")).then_some(())
    })
    .await;
    assert_eq!(status(&test, held.id).await.0, ReservationStatus::Pending);
    assert_eq!(status(&test, paid.id).await.0, ReservationStatus::Confirmed);
    settles_within(&test, SETTLED).await;
}

/// Each of the fake provider's tokens, to its end.
#[tokio::test(flavor = "multi_thread")]
async fn every_token_of_the_fake_provider_has_its_end() {
    let test = TestStores::start().await;
    let _worker = RunningWorker::start(&test);
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(5_000).window_ms(5_000)).await;
    let ends = [
        ("A-1", "tok_ok", "captured", Some("CONFIRMED")),
        ("A-2", "tok_lost_answer", "captured", Some("CONFIRMED")),
        ("A-3", "tok_delay_3s", "captured", Some("CONFIRMED")),
        ("A-4", "tok_decline", "declined", Some("CANCELLED")),
        ("A-5", "tok_silence", "voided", Some("CANCELLED")),
        ("A-6", "tok_authorize_only", "voided", Some("CANCELLED")),
        ("A-7", "not a token", "declined", Some("CANCELLED")),
    ];
    let mut started = Vec::new();
    for (seat, token, payment, reservation) in ends {
        let held = sale.hold(&test.stores, "u1", &[seat]).await.unwrap();
        started.push((token, pay(&test.stores, held.id, token).await.unwrap(), payment, reservation));
    }
    for (token, payment, wanted, reservation) in started {
        until(&format!("{token} to end as {wanted}"), async || {
            let ends: (String, String) = sqlx::query_as(
                "SELECT p.status, r.status FROM payments p JOIN reservations r ON r.id = p.reservation_id WHERE p.id = $1",
            )
            .bind(payment.id.0)
            .fetch_one(&test.sql)
            .await
            .unwrap();
            (ends.0 == wanted && reservation.is_none_or(|status| status == ends.1)).then_some(())
        })
        .await;
    }
    settles_within(&test, SETTLED).await;
    assert_eq!(test.count("SELECT sum(captures)::bigint FROM fake_provider_ledger").await, 3);
}

async fn payments_enqueued(test: &TestStores) -> u64 {
    stats_of(test.stores.jobs.redis(), Queue::Payments).await.unwrap().totals.enqueued
}

// A-J7, first and second run: the transaction waits for a lock, then commits; waits for too long, and is rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_exists_only_once_its_transaction_is_committed() {
    let test = TestStores::start().await;
    let _worker = RunningWorker::start(&test);
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut jobs = 0;
    for (seat, is_patient) in [("A-1", true), ("A-2", false)] {
        let held = sale.hold(&test.stores, "u1", &[seat]).await.unwrap();
        let mut lock = test.sql.begin().await.unwrap();
        let _row: String = sqlx::query_scalar("SELECT status FROM reservations WHERE id = $1 FOR UPDATE")
            .bind(held.id.0)
            .fetch_one(&mut *lock)
            .await
            .unwrap();
        let stores = test.another_process();
        let paying = tokio::spawn(async move { pay(&stores, held.id, "tok_ok").await });
        until("the payment to wait for the lock", async || (test.count(waiting).await == 1).then_some(())).await;
        assert_eq!(payments_enqueued(&test).await, jobs, "{seat}: no job for what is not committed");
        if is_patient {
            lock.rollback().await.unwrap();
            paying.await.unwrap().expect("the payment starts");
            jobs += 1;
        } else {
            paying.await.unwrap().expect_err("it waits for a lock for a while only");
            lock.rollback().await.unwrap();
        }
        let wanted = if is_patient { ReservationStatus::Confirmed } else { ReservationStatus::Pending };
        until("the job's end", async || (status(&test, held.id).await.0 == wanted).then_some(())).await;
    }
    settles_within(&test, SETTLED).await;
    assert_eq!(payments_enqueued(&test).await, jobs);
    assert_eq!(test.count("SELECT count(*) FROM payments").await, 1);
}

// A-J7, third run: the process died between the commit and the push of the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_committed_but_never_queued_is_found() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let mut doomed = test.another_process();
    let reached = Arc::new(tokio::sync::Notify::new());
    let notify = Arc::clone(&reached);
    doomed.faults = Faults::crash_where(move |point| {
        let crash = point == FaultPoint::PaymentCommitted;
        if crash {
            notify.notify_one();
        }
        crash
    });
    tokio::select! {
        payment = pay(&doomed, held.id, "tok_ok") => panic!("{payment:?}"),
        () = reached.notified() => {}
    }
    let _worker = RunningWorker::start(&test);
    until_within(Duration::from_secs(10), "the payment", async || {
        (status(&test, held.id).await.0 == ReservationStatus::Confirmed).then_some(())
    })
    .await;
    settles_within(&test, SETTLED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_opens_by_its_job_and_says_how_far_it_is() {
    let test = TestStores::start().await;
    let event = Sale::draft(&test.stores, SalePlan::of_map(&domain::demo::cinema())).await;
    let preparing = start_sale(&test.stores, event).await.unwrap();
    assert_eq!((preparing.blocks_prepared, preparing.blocks_total), (0, 1));
    let _worker = RunningWorker::start(&test);
    let open = until("the event to be on sale", async || {
        let event = test.stores.pg.find_event(event).await.unwrap().unwrap();
        (event.status == domain::event::EventStatus::OnSale).then_some(event)
    })
    .await;
    assert_eq!(open.blocks_prepared, 1);
    settles_within(&test, SETTLED).await;
}

// A-E4, in one process: nobody listens while fifty holds die; other buyers need no worker, and the next one tidies up.
#[tokio::test(flavor = "multi_thread")]
async fn what_died_while_no_worker_ran_is_tidied_up_by_the_next_one() {
    let test = TestStores::start().await;
    let worker = RunningWorker::start(&test);
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[("B1", "A", 50)]).ttl_ms(2_000)).await;
    let mut last = from_ms(0);
    for column in 1..=50 {
        last = sale.hold(&test.stores, "u1", &[&format!("A-{column}")]).await.unwrap().expires_at.max(last);
    }
    worker.stop().await;
    test.advance(to_ms(last) + 1 - to_ms(test.stores.pg.now().await.unwrap()));
    for column in 1..=5 {
        sale.hold(&test.stores, "u2", &[&format!("A-{column}")]).await.expect("the deadline is checked on use");
    }
    let worker = RunningWorker::start(&test);
    until_within(TIDY, "the others to be free", async || {
        (test.count("SELECT count(*) FROM seat_claims").await <= 5).then_some(())
    })
    .await;
    settles_within(&test, SETTLED).await;
    assert_eq!(
        test.count("SELECT count(*) FROM seat_log WHERE reason = 'expired' AND after = 'available'").await % 50,
        0
    );
    worker.stop().await;
}

// I7
#[tokio::test(flavor = "multi_thread")]
async fn idle_workers_send_postgres_nothing() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let _workers = [RunningWorker::start(&test), RunningWorker::start(&test)];
    settles_within(&test, SETTLED).await;
    until("the workers' warm-up", async || test.stores.redis.epoch().await.unwrap()).await;
    // Asked from another database, so that asking is not counted. The figures arrive up to a second late.
    let elsewhere = holdfast_tests::servers::servers().database_url.as_str();
    let elsewhere = sqlx::PgPool::connect(elsewhere).await.unwrap();
    let database: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&test.sql).await.unwrap();
    test.sql.close().await;
    let transactions = async || -> i64 {
        sqlx::query_scalar("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1")
            .bind(&database)
            .fetch_one(&elsewhere)
            .await
            .unwrap()
    };
    let mut seen = (transactions().await, std::time::Instant::now());
    until("four seconds without a query", async || {
        let now = transactions().await;
        if now != seen.0 {
            seen = (now, std::time::Instant::now());
        }
        (seen.1.elapsed() > Duration::from_secs(4)).then_some(())
    })
    .await;
}
