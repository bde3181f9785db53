//! Payments, refunds, and what the provider has: named with the next step, never set right silently.

use domain::flow::audit::Verdict;
use domain::flow::audit::finding::{FindingCode, Severity};
use domain::payment::PaymentStatus;
use domain::runtime::clock::new_uuid;
use holdfast_tests::sale::pay;

use super::House;

const NONE: [&str; 0] = [];

/// Ends a payment that took no money.
async fn a_declined_payment(house: &House) -> domain::id::PaymentId {
    let payment = pay(&house.test.stores, house.held.id, "tok_decline").await.unwrap().id;
    assert_eq!(house.finalize(payment).await, PaymentStatus::Declined);
    house.forget_jobs().await;
    assert_eq!(house.codes().await, NONE);
    payment
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_the_provider_took_and_we_did_not_record_is_found_and_named() {
    let house = House::open().await;
    let payment = a_declined_payment(&house).await;
    house
        .sql(&format!("UPDATE fake_provider_ledger SET status = 'captured', captures = 1 WHERE key = '{payment}'"))
        .await;
    let finding = house.only(FindingCode::CapturedNotRecorded).await;
    assert_eq!((finding.severity, finding.place.payment), (Severity::Broken, Some(payment)));
    assert!(finding.remedy().contains("refund"), "{}", finding.remedy());
    assert_eq!(house.mend().await, ["captured_not_recorded"], "money is never set right silently");
    house.sql(&format!("UPDATE fake_provider_ledger SET refunded = amount WHERE key = '{payment}'")).await;
    assert_eq!(house.codes().await, NONE, "the operator has given it back");
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_we_recorded_and_the_provider_did_not_take_is_found() {
    let house = House::open().await;
    let paid = house.paid;
    house.sql(&format!("UPDATE fake_provider_ledger SET status = 'voided' WHERE key = '{paid}'")).await;
    house.only(FindingCode::CapturedNotAtProvider).await;
    house
        .sql(&format!("UPDATE fake_provider_ledger SET status = 'captured', amount = amount - 1 WHERE key = '{paid}'"))
        .await;
    house.only(FindingCode::ProviderAmountDiffers).await;
    house.sql(&format!("UPDATE fake_provider_ledger SET amount = amount + 1, refunded = 7 WHERE key = '{paid}'")).await;
    house.only(FindingCode::ProviderRefundDiffers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payments_that_ended_long_ago_are_asked_about_only_on_request() {
    let house = House::open().await;
    house.sql("UPDATE fake_provider_ledger SET status = 'voided'").await;
    house.sql("UPDATE payments SET updated_at = updated_at - interval '3 days'").await;
    assert_eq!(house.look().await.looked_at.asked, 0);
    let plan = domain::flow::audit::AuditPlan { payments_since: None, ..Default::default() };
    let gateways = workers::gateways(&house.test.stores);
    let report = domain::flow::audit::audit(&house.test.stores, &gateways, &plan, &|_, _| {}).await.unwrap();
    assert_eq!((super::codes(&report), report.verdict()), (vec!["captured_not_at_provider"], Verdict::Broken));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_reservation_without_its_money_is_found() {
    let house = House::open().await;
    house.sql("UPDATE payments SET status = 'voided'").await;
    assert_eq!(house.codes().await, ["captured_not_recorded", "confirmed_not_paid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_is_kept_without_seats_is_found_and_a_refund_that_was_asked_for_is_made() {
    let house = House::open().await;
    let (sold, event) = (house.sold, house.sale.event);
    house.sql(&format!("DELETE FROM seat_claims WHERE reservation_id = '{sold}'")).await;
    house
        .sql(&format!("UPDATE reservations SET status = 'CANCELLED', cancel_reason = 'operator' WHERE id = '{sold}'"))
        .await;
    house.mend().await;
    let finding = house.only(FindingCode::MoneyKeptWithoutSeats).await;
    assert_eq!((finding.severity, finding.place.payment), (Severity::Broken, Some(house.paid)));
    assert_eq!(house.mend().await, ["money_kept_without_seats"]);

    house
        .sql(&format!(
            "INSERT INTO refunds (event_id, id, reservation_id, payment_id, amount, currency, reason, status, created_at, updated_at)
             VALUES ('{event}', '{}', '{sold}', '{}', 100000, 'KRW', 'late_payment', 'requested', now(), now())",
            new_uuid(),
            house.paid
        ))
        .await;
    assert_eq!(house.only(FindingCode::RefundWithoutJob).await.severity, Severity::Broken);
    house.mend().await;
    assert_eq!(house.look().await.verdict(), Verdict::Drift, "its job is queued");
    assert_eq!(house.finalize(house.paid).await, PaymentStatus::Refunded);
    house.forget_jobs().await;
    assert_eq!(house.codes().await, NONE);
    house.sql("DELETE FROM refunds").await;
    house.only(FindingCode::RefundsDiffer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_payment_without_a_row_is_found_and_brought_to_its_end() {
    let house = House::open().await;
    let payment = pay(&house.test.stores, house.held.id, "tok_ok").await.unwrap().id;
    house.forget_jobs().await;
    house.sql("DELETE FROM outbox").await;
    assert_eq!(house.only(FindingCode::PaymentWithoutJob).await.severity, Severity::Broken);
    house.mend().await;
    assert_eq!(house.look().await.verdict(), Verdict::Drift, "its job is queued");
    house.finalize(payment).await;
    house.forget_jobs().await;
    assert_eq!(house.codes().await, NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_is_parked_or_unfinished_waits_for_an_operator() {
    let house = House::open().await;
    let payment = pay(&house.test.stores, house.held.id, "tok_ok").await.unwrap().id;
    house
        .sql(&format!(
            "INSERT INTO fake_provider_ledger (key, token, amount, currency, status) VALUES ('{payment}', 'tok_ok', 1, 'KRW', 'authorized')"
        ))
        .await;
    assert_eq!(house.finalize(payment).await, PaymentStatus::NeedsReview);
    house.forget_jobs().await;
    let finding = house.only(FindingCode::PaymentNeedsReview).await;
    assert_eq!((finding.severity, finding.place.payment), (Severity::Waiting, Some(payment)));
    assert!(finding.found["provider"].contains("authorized"), "{:?}", finding.found);

    let other = house.sale.hold(&house.test.stores, "carl", &["C-9"]).await.unwrap();
    pay(&house.test.stores, other.id, "tok_silence").await.unwrap();
    house.test.advance(1_300_000);
    let codes = house.codes().await;
    assert!(codes.contains(&"payment_unfinished"), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_of_a_reservation_that_does_not_exist_is_found() {
    let house = House::open().await;
    let payment = a_declined_payment(&house).await;
    house.sql(&format!("UPDATE payments SET reservation_id = '{}' WHERE id = '{payment}'", new_uuid())).await;
    house.only(FindingCode::PaymentWithoutReservation).await;
}
