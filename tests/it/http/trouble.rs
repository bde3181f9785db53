//! Postgres in trouble: slow, or taking no writes (a full disk, a standby).

use holdfast_tests::audit::assert_settled;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::settle;
use holdfast_tests::sale::SalePlan;
use holdfast_tests::web::Web;
use sqlx::Executor as _;

use super::Shop;

/// Told to come back, and nothing of the hold is left.
async fn refused_and_nothing_held(shop: &Shop, web: &Web) {
    let answer = shop.hold_for("u1", &["A-1", "A-2"]).send(&web.public).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(answer.header("retry-after").parse::<u32>().is_ok_and(|seconds| seconds >= 1), "{:?}", answer.headers);
    assert_eq!(shop.test.count("SELECT count(*) FROM reservations").await, 0);
    assert_eq!(shop.test.count("SELECT count(*) FROM seat_claims").await, 0);
    assert_eq!(shop.sale.bucket_status(&shop.test, "A-1").await.as_deref(), Some("available"));
}

async fn held_and_sound(shop: &Shop, web: &Web) {
    let answer = shop.hold_for("u1", &["A-1", "A-2"]).send(&web.public).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    let provider = ScriptedProvider::default();
    settle(&shop.test, shop.stores(), &provider).await;
    assert_settled(&shop.test, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_postgres_answers_503_and_no_hold_is_half_made() {
    let shop = Shop::open(SalePlan::default()).await;
    let mut stuck = shop.test.sql.begin().await.unwrap();
    // Whoever counts rows is another session: it may read what holds may not write.
    stuck.execute("LOCK TABLE seat_claims IN SHARE MODE").await.unwrap();
    refused_and_nothing_held(&shop, &shop.web).await;
    stuck.rollback().await.unwrap();
    held_and_sound(&shop, &shop.web).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_takes_no_writes_answers_503_and_no_hold_is_half_made() {
    let shop = Shop::open(SalePlan::default()).await;
    let read_only = |on: &str| {
        let set = format!(
            "ALTER ROLE CURRENT_USER IN DATABASE {} SET default_transaction_read_only = {on}",
            shop.test.database()
        );
        sqlx::AssertSqlSafe(set)
    };
    shop.test.sql.execute(read_only("on")).await.unwrap();
    let web = shop.web.over(&shop.test.another_process());
    refused_and_nothing_held(&shop, &web).await;
    let mut back = shop.test.sql.acquire().await.unwrap();
    back.execute("SET default_transaction_read_only = off").await.unwrap();
    back.execute(read_only("off")).await.unwrap();
    held_and_sound(&shop, &shop.web.over(&shop.test.another_process())).await;
}
