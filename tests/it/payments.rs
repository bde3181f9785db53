//! Payments by the flow: seats first, money after; an unknown outcome is asked about, late money is kept only for seats
//! that are all still free.

use domain::flow::expire_reservations::expire_reservations;
use domain::flow::finalize_payment::{PaymentProgress, finalize_payment};
use domain::flow::start_payment::StartPaymentError;
use domain::flow::unhold::{ChangeReservationError, cancel_reservation};
use domain::flow::{Access, Stores};
use domain::gateway::ProviderState;
use domain::id::{PaymentId, ReservationId};
use domain::payment::PaymentStatus;
use domain::reservation::{CancelReason, ReservationState, ReservationStatus};
use domain::seat::SeatStatus;
use holdfast_tests::audit::{assert_settled, assert_sound};
use holdfast_tests::provider::{Answer, Ask, ScriptedProvider};
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;

async fn status(stores: &Stores, id: ReservationId) -> (ReservationStatus, Option<CancelReason>) {
    let read = stores.pg.find_reservation(id).await.unwrap().unwrap();
    (read.status(), read.cancel_reason())
}

async fn progress(stores: &Stores, provider: &ScriptedProvider, id: PaymentId) -> PaymentProgress {
    finalize_payment(stores, &provider.gateways(), id).await.unwrap()
}

const CONFIRMED: (ReservationStatus, Option<CancelReason>) = (ReservationStatus::Confirmed, None);

#[tokio::test(flavor = "multi_thread")]
async fn confirmed_is_never_said_before_the_money_is_taken() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default()).await;
    let held = sale.hold(stores, "u1", &["A-1", "A-2"]).await.unwrap();
    let payment = pay(stores, held.id, "tok_ok").await.unwrap();
    provider.script(Ask::Capture, [Answer::Fail]);
    assert!(matches!(progress(stores, &provider, payment.id).await, PaymentProgress::Unknown { .. }));
    let read = stores.pg.find_reservation(held.id).await.unwrap().unwrap();
    assert!(matches!(read.state, ReservationState::Committed { .. }), "the seats come first: {:?}", read.state);
    assert_eq!((read.status(), provider.entry(payment.id).unwrap().captures), (ReservationStatus::Pending, 0));
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Held);
    assert_eq!(finalize(stores, &provider, payment.id).await, Some(PaymentStatus::Captured));
    assert_eq!(status(stores, held.id).await, CONFIRMED);
    assert_eq!(sale.status(stores, "A-2").await, SeatStatus::Sold);
    let entry = provider.entry(payment.id).unwrap();
    assert_eq!((entry.amount.amount, entry.captures, entry.refunded), (100_000, 1, 0));
    settle(&test, stores, &provider).await;
}

// A-P9
#[tokio::test(flavor = "multi_thread")]
async fn a_declined_card_may_be_followed_by_another_in_the_same_window() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    test.advance(5_000);
    let first = pay(stores, held.id, "tok_decline").await.unwrap();
    provider.script(Ask::Authorize, [Answer::Decline]);
    assert_eq!(finalize(stores, &provider, first.id).await, Some(PaymentStatus::Declined));
    assert_eq!(status(stores, held.id).await.0, ReservationStatus::Pending);
    test.advance(5_000);
    let second = pay(stores, held.id, "tok_ok").await.unwrap();
    assert_ne!(first.id, second.id, "the provider is asked under a new key");
    assert_eq!(first.deadline, second.deadline, "a decline does not buy another window");
    assert_eq!(finalize(stores, &provider, second.id).await, Some(PaymentStatus::Captured));
    assert_eq!(status(stores, held.id).await, CONFIRMED);
    settle(&test, stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_price_of_nothing_is_confirmed_without_a_provider() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan { price: 0, ..SalePlan::default() }).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(stores, held.id, "").await.unwrap();
    assert_eq!(finalize(stores, &provider, payment.id).await, Some(PaymentStatus::Captured));
    assert_eq!(status(stores, held.id).await, CONFIRMED);
    assert!(provider.asked().is_empty());
    settle(&test, stores, &provider).await;
}

