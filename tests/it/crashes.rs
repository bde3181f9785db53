//! A crash at any point of any flow does no harm: what the workers do afterwards sets everything right.
//!
//! One day at the box office is run again and again; the first time it crashes at the first point that any flow
//! passes, the second time at the second, until it runs through. What a crashed process leaves is repaired by another
//! one, and audited.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use domain::event::EventStatus;
use domain::flow::block_seats::{BlockOrder, block_seats};
use domain::flow::expire_reservations::expire_reservations;
use domain::flow::finalize_payment::{PaymentProgress, finalize_payment};
use domain::flow::open_event::open_event;
use domain::flow::set_up_event::start_sale;
use domain::flow::unhold::{cancel_reservation, extend_reservation};
use domain::flow::warm_up::warm_up;
use domain::flow::{Access, FaultPoint, Faults, Stores};
use domain::id::EventId;
use domain::payment::PaymentStatus;
use domain::reservation::CancelReason;
use domain::store::pg::claims::Blocking;
use holdfast_tests::audit::assert_sound;
use holdfast_tests::provider::{Answer, Ask, ScriptedProvider};
use holdfast_tests::repair::settle;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use tokio::sync::Notify;

/// Every flow once: open, hold over two blocks, extend, block, pay in all ways, cancel, expire, warm up.
async fn a_day_at_the_box_office(test: &TestStores, stores: &Stores, provider: &ScriptedProvider, event: EventId) {
    start_sale(stores, event).await.unwrap();
    open_event(stores, event).await.unwrap();
    let sale = Sale::of(stores, event).await;
    let paid = sale.hold(stores, "u1", &["B1/A-1", "B2/A-1"]).await.unwrap();
    let left = sale.hold(stores, "u2", &["B1/A-2", "B2/A-2"]).await.unwrap();
    let forgotten = sale.hold(stores, "u3", &["B1/A-3", "B2/A-3"]).await.unwrap();
    extend_reservation(stores, &Access::Any, forgotten.id).await.unwrap();
    block_seats(stores, camera(&sale)).await.unwrap();
    cancel_reservation(stores, &Access::Any, left.id, CancelReason::User).await.unwrap();
    let payment = pay(stores, paid.id, "tok_ok").await.unwrap();
    finalize_payment(stores, &provider.gateways(), payment.id).await.unwrap();
    for (buyer, ask, answer, ends) in [
        ("u4", Ask::Capture, Answer::Decline, PaymentStatus::Declined),
        ("u5", Ask::Authorize, Answer::OtherAmount(1), PaymentStatus::NeedsReview),
    ] {
        let held = sale.hold(stores, buyer, &[if buyer == "u4" { "B1/A-4" } else { "B2/A-4" }]).await.unwrap();
        provider.script(ask, [answer]);
        let payment = pay(stores, held.id, "tok_ok").await.unwrap();
        let ended = finalize_payment(stores, &provider.gateways(), payment.id).await.unwrap();
        assert_eq!(ended, PaymentProgress::Ended(ends));
    }
    let late = sale.hold(stores, "u6", &["B1/A-2"]).await.unwrap();
    provider.script(Ask::Authorize, [Answer::Charge]);
    let payment = pay(stores, late.id, "tok_ok").await.unwrap();
    test.advance(20_000);
    sale.hold(stores, "u7", &["B1/A-2"]).await.unwrap();
    let ended = finalize_payment(stores, &provider.gateways(), payment.id).await.unwrap();
    assert_eq!(ended, PaymentProgress::Ended(PaymentStatus::Refunded));
    expire_reservations(stores, &[forgotten.id]).await.unwrap();
    warm_up(stores).await.unwrap();
}

fn camera(sale: &Sale) -> BlockOrder {
    BlockOrder {
        event: sale.event,
        seats: vec![sale.seat("B2/A-5")],
        blocking: Blocking::Block,
        actor: "operator".to_owned(),
        reason: "the camera stands here".to_owned(),
    }
}

/// Crashes at the `nth` point that is passed. Returns that point, or none where the day has fewer.
async fn crash_at(nth: usize) -> Option<FaultPoint> {
    // Several days run at once: each is content with few connections.
    let test = &TestStores::start_with(|settings| settings.pg_connections = 3).await;
    let provider = &ScriptedProvider::default();
    let mut plan = SalePlan::of_rows(&[("B1", "A", 5), ("B2", "A", 5)]).ttl_ms(6_000).window_ms(20_000);
    plan.rules.extensions_max = 1;
    let event = Sale::draft(&test.stores, plan).await;
    let (passed, crashed) = (AtomicUsize::new(0), Arc::new((Notify::new(), Mutex::new(None))));
    let mut doomed = test.another_process();
    let at = Arc::clone(&crashed);
    doomed.faults = Faults::crash_where(move |point| {
        let crash = passed.fetch_add(1, Ordering::SeqCst) + 1 == nth;
        if crash {
            *at.1.lock().unwrap() = Some(point);
            at.0.notify_one();
        }
        crash
    });
    tokio::select! {
        () = a_day_at_the_box_office(test, &doomed, provider, event) => {}
        () = crashed.0.notified() => {}
    }
    drop(doomed);
    let point = *crashed.1.lock().unwrap();
    // A hold that was on its way into Postgres may still arrive, as it may after a real crash.
    assert_sound(test).await;
    // The dead process's right to warm up ends by itself after some seconds; they are not waited for here.
    let _: i64 =
        redis::cmd("DEL").arg(test.key("holdfast:warm-up")).query_async(&mut test.redis().await).await.unwrap();
    // A gate that nobody stands behind opens by itself.
    test.advance(test.stores.timing.gate_ms);
    let heir = test.another_process();
    settle(test, &heir, provider).await;
    // What the provider was still to be asked, it now does.
    provider.obey_from_now_on();
    // What was held is over by now; what was paid stays, and a second repair changes nothing.
    test.advance(60_000);
    settle(test, &heir, provider).await;
    let sale = Sale::of(&heir, event).await;
    let next = sale.hold(&heir, "u9", &["B1/A-3", "B2/A-2"]).await;
    let status = heir.pg.find_event(event).await.unwrap().unwrap().status;
    assert_eq!(next.is_ok(), status == EventStatus::OnSale, "{point:?}: {next:?}");
    settle(test, &heir, provider).await;
    point
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_point_is_set_right() {
    // A few at a time: most of a day is waiting for the stores.
    const AT_ONCE: usize = 3;
    let mut crashed_at = HashSet::new();
    let mut first = 1;
    loop {
        let days = (first..first + AT_ONCE).map(|nth| {
            let runtime = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || runtime.block_on(crash_at(nth)))
        });
        let days = futures::future::join_all(days).await;
        let points: Vec<Option<FaultPoint>> = days.into_iter().map(Result::unwrap).collect();
        crashed_at.extend(points.iter().flatten().copied());
        if points.contains(&None) {
            break;
        }
        first += AT_ONCE;
    }
    for point in FaultPoint::ALL {
        assert!(crashed_at.contains(&point), "the day never passes {point:?}");
    }
}

/// The seats of a hold that died between gate and commit are available again within seconds, without any repair.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_whose_process_died_opens_by_itself() {
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
    assert!(sale.hold(&test.stores, "u2", &["A-1"]).await.is_err(), "the gate stands");
    test.advance(test.stores.timing.gate_ms);
    sale.hold(&test.stores, "u2", &["A-1"]).await.expect("the gate has opened");
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}
