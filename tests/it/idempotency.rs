//! Idempotency keys: the first answer, byte for byte, whoever repeats the request and however many at once.

use std::sync::Arc;

use domain::flow::place_hold::{HoldRequest, PlaceHoldError, place_hold};
use domain::flow::start_payment::{PaymentOrder, StartPaymentError, start_payment};
use domain::flow::{Access, Answered, Idempotent, Stores};
use domain::id::ReservationId;
use domain::payment::{Payment, Provider};
use domain::reservation::Reservation;
use domain::seat::SeatStatus;
use domain::store::pg::idempotency::{IdempotencyKey, StoredAnswer};
use domain::time::rfc3339_ms;
use holdfast_tests::audit::{assert_settled, assert_sound};
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::settle;
use holdfast_tests::sale::{Sale, SalePlan, a_buyer};
use holdfast_tests::stores::TestStores;

/// As a handler would put it: the fingerprint covers the content, the body shows times that only the first answer has.
fn keyed(caller: &str, key: &str, fingerprint: &str) -> Idempotent<Reservation> {
    Idempotent {
        key: IdempotencyKey { caller: caller.to_owned(), key: key.to_owned(), fingerprint: fingerprint.to_owned() },
        respond: Arc::new(|held: &Reservation| (201, format!("{} until {}", held.id, rfc3339_ms(held.expires_at)))),
    }
}

async fn hold(
    (stores, sale): (&Stores, &Sale),
    (caller, key): (&str, &str),
    seats: &[&str],
) -> Result<Answered<Reservation>, PlaceHoldError> {
    let request = HoldRequest {
        event: sale.event,
        buyer: a_buyer(caller),
        seats: seats.iter().map(|name| sale.seat(name)).collect(),
        idempotency: Some(keyed(caller, key, &seats.join(" "))),
    };
    place_hold(stores, request).await
}

fn new(answered: Answered<Reservation>) -> Reservation {
    match answered {
        Answered::New(reservation) => reservation,
        Answered::Replayed(answer) => panic!("replayed: {answer:?}"),
    }
}

fn replayed<T: std::fmt::Debug>(answered: Answered<T>) -> StoredAnswer {
    match answered {
        Answered::Replayed(answer) => answer,
        Answered::New(new) => panic!("not a replay: {new:?}"),
    }
}

fn body(held: &Reservation) -> String {
    format!("{} until {}", held.id, rfc3339_ms(held.expires_at))
}

// A-I1
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_hold_answers_the_first_answer_byte_for_byte() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let here = (&test.stores, &sale);
    let first = new(hold(here, ("u1", "K"), &["A-1"]).await.unwrap());
    let other = test.another_process();
    for place in [here, (&other, &sale)] {
        let again = replayed(hold(place, ("u1", "K"), &["A-1"]).await.unwrap());
        assert_eq!(again, StoredAnswer { status: 201, body: body(&first), resource: Some(first.id.0) });
    }
    // Even when the reservation has died since.
    test.advance(3_600_000);
    assert_eq!(replayed(hold(here, ("u1", "K"), &["A-1"]).await.unwrap()).body, body(&first));
    assert_eq!(test.count("SELECT count(*) FROM reservations").await, 1);
}

// A-I1
#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_for_another_request_is_refused_and_nothing_runs() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let here = (&test.stores, &sale);
    new(hold(here, ("u1", "K"), &["A-1"]).await.unwrap());
    let refusal = hold(here, ("u1", "K"), &["A-2"]).await.unwrap_err();
    assert!(matches!(refusal, PlaceHoldError::KeyReused), "{refusal:?}");
    assert_eq!(sale.status(&test.stores, "A-2").await, SeatStatus::Available);
    assert_settled(&test, &ScriptedProvider::default()).await;
}

// A-I2
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_different_callers_never_meet() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let here = (&test.stores, &sale);
    let callers = ["u1", "u2", "anonymous-1", "anonymous-2"];
    let mut bodies = Vec::new();
    for (caller, seat) in callers.iter().zip(["A-1", "A-2", "A-3", "A-4"]) {
        bodies.push(body(&new(hold(here, (caller, "1"), &[seat]).await.unwrap())));
    }
    for ((caller, seat), body) in callers.iter().zip(["A-1", "A-2", "A-3", "A-4"]).zip(&bodies) {
        assert_eq!(replayed(hold(here, (caller, "1"), &[seat]).await.unwrap()).body, *body);
    }
    let rivals = callers.map(|caller| {
        let (stores, sale) = (test.stores.clone(), sale.clone());
        tokio::spawn(async move { hold((&stores, &sale), (caller, "2"), &["B-1"]).await })
    });
    let answers: Vec<_> = futures::future::join_all(rivals).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Ok(Answered::New(_)))).count(), 1);
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Err(PlaceHoldError::Unavailable(_)))).count(), 3);
}