// A-P11
#[tokio::test(flavor = "multi_thread")]
async fn the_provider_is_asked_for_the_very_minor_units_that_the_seats_cost() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    for (venue, (currency, price)) in
        [("KRW", 50_000), ("JPY", 80), ("USD", 1_005), ("BHD", 1_234)].into_iter().enumerate()
    {
        let plan = SalePlan { venue: format!("House {venue}"), price, currency, ..SalePlan::default() };
        let sale = Sale::open(stores, plan).await;
        for seats in [&["A-1"][..], &["B-1", "B-2", "B-3"]] {
            let held = sale.hold(stores, "u1", seats).await.unwrap();
            let payment = pay(stores, held.id, "tok_ok").await.unwrap();
            finalize(stores, &provider, payment.id).await;
            let asked = provider.entry(payment.id).unwrap().amount;
            assert_eq!((asked.amount, asked.currency.code()), (price * i64::try_from(seats.len()).unwrap(), currency));
        }
    }
    settle(&test, stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_asked_about_under_the_same_key_and_charges_once() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default()).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(stores, held.id, "tok_lost_answer").await.unwrap();
    provider.script(Ask::Authorize, [Answer::Fail, Answer::Lose]);
    provider.script(Ask::Fetch, [Answer::Fail, Answer::Fail]);
    provider.script(Ask::Capture, [Answer::Lose, Answer::Fail]);
    for _ in 0..4 {
        assert!(matches!(progress(stores, &provider, payment.id).await, PaymentProgress::Unknown { .. }));
        assert_ne!(status(stores, held.id).await, CONFIRMED);
    }
    assert_eq!(progress(stores, &provider, payment.id).await, PaymentProgress::Ended(PaymentStatus::Captured));
    assert_eq!(provider.entry(payment.id).unwrap().captures, 1);
    assert!(provider.asked().iter().all(|(_, key)| *key == payment.id), "never under another key");
    settle(&test, stores, &provider).await;
}

// A-P13
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_nobody_finishes_is_given_up_at_the_windows_end() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(stores, held.id, "tok_silence").await.unwrap();
    provider.script(Ask::Authorize, [Answer::Pend]);
    let PaymentProgress::Waiting { wait_ms } = progress(stores, &provider, payment.id).await else {
        panic!("it waits")
    };
    assert!((1..=1_000).contains(&wait_ms), "{wait_ms} ms");
    test.advance(19_000);
    assert!(matches!(progress(stores, &provider, payment.id).await, PaymentProgress::Waiting { .. }));
    test.advance(1_000);
    assert_eq!(finalize(stores, &provider, payment.id).await, Some(PaymentStatus::Voided));
    assert_eq!(provider.entry(payment.id).unwrap().state, ProviderState::Voided);
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Available);
    settle(&test, stores, &provider).await;
    assert_eq!(status(stores, held.id).await, (ReservationStatus::Cancelled, Some(CancelReason::Expired)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_did_just_before_it_was_told_to_give_up_counts() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    for (seat, did) in [("A-1", ProviderState::Authorized), ("A-2", ProviderState::Captured)] {
        let provider = ScriptedProvider::default();
        let plan = SalePlan { venue: seat.to_owned(), ..SalePlan::default().window_ms(20_000) };
        let sale = Sale::open(stores, plan.ttl_ms(6_000)).await;
        let held = sale.hold(stores, "u1", &[seat]).await.unwrap();
        let payment = pay(stores, held.id, "tok_authorize_only").await.unwrap();
        provider.script(Ask::Authorize, [Answer::Pend]);
        assert_eq!(finalize(stores, &provider, payment.id).await, None);
        assert!(provider.buyer_acts(payment.id, did));
        test.advance(20_000);
        assert_eq!(finalize(stores, &provider, payment.id).await, Some(PaymentStatus::Captured));
        assert_eq!(status(stores, held.id).await, CONFIRMED, "its seats were still free");
        assert_eq!(provider.entry(payment.id).unwrap().captures, 1);
    }
    assert_sound(&test).await;
}

/// A payment whose buyer acts only after the window, when the reservation has expired.
async fn late(
    test: &TestStores,
    sale: &Sale,
    provider: &ScriptedProvider,
    (seats, did): (&[&str], ProviderState),
    taken: &[&str],
) -> (ReservationId, PaymentId) {
    let stores = &test.stores;
    let held = sale.hold(stores, "u1", seats).await.unwrap();
    let payment = pay(stores, held.id, "tok_authorize_only").await.unwrap();
    provider.script(Ask::Authorize, [Answer::Pend]);
    assert_eq!(finalize(stores, provider, payment.id).await, None);
    test.advance(25_000);
    assert_eq!(expire_reservations(stores, &[held.id]).await.unwrap(), 1);
    if !taken.is_empty() {
        let next = sale.hold(stores, "u2", taken).await.unwrap();
        let paid = pay(stores, next.id, "tok_ok").await.unwrap();
        finalize(stores, provider, paid.id).await;
    }
    assert!(provider.buyer_acts(payment.id, did));
    (held.id, payment.id)
}

// A-P2
#[tokio::test(flavor = "multi_thread")]
async fn late_money_takes_all_its_seats_again_if_all_are_free() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    for (seats, did) in [(&["A-1", "A-2"], ProviderState::Captured), (&["B-1", "B-2"], ProviderState::Authorized)] {
        let (held, payment) = late(&test, &sale, &provider, (seats, did), &[]).await;
        assert_eq!(finalize(stores, &provider, payment).await, Some(PaymentStatus::Captured));
        assert_eq!(status(stores, held).await, CONFIRMED);
        for seat in seats {
            assert_eq!(sale.status(stores, seat).await, SeatStatus::Sold);
        }
        assert_eq!((provider.entry(payment).unwrap().captures, provider.entry(payment).unwrap().refunded), (1, 0));
    }
    settle(&test, stores, &provider).await;
}

