//! Buckets, lists, deadlines, jobs and rows, broken one at a time by SQL and by Redis commands.

use domain::flow::audit::finding::{FindingCode, Severity};
use domain::runtime::clock::new_uuid;
use holdfast_tests::sale::pay;
use redis::cmd;

use super::House;

const NONE: [&str; 0] = [];

/// A bucket as the engine would write it for nobody.
fn unowned(house: &House, status: &str) -> String {
    format!(r#"{{"status":"{status}","matchId":"{}","version":"1"}}"#, house.sale.event)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sold_seat_that_redis_shows_available_is_found_and_mended() {
    let house = House::open().await;
    house.redis(cmd("SET").arg(house.key("A", "1")).arg(unowned(&house, "available"))).await;
    let finding = house.only(FindingCode::SeatShownAvailable).await;
    assert_eq!((finding.severity, finding.place.seat.unwrap().0), (Severity::Broken, house.seat("A-1")));
    assert_eq!(finding.place.reservation, Some(house.sold));
    assert_eq!(finding.place.column_row.unwrap().1.as_str(), "A");
    assert_eq!(house.mend().await, NONE);
    assert_eq!(house.sale.bucket_status(&house.test, "A-1").await.as_deref(), Some("sold"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seat_that_redis_shows_taken_and_nobody_owns_is_found_and_mended() {
    let house = House::open().await;
    let deadline = domain::runtime::clock::system_ms() + 3_600_000;
    let bucket = format!(
        r#"{{"status":"held","userId":"carl","matchId":"{}","createdAt":"20300410 12:00:00","expiredAt":"20300410 13:00:00","reservationId":"{}","deadlineMs":"{deadline}","version":"1"}}"#,
        house.sale.event,
        new_uuid()
    );
    house.redis(cmd("SET").arg(house.key("A", "5")).arg(bucket)).await;
    house.redis(cmd("SET").arg(house.key("A", "6")).arg(unowned(&house, "blocked"))).await;
    let finding = house.only(FindingCode::SeatShownTaken).await;
    assert_eq!(finding.severity, Severity::Broken);
    assert_eq!(house.look().await.total(), 2);
    assert_eq!(house.mend().await, NONE);
    house.sale.hold(&house.test.stores, "carl", &["A-5", "A-6"]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_another_owner_or_status_than_the_claim_is_found_and_mended() {
    let house = House::open().await;
    let (key, mut redis) = (house.key("B", "1"), house.test.redis().await);
    let bucket: String = cmd("GET").arg(&key).query_async(&mut redis).await.unwrap();
    for wrong in [
        bucket.replace("berta", "carl"),
        bucket.replace("\"held\"", "\"sold\""),
        bucket.replace(&house.held.id.to_string(), &new_uuid().to_string()),
        bucket.replace("deadlineMs\":\"1", "deadlineMs\":\"9"),
        bucket.replace(&house.sale.event.to_string(), &new_uuid().to_string()),
    ] {
        assert_ne!(wrong, bucket);
        house.redis(cmd("SET").arg(&key).arg(&wrong)).await;
        house.only(FindingCode::SeatShownWrong).await;
        assert_eq!(house.mend().await, NONE, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_gone_or_unreadable_is_found_and_mended() {
    let house = House::open().await;
    house.redis(cmd("DEL").arg(house.key("A", "2"))).await;
    assert_eq!(house.only(FindingCode::BucketAbsent).await.severity, Severity::Broken);
    assert_eq!(house.mend().await, NONE);
    house.redis(cmd("SET").arg(house.key("A", "9")).arg("not one of ours")).await;
    house.only(FindingCode::BucketUnreadable).await;
    assert_eq!(house.mend().await, NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seat_list_that_is_not_the_blocks_seats_in_order_is_found_and_mended() {
    let house = House::open().await;
    let list = house.test.key(&format!("seatKeys:{}:B1", house.sale.sheet.event.date_key));
    let breakages = [
        cmd("LREM").arg(&list).arg(1).arg(house.key("B", "4")).to_owned(),
        cmd("RPUSH").arg(&list).arg(house.key("B", "4")).to_owned(),
        cmd("LSET").arg(&list).arg(3).arg(house.key("C", "4")).to_owned(),
        cmd("PEXPIRE").arg(&list).arg(600_000).to_owned(),
        cmd("DEL").arg(&list).to_owned(),
    ];
    for breakage in &breakages {
        house.redis(breakage).await;
        let finding = house.only(FindingCode::SeatListDiffers).await;
        assert_eq!(finding.place.block.unwrap().as_str(), "B1");
        assert_eq!(house.mend().await, NONE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_that_the_sweep_will_look_at_is_drift() {
    let house = House::open().await;
    house.redis(cmd("SET").arg(house.key("A", "1")).arg(unowned(&house, "available"))).await;
    house.test.stores.redis.mark_unsettled(house.sold.0).await.unwrap();
    assert_eq!(house.only(FindingCode::SeatShownAvailable).await.severity, Severity::Drift);
    assert_eq!(house.mend().await, NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_reservation_that_nothing_would_end_is_found_and_mended() {
    let house = House::open().await;
    let (index, id) = (house.test.deadlines_key(), house.held.id.to_string());
    house.redis(cmd("ZREM").arg(&index).arg(&id)).await;
    let finding = house.only(FindingCode::DeadlineNotRegistered).await;
    assert_eq!((finding.severity, finding.place.reservation), (Severity::Broken, Some(house.held.id)));
    assert_eq!(house.mend().await, NONE);
    house.redis(cmd("ZINCRBY").arg(&index).arg(3_600_000).arg(&id)).await;
    house.only(FindingCode::DeadlineRegisteredLate).await;
    assert_eq!(house.mend().await, NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_does_not_die_at_its_deadline_is_drift_and_mended() {
    let house = House::open().await;
    let key = house.test.key(&format!("expired:reservation:{}", house.held.id));
    for breakage in [cmd("DEL").arg(&key), cmd("PERSIST").arg(&key), cmd("PEXPIRE").arg(&key).arg(30_000)] {
        house.redis(breakage).await;
        assert_eq!(house.only(FindingCode::ExpiryKeyWrong).await.severity, Severity::Drift);
        assert_eq!(house.mend().await, NONE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_the_deadline_index_that_nothing_needs_is_found_and_mended() {
    let house = House::open().await;
    let index = house.test.deadlines_key();
    let far = domain::runtime::clock::system_ms() + 3_600_000;
    house.redis(cmd("ZADD").arg(&index).arg(far).arg(house.sold.to_string())).await;
    house.redis(cmd("ZADD").arg(&index).arg(far).arg(new_uuid().to_string())).await;
    assert_eq!(house.only(FindingCode::DeadlineOfNothing).await.severity, Severity::Drift);
    assert_eq!(house.look().await.total(), 2);
    assert_eq!(house.mend().await, NONE);
    house.redis(cmd("ZADD").arg(&index).arg(far).arg("not one of ours")).await;
    house.only(FindingCode::DeadlineUnreadable).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_reservation_that_no_worker_tidies_up_is_drift_and_mended() {
    let house = House::open().await;
    house.test.advance(600_000 + 11_000);
    let finding = house.only(FindingCode::ExpiredNotCancelled).await;
    assert_eq!((finding.severity, finding.since), (Severity::Drift, Some(house.held.expires_at)));
    assert_eq!(house.mend().await, NONE);
    assert_eq!(house.test.count("SELECT count(*) FROM reservations WHERE cancel_reason = 'expired'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_row_whose_job_is_nowhere_is_found_and_queued() {
    let house = House::open().await;
    let payment = pay(&house.test.stores, house.held.id, "tok_ok").await.unwrap();
    assert_eq!(house.codes().await, NONE, "its job is queued");
    house.forget_jobs().await;
    let finding = house.only(FindingCode::RowWithoutJob).await;
    assert_eq!((finding.severity, finding.place.payment), (Severity::Broken, Some(payment.id)));
    assert_eq!(house.mend().await, NONE, "it is queued again");
    house.sql("DELETE FROM outbox").await;
    assert_eq!(house.codes().await, ["job_without_row", "payment_without_job"]);
    house.finalize(payment.id).await;
    house.forget_jobs().await;
    assert_eq!(house.codes().await, NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_no_worker_would_ever_get_is_found() {
    let house = House::open().await;
    let payment = pay(&house.test.stores, house.held.id, "tok_ok").await.unwrap();
    let id = format!("pay-{}", payment.id);
    house.redis(cmd("LREM").arg(house.queue_key("payments:active")).arg(0).arg(&id)).await;
    let meta = house.queue_key(&format!("payments:meta:{id}"));
    house.redis(cmd("HINCRBY").arg(&meta).arg("ready_ms").arg(-60_000)).await;
    assert_eq!(house.only(FindingCode::JobLost).await.severity, Severity::Broken);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_job_waits_for_an_operator() {
    let house = House::open().await;
    let payment = pay(&house.test.stores, house.held.id, "tok_ok").await.unwrap();
    let id = format!("pay-{}", payment.id);
    house.redis(cmd("LREM").arg(house.queue_key("payments:active")).arg(0).arg(&id)).await;
    house.redis(cmd("ZADD").arg(house.queue_key("payments:dead_ms")).arg(1).arg(&id)).await;
    let meta = house.queue_key(&format!("payments:meta:{id}"));
    house.redis(cmd("HSET").arg(&meta).arg("status").arg("Killed").arg("reason").arg("it crashed")).await;
    let finding = house.only(FindingCode::JobDead).await;
    assert_eq!(finding.severity, Severity::Waiting);
    assert!(finding.remedy().contains(&format!("jobs requeue payments {id}")), "{}", finding.remedy());
    assert_eq!(house.mend().await, ["job_dead"], "it is the operator's to decide");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preparing_event_that_nothing_opens_is_found_and_mended() {
    let house = House::open().await;
    house.sql("UPDATE events SET status = 'preparing'").await;
    house.only(FindingCode::PreparingWithoutJob).await;
    assert_eq!(house.mend().await, NONE);
    domain::flow::open_event::open_event(&house.test.stores, house.sale.event).await.unwrap();
    house.forget_jobs().await;
    assert_eq!(house.codes().await, NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_no_reservation_stands_behind_is_found_and_left() {
    let house = House::open().await;
    // Dead already: only the row is wrong.
    house
        .sql(&format!(
            "INSERT INTO seat_claims (event_id, seat_id, reservation_id, state, expires_at)
             VALUES ('{}', {}, '{}', 'held', now() - interval '1 minute')",
            house.sale.event,
            house.seat("C-5"),
            new_uuid()
        ))
        .await;
    let finding = house.only(FindingCode::ClaimWithoutReservation).await;
    assert_eq!((finding.severity, finding.place.seat.unwrap().0), (Severity::Broken, house.seat("C-5")));
    assert_eq!(house.mend().await, ["claim_without_reservation"], "no flow may guess whose it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_lacks_its_claim_is_found_and_its_bucket_mended() {
    let house = House::open().await;
    // Of the CONFIRMED one, one of two seats; of the PENDING one, its only seat.
    let seats = format!("{}, {}", house.seat("A-2"), house.seat("B-1"));
    house.sql(&format!("DELETE FROM seat_claims WHERE seat_id IN ({seats})")).await;
    let report = house.look().await;
    assert_eq!(super::codes(&report), ["claim_missing", "seat_shown_taken"]);
    let seats: Vec<_> = report.findings.iter().filter(|it| it.code == FindingCode::ClaimMissing).collect();
    assert_eq!(seats.len(), 2);
    assert_eq!(house.mend().await, ["claim_missing"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seat_with_two_owners_is_found() {
    let house = House::open().await;
    let (held, seat) = (house.held.id, house.seat("A-1"));
    house.sql(&format!("UPDATE reservation_seats SET seat_id = {seat} WHERE reservation_id = '{held}'")).await;
    assert_eq!(house.codes().await, ["claim_without_reservation", "seat_owned_twice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_not_what_its_reservation_says_is_found() {
    let house = House::open().await;
    let seat = house.seat("A-1");
    house.sql(&format!("UPDATE seat_claims SET state = 'committed' WHERE seat_id = {seat}")).await;
    assert_eq!(house.codes().await, ["claim_state_differs", "seat_shown_wrong"]);
    house.sql(&format!("UPDATE seat_claims SET state = 'sold' WHERE seat_id = {seat}")).await;
    house.sql("UPDATE seat_claims SET expires_at = expires_at + interval '1 hour' WHERE state = 'held'").await;
    assert_eq!(house.codes().await, ["claim_deadline_differs", "seat_shown_wrong"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_whose_seats_do_not_add_up_is_found() {
    let house = House::open().await;
    house.sql(&format!("DELETE FROM reservation_seats WHERE seat_id = {}", house.seat("A-2"))).await;
    assert_eq!(house.codes().await, ["claim_without_reservation", "reservation_seats_differ"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_given_for_nothing_is_found() {
    let house = House::open().await;
    house
        .sql(&format!(
            "INSERT INTO idempotency_keys (caller, key, fingerprint, status, body, event_id, resource_id)
             VALUES ('shop', 'order-1', 'f', 201, '{{}}', '{0}', '{1}'), ('shop', 'order-2', 'f', 201, '{{}}', '{0}', '{2}')",
            house.sale.event,
            house.sold,
            new_uuid()
        ))
        .await;
    house.only(FindingCode::AnswerWithoutEffect).await;
    assert_eq!(house.look().await.total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_events_own_job_will_write_again_is_drift() {
    let house = House::open().await;
    house.redis(cmd("DEL").arg(house.key("A", "1"))).await;
    assert_eq!(house.only(FindingCode::BucketAbsent).await.severity, Severity::Broken);
    // A mark that no row stands behind explains nothing.
    house.test.stores.redis.mark_unsettled(house.sale.event.0).await.unwrap();
    assert_eq!(house.only(FindingCode::BucketAbsent).await.severity, Severity::Broken);
    house
        .sql(&format!(
            r#"INSERT INTO outbox (event_id, id, queue, kind, payload, created_at)
               VALUES ('{0}', '{0}', 'events', 'open-event', '{{"event": "{0}"}}', now())"#,
            house.sale.event
        ))
        .await;
    let report = house.look().await;
    assert_eq!(super::codes(&report), ["bucket_absent", "outbox_row_without_job"]);
    assert!(report.findings.iter().all(|finding| finding.severity == Severity::Drift), "{:#?}", report.findings);
    assert_eq!(house.mend().await, NONE);
}
