//! What happens twice, late, half, or at once with itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::flow::expire_reservations::expire_reservations;
use domain::flow::place_hold::PlaceHoldError;
use domain::flow::unhold::{cancel_reservation, extend_reservation};
use domain::flow::warm_up::{WarmUpError, repair_missed, warm_up};
use domain::flow::{Access, FaultPoint, Faults, Stores};
use domain::id::ReservationId;
use domain::label::Label;
use domain::payment::PaymentStatus;
use domain::queue::{Queue, queue_stats};
use domain::reservation::{CancelReason, Reservation};
use domain::seat::SeatStatus;
use domain::store::redis::buckets::{BucketOwner, Gate, Showing, Shown};
use domain::store::redis::keys::BlockKey;
use domain::time::Instant;
use holdfast_tests::audit::{assert_settled, audit_redis};
use holdfast_tests::provider::{Answer, Ask, ScriptedProvider};
use holdfast_tests::repair::{finalize, look_at_deadlines, settle};
use holdfast_tests::sale::{Sale, SalePlan, a_buyer, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Shows `A-1` of the first block as a flow would that read Postgres when `showing` was true.
async fn show_a1(stores: &Stores, sale: &Sale, showing: &Showing) -> Shown {
    let (block, keys) = a1(stores, sale);
    let event = (sale.event, &sale.sheet.event.zone);
    stores.redis.show_seats(&block, &keys, event, showing, stores.timing.bucket_grace_ms).await.unwrap()
}

fn a1(stores: &Stores, sale: &Sale) -> (BlockKey, Vec<String>) {
    let label = |text| Label::parse(text).unwrap();
    let block = BlockKey { date: sale.sheet.event.date_key.as_str().into(), block: label("B1") };
    let key = stores.redis.keys().seat(&block, &label("1"), &label("A"));
    (block, vec![key])
}

fn owned(reservation: &Reservation, status: SeatStatus, deadline: Option<Instant>) -> Showing {
    let owner = BucketOwner {
        reservation: reservation.id,
        buyer: reservation.buyer.clone(),
        created_at: reservation.created_at,
        deadline,
    };
    Showing::Owned(status, owner)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_showing_from_before_a_cancellation_changes_nothing() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    cancel_reservation(&test.stores, &Access::Any, held.id, CancelReason::User).await.unwrap();
    for (status, deadline) in
        [(SeatStatus::Held, Some(held.expires_at)), (SeatStatus::Held, None), (SeatStatus::Sold, None)]
    {
        let late = show_a1(&test.stores, &sale, &owned(&held, status, deadline)).await;
        assert_eq!(late, Shown { changed: 0, foreign: 1 });
    }
    assert_eq!(sale.status(&test.stores, "A-1").await, SeatStatus::Available);
    sale.hold(&test.stores, "u2", &["A-1"]).await.unwrap();
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_of_an_earlier_deadline_frees_nothing_that_was_extended_or_paid_for() {
    let test = TestStores::start().await;
    let mut plan = SalePlan::default();
    plan.rules.extensions_max = 1;
    let sale = Sale::open(&test.stores, plan).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    test.advance(60_000);
    let extended = extend_reservation(&test.stores, &Access::Any, held.id).await.unwrap();
    assert!(extended.expires_at > held.expires_at);
    let late = show_a1(&test.stores, &sale, &Showing::Expired(held.id, held.expires_at)).await;
    assert_eq!(late.changed, 0);
    assert_settled(&test, &ScriptedProvider::default()).await;
    show_a1(&test.stores, &sale, &owned(&held, SeatStatus::Held, None)).await;
    let late = show_a1(&test.stores, &sale, &Showing::Expired(held.id, extended.expires_at)).await;
    assert_eq!((late.changed, sale.status(&test.stores, "A-1").await), (0, SeatStatus::Held));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_shorter_than_its_gate_is_shown_until_its_own_deadline() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(1_000)).await;
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    assert_settled(&test, &ScriptedProvider::default()).await;
    test.advance(1_000);
    sale.hold(&test.stores, "u2", &["A-1"]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_gate_somebody_else_took_meanwhile_is_shown_in_the_end() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default()).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    // As if the commit had taken longer than the gate stood.
    show_a1(stores, &sale, &Showing::Released(held.id)).await;
    let (block, keys) = a1(stores, &sale);
    let rival = ReservationId(domain::runtime::clock::new_uuid());
    let gate = stores.redis.take_gate(&block, &keys, (&a_buyer("u2"), sale.event, rival), stores.timing).await.unwrap();
    assert!(matches!(gate, Gate::Taken { .. }));
    expire_reservations(stores, &[held.id]).await.unwrap();
    // The rival can only be refused: its gate is not waited for, and its giving back changes nothing.
    let now: String = redis::cmd("GET").arg(&keys[0]).query_async(&mut test.redis().await).await.unwrap();
    assert!(now.contains(&held.id.to_string()), "{now}");
    show_a1(stores, &sale, &Showing::Released(rival)).await;
    assert_settled(&test, &ScriptedProvider::default()).await;
}

// A buyer whose client hung up and asked again learns of the commit before the hold's own process has shown it, and pays.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hold_that_is_shown_when_it_is_paid_for_already_registers_no_deadline() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let mut slow = test.another_process();
    let (committed, go_on) = (Arc::new(Notify::new()), Mutex::new(None));
    let (let_go, waiting) = std::sync::mpsc::channel::<()>();
    *go_on.lock().unwrap() = Some(waiting);
    let reached = Arc::clone(&committed);
    slow.faults = Faults::crash_where(move |point| {
        if point == FaultPoint::HoldCommitted
            && let Some(waiting) = go_on.lock().unwrap().take()
        {
            reached.notify_one();
            waiting.recv_timeout(Duration::from_secs(20)).expect("it is let go");
        }
        false
    });
    let holding = sale.clone();
    let holding = tokio::spawn(async move { holding.hold(&slow, "u1", &["A-1"]).await });
    committed.notified().await;
    let id: uuid::Uuid = sqlx::query_scalar("SELECT id FROM reservations").fetch_one(&test.sql).await.unwrap();
    let payment = pay(&test.stores, ReservationId(id), "tok_ok").await.unwrap();
    assert_eq!(finalize(&test.stores, &provider, payment.id).await, Some(PaymentStatus::Captured));
    let_go.send(()).unwrap();
    holding.await.unwrap().expect("it was held");
    assert_settled(&test, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_cannot_be_read_is_healed() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    for junk in ["junk", r#"{"status":1}"#, r#"{"version":"3"}"#] {
        let (_, keys) = a1(&test.stores, &sale);
        let () = redis::cmd("SET").arg(&keys[0]).arg(junk).query_async(&mut test.redis().await).await.unwrap();
        assert_eq!(sale.status(&test.stores, "A-1").await, SeatStatus::Available);
        assert_settled(&test, &ScriptedProvider::default()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_during_which_redis_is_lost_again_does_not_declare_it_rebuilt() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let mut stores = test.another_process();
    let (passed, settings) = (AtomicUsize::new(0), test.settings.clone());
    stores.faults = Faults::crash_where(move |point| {
        // After the deadlines, before the blocks.
        if point == FaultPoint::WarmUpHalfDone && passed.fetch_add(1, Ordering::Relaxed) == 1 {
            lose_at_once(&settings.redis_url, &settings.redis_prefix);
        }
        false
    });
    let lost = warm_up(&stores).await;
    assert!(matches!(lost, Err(WarmUpError::Elsewhere)), "{lost:?}");
    assert_eq!(stores.redis.epoch().await.unwrap(), None);
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}

fn lose_at_once(url: &str, prefix: &str) {
    let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query(&mut redis).unwrap();
    let _: u64 = redis::cmd("DEL").arg(keys).query(&mut redis).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn seats_whose_payment_is_under_review_stay_held() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let provider = ScriptedProvider::default();
    provider.script(Ask::Authorize, [Answer::OtherAmount(49_999)]);
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(&test.stores, held.id, "tok_ok").await.unwrap();
    assert_eq!(finalize(&test.stores, &provider, payment.id).await, Some(PaymentStatus::NeedsReview));
    test.advance(3_600_000);
    expire_reservations(&test.stores, &[held.id]).await.unwrap();
    let refused = sale.hold(&test.stores, "u2", &["A-1"]).await;
    assert!(matches!(refused, Err(PlaceHoldError::Unavailable(_))), "{refused:?}");
    settle(&test, &test.stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_waits_for_a_lock_takes_no_other_along() {
    let test = TestStores::start_with(|settings| (settings.hold_lanes, settings.pg_statement_ms) = (1, 2_000)).await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    // A process that was stopped in the middle of its transaction.
    let mut stopped = test.sql.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO seat_claims (event_id, seat_id, state)
         SELECT $1, id, 'blocked' FROM seats WHERE row_label = 'A'",
    )
    .bind(sale.event.0)
    .execute(&mut *stopped)
    .await
    .unwrap();
    let hold = |buyer: &'static str, seat: &'static str| {
        let (stores, sale) = (test.stores.clone(), sale.clone());
        tokio::spawn(async move { sale.hold(&stores, buyer, &[seat]).await })
    };
    let first = hold("u1", "A-1");
    until("the lane waits for the lock", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        (test.count(waiting).await > 0).then_some(())
    })
    .await;
    let (second, third) = (hold("u2", "A-2"), hold("u3", "B-1"));
    third.await.unwrap().expect("nobody is in its way");
    assert!(first.await.unwrap().is_err() && second.await.unwrap().is_err());
    stopped.rollback().await.unwrap();
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_redis_was_away_for_asks_for_a_warm_up_when_it_is_back() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut settings = test.settings.clone();
    let url = redis::Client::open(test.settings.redis_url.as_str()).unwrap();
    let real = url.get_connection_info().addr().to_string();
    settings.queue_redis_url = Some(settings.redis_url.clone());
    settings.redis_url = settings.redis_url.replace(&real, &socket.local_addr().unwrap().to_string());
    let cut_off = Stores::connect(&settings, test.clock.clone()).unwrap();
    cancel_reservation(&cut_off, &Access::Any, held.id, CancelReason::User).await.unwrap();
    assert!(!audit_redis(&test).await.is_empty(), "the cancellation could not be shown");
    let asking = tokio::spawn(repair_missed(cut_off.clone(), CancellationToken::new()));
    let listener = socket.listen(16).unwrap();
    let line = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = tokio::net::TcpStream::connect(&real).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    until("a warm-up is asked for", async || {
        let stats = queue_stats(cut_off.jobs.redis()).await.unwrap();
        stats.iter().any(|stats| stats.queue == Queue::WarmUp && stats.ready == 1).then_some(())
    })
    .await;
    asking.abort();
    line.abort();
    warm_up(&test.stores).await.unwrap();
    look_at_deadlines(&test, &test.stores).await;
    assert_settled(&test, &ScriptedProvider::default()).await;
}