// A-P1, A-P2
#[tokio::test(flavor = "multi_thread")]
async fn late_money_goes_back_once_if_any_of_its_seats_is_gone() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    let (held, payment) = late(&test, &sale, &provider, (&["A-1", "A-2"], ProviderState::Captured), &["A-2"]).await;
    provider.script(Ask::Refund, [Answer::Lose, Answer::Fail]);
    for _ in 0..2 {
        assert!(matches!(progress(stores, &provider, payment).await, PaymentProgress::Unknown { .. }));
    }
    // However often it is asked for: by two deliveries at once, and again.
    let again = (0..4).map(|_| {
        let (stores, provider) = (test.another_process(), provider.clone());
        tokio::spawn(async move { finalize(&stores, &provider, payment).await })
    });
    for ended in futures::future::join_all(again).await {
        assert!(ended.unwrap().is_some(), "it ends for each of them");
    }
    assert_eq!(finalize(stores, &provider, payment).await, Some(PaymentStatus::Refunded));
    let entry = provider.entry(payment).unwrap();
    assert_eq!((entry.captures, entry.refunded), (1, 100_000));
    assert_eq!(
        status(stores, held).await,
        (ReservationStatus::Cancelled, Some(CancelReason::Expired)),
        "still readable"
    );
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Available, "all or none");
    assert_eq!(sale.status(stores, "A-2").await, SeatStatus::Sold, "u2 keeps it");
    assert_eq!(test.count("SELECT count(*) FROM refunds WHERE status = 'done'").await, 1);
    settle(&test, stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_money_that_was_only_kept_ready_is_never_taken() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    let (_, payment) = late(&test, &sale, &provider, (&["A-1", "A-2"], ProviderState::Authorized), &["A-1"]).await;
    provider.script(Ask::Void, [Answer::Fail]);
    assert!(matches!(progress(stores, &provider, payment).await, PaymentProgress::Unknown { .. }));
    assert_eq!(finalize(stores, &provider, payment).await, Some(PaymentStatus::Voided));
    let entry = provider.entry(payment).unwrap();
    assert_eq!((entry.state, entry.captures), (ProviderState::Voided, 0));
    settle(&test, stores, &provider).await;
}

// A-D3: nothing that comes late from the first buyer can touch the second one's seat.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_buyers_leftovers_cannot_touch_the_second_buyers_seat() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default().ttl_ms(6_000).window_ms(20_000)).await;
    let (held, payment) = late(&test, &sale, &provider, (&["A-3"], ProviderState::Captured), &["A-3"]).await;
    let claim = "SELECT generation::bigint FROM seat_claims WHERE state = 'sold'";
    let generation = test.count(claim).await;
    let refusal = cancel_reservation(stores, &Access::Any, held, CancelReason::User).await.unwrap_err();
    assert!(matches!(refusal, ChangeReservationError::Gone(CancelReason::Expired)), "{refusal:?}");
    assert_eq!(expire_reservations(stores, &[held]).await.unwrap(), 0);
    for _ in 0..2 {
        assert_eq!(finalize(stores, &provider, payment).await, Some(PaymentStatus::Refunded));
    }
    assert_eq!(test.count(claim).await, generation);
    assert_eq!(sale.status(stores, "A-3").await, SeatStatus::Sold);
    assert_eq!(provider.entry(payment).unwrap().refunded, 50_000);
    settle(&test, stores, &provider).await;
}