async fn twenty_repeats_at_once_are_one(test: &TestStores, processes: [Stores; 2]) {
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    for round in 1..=10 {
        let (seat, key) = (format!("A-{round}"), format!("K{round}"));
        let repeats = (0..20).map(|n| {
            let (stores, sale) = (processes[n % 2].clone(), sale.clone());
            let (seat, key) = (seat.clone(), key.clone());
            tokio::spawn(async move { hold((&stores, &sale), ("u1", &key), &[&seat]).await })
        });
        let mut bodies = Vec::new();
        for answer in futures::future::join_all(repeats).await {
            match answer.unwrap() {
                Ok(Answered::New(held)) => bodies.push(body(&held)),
                Ok(Answered::Replayed(answer)) => bodies.push(answer.body),
                Err(PlaceHoldError::InProgress) => {}
                Err(other) => panic!("round {round}: a repeat of one's own request is refused: {other:?}"),
            }
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "round {round}: {bodies:?}");
        assert_eq!(replayed(hold((&processes[0], &sale), ("u1", &key), &[&seat]).await.unwrap()).body, bodies[0]);
    }
    assert_eq!(test.count("SELECT count(*) FROM reservations").await, 10);
    assert_sound(test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_at_once_make_one_reservation_and_get_one_answer() {
    let test = TestStores::start().await;
    let processes = [test.stores.clone(), test.another_process()];
    twenty_repeats_at_once_are_one(&test, processes).await;
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_at_once_make_one_reservation_without_redis_too() {
    let test = TestStores::start().await;
    let processes = [test.a_process_without_redis(), test.a_process_without_redis()];
    twenty_repeats_at_once_are_one(&test, processes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_not_kept_so_the_same_key_may_succeed_later() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default().ttl_ms(6_000)).await;
    sale.hold(&test.stores, "u2", &["A-1"]).await.unwrap();
    let here = (&test.stores, &sale);
    assert!(matches!(hold(here, ("u1", "K"), &["A-1"]).await, Err(PlaceHoldError::Unavailable(_))));
    assert_eq!(test.count("SELECT count(*) FROM idempotency_keys").await, 0);
    test.advance(6_000);
    new(hold(here, ("u1", "K"), &["A-1"]).await.unwrap());
}

async fn start(stores: &Stores, id: ReservationId, key: &str) -> Result<Answered<Payment>, StartPaymentError> {
    let idempotency = Idempotent {
        key: IdempotencyKey { caller: "u1".to_owned(), key: key.to_owned(), fingerprint: id.to_string() },
        respond: Arc::new(|payment: &Payment| (202, payment.id.to_string())),
    };
    let order = PaymentOrder {
        reservation: id,
        provider: Provider::Fake,
        token: Some("tok_ok".to_owned()),
        return_url: None,
        idempotency: Some(idempotency),
    };
    start_payment(stores, &Access::Any, order).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_payment_answers_the_first_and_takes_no_second() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let another = sale.hold(&test.stores, "u1", &["A-2"]).await.unwrap();
    let repeats = (0..10).map(|_| {
        let stores = test.another_process();
        tokio::spawn(async move { start(&stores, held.id, "P").await })
    });
    let mut bodies: Vec<String> = Vec::new();
    for answer in futures::future::join_all(repeats).await {
        bodies.push(match answer.unwrap().unwrap() {
            Answered::New(payment) => payment.id.to_string(),
            Answered::Replayed(answer) => answer.body,
        });
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    let refusal = start(&test.stores, another.id, "P").await.unwrap_err();
    assert!(matches!(refusal, StartPaymentError::KeyReused), "{refusal:?}");
    let provider = ScriptedProvider::default();
    settle(&test, &test.stores, &provider).await;
    // Paid for: the first answer stands, and nothing is asked of the provider again.
    let asked = provider.asked().len();
    assert_eq!(replayed(start(&test.stores, held.id, "P").await.unwrap()).body, bodies[0]);
    settle(&test, &test.stores, &provider).await;
    assert_eq!(provider.asked().len(), asked);
    assert_eq!(test.count("SELECT count(*) FROM payments").await, 1);
}
