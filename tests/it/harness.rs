//! The harness itself: it isolates tests, and its auditor sees what is wrong.

use holdfast_tests::audit::{assert_settled, audit_postgres, audit_redis};
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::settle;
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;

#[tokio::test(flavor = "multi_thread")]
async fn two_tests_never_see_each_other() {
    let (one, two) = (TestStores::start().await, TestStores::start().await);
    let sale = Sale::open(&one.stores, SalePlan::default()).await;
    sale.hold(&one.stores, "u1", &["A-1"]).await.unwrap();
    assert!(!one.keys().await.is_empty());
    assert_eq!(two.keys().await, [two.key("holdfast:layout")]);
    assert_eq!(two.count("SELECT count(*) FROM seats").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_auditor_finds_nothing_wrong_with_a_hold() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    sale.hold(&test.stores, "u1", &["A-1", "B-2"]).await.unwrap();
    assert_settled(&test, &ScriptedProvider::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_auditor_sees_what_differs() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    let held = sale.hold(&test.stores, "u1", &["A-1", "B-2"]).await.unwrap();
    // A claim that is gone behind everybody's back.
    sqlx::query("DELETE FROM seat_claims WHERE seat_id = $1")
        .bind(held.seats[0].id.0)
        .execute(&test.sql)
        .await
        .unwrap();
    let rows = audit_postgres(&test).await;
    assert!(rows.iter().any(|finding| finding.contains("lacks its claim")), "{rows:?}");
    assert!(rows.iter().any(|finding| finding.contains("ends at held")), "{rows:?}");
    let buckets = audit_redis(&test).await;
    assert!(buckets.iter().any(|finding| finding.contains("I6")), "{buckets:?}");
    // A bucket and a deadline that are lost.
    let key = test.key(&format!("seat:{}:B1:2:B", sale.sheet.event.date_key));
    let gone = [key.as_str(), &test.deadlines_key()];
    let _: i64 = redis::cmd("DEL").arg(&gone).query_async(&mut test.redis().await).await.unwrap();
    let buckets = audit_redis(&test).await;
    assert!(buckets.iter().any(|finding| finding.contains("is absent")), "{buckets:?}");
    assert!(buckets.iter().any(|finding| finding.contains("deadline index")), "{buckets:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settling_rebuilds_a_redis_that_was_lost() {
    let test = TestStores::start().await;
    let sale = Sale::open(&test.stores, SalePlan::default()).await;
    sale.hold(&test.stores, "u1", &["A-1", "B-2"]).await.unwrap();
    test.lose_redis().await;
    assert!(!audit_redis(&test).await.is_empty());
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}