// A-P10
#[tokio::test(flavor = "multi_thread")]
async fn money_that_does_not_match_confirms_nothing_and_is_parked() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let sale = Sale::open(stores, SalePlan::default()).await;
    for (column, other) in [49_999, 50_001, 0, -50_000, 5_000_000].into_iter().enumerate() {
        let provider = ScriptedProvider::default();
        let held = sale.hold(stores, "u1", &[&format!("A-{}", column + 1)]).await.unwrap();
        let payment = pay(stores, held.id, "tok_ok").await.unwrap();
        provider.script(Ask::Authorize, [Answer::OtherAmount(other)]);
        assert_eq!(finalize(stores, &provider, payment.id).await, Some(PaymentStatus::NeedsReview));
        assert_eq!(status(stores, held.id).await.0, ReservationStatus::Pending);
        assert_eq!(provider.entry(payment.id).unwrap().captures, 0);
        assert_eq!(pay(stores, held.id, "tok_ok").await.unwrap().id, payment.id, "no second payment beside it");
    }
    assert_sound(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_to_capture_frees_the_seats() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default()).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(stores, held.id, "tok_ok").await.unwrap();
    provider.script(Ask::Capture, [Answer::Decline]);
    assert_eq!(finalize(stores, &provider, payment.id).await, Some(PaymentStatus::Declined));
    assert_eq!(status(stores, held.id).await, (ReservationStatus::Cancelled, Some(CancelReason::PaymentFailed)));
    assert_eq!(sale.status(stores, "A-1").await, SeatStatus::Available);
    let refusal = pay(stores, held.id, "tok_ok").await.unwrap_err();
    let gone = ChangeReservationError::Gone(CancelReason::PaymentFailed);
    assert_eq!(refusal.to_string(), StartPaymentError::Reservation(gone).to_string());
    settle(&test, stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_cannot_be_cancelled_while_it_is_paid_for_nor_after() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(stores, SalePlan::default()).await;
    let held = sale.hold(stores, "u1", &["A-1"]).await.unwrap();
    let payment = pay(stores, held.id, "tok_ok").await.unwrap();
    let refusal = cancel_reservation(stores, &Access::Any, held.id, CancelReason::User).await.unwrap_err();
    assert!(matches!(refusal, ChangeReservationError::PaymentInFlight), "{refusal:?}");
    finalize(stores, &provider, payment.id).await;
    let refusal = cancel_reservation(stores, &Access::Any, held.id, CancelReason::User).await.unwrap_err();
    assert!(matches!(refusal, ChangeReservationError::Confirmed), "{refusal:?}");
    // A double click that comes late: it is paid, and no second payment is made.
    let again = pay(stores, held.id, "tok_ok").await.unwrap();
    assert_eq!((again.id, again.status), (payment.id, PaymentStatus::Captured));
    assert_eq!(test.count("SELECT count(*) FROM payments").await, 1);
    settle(&test, stores, &provider).await;
}

// A-P5
#[tokio::test(flavor = "multi_thread")]
async fn twenty_deliveries_of_one_job_confirm_once() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1", "A-2", "A-3"]).await.unwrap();
    let payment = pay(&test.stores, held.id, "tok_ok").await.unwrap();
    let other = test.another_process();
    let deliveries = (0..20).map(|n| {
        let stores = if n % 2 == 0 { test.stores.clone() } else { other.clone() };
        let (provider, id) = (provider.clone(), payment.id);
        tokio::spawn(async move { finalize(&stores, &provider, id).await })
    });
    for ended in futures::future::join_all(deliveries).await {
        assert_eq!(ended.unwrap(), Some(PaymentStatus::Captured));
    }
    assert_eq!(test.count("SELECT count(*) FROM seat_log WHERE after = 'sold'").await, 3);
    assert_eq!(provider.entry(payment.id).unwrap().captures, 1);
    settle(&test, &test.stores, &provider).await;
}

/// The deadline passes while the provider thinks: whoever is first in Postgres has the seats, never both.
#[tokio::test(flavor = "multi_thread")]
async fn an_authorisation_at_the_deadline_races_the_next_buyer_for_the_seat() {
    let test = TestStores::start().await;
    let provider = ScriptedProvider::default();
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(6_000).window_ms(6_000)).await;
    for column in 1..=10 {
        let seat = format!("A-{column}");
        let held = sale.hold(&test.stores, "u1", &[&seat]).await.unwrap();
        let payment = pay(&test.stores, held.id, "tok_ok").await.unwrap();
        test.advance(6_000);
        let (stores, rival, next_sale) = (test.another_process(), test.another_process(), sale.clone());
        let (same, id) = (provider.clone(), payment.id);
        let finalizing = tokio::spawn(async move { finalize(&stores, &same, id).await });
        let holding = tokio::spawn(async move { next_sale.hold(&rival, "u2", &[&seat]).await });
        let (ended, next) = (finalizing.await.unwrap(), holding.await.unwrap());
        let confirmed = status(&test.stores, held.id).await == CONFIRMED;
        assert_eq!(confirmed, next.is_err(), "column {column}: {ended:?} beside {next:?}");
        assert_sound(&test).await;
        if let Ok(next) = next {
            cancel_reservation(&test.stores, &Access::Any, next.id, CancelReason::User).await.unwrap();
        }
    }
    settle(&test, &test.stores, &provider).await;
    assert_settled(&test, &provider).await;
}
