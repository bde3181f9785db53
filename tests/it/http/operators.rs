//! The operators' listener.

use domain::flow::warm_up::warm_up;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::sale::SalePlan;
use holdfast_tests::wait::until;
use holdfast_tests::web::{Ask, Web, api_key, api_settings};

use super::Shop;

async fn readiness(web: &Web) -> (u16, String) {
    let answer = Ask::new("GET", "/readyz").send(&web.ops).await;
    (answer.status.as_u16(), answer.json()["status"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_tells_slower_from_impossible() {
    let shop = Shop::open(SalePlan::default()).await;
    assert_eq!(readiness(&shop.web).await, (200, "degraded".into()), "no worker has warmed up yet");
    warm_up(shop.stores()).await.unwrap();
    until("the warm-up to be seen", async || (readiness(&shop.web).await == (200, "ok".into())).then_some(())).await;
    let without_redis = shop.web.over(&shop.test.a_process_without_redis());
    assert_eq!(readiness(&without_redis).await, (200, "degraded".into()));
    let verbose = Ask::new("GET", "/readyz?verbose").send(&without_redis.ops).await.json();
    let redis = verbose["checks"].as_array().unwrap().iter().find(|check| check["name"] == "redis").unwrap();
    assert_eq!(redis["state"], "degraded");
    let away = |settings: &mut domain::runtime::settings::StoreSettings| {
        settings.database_url = "postgres://holdfast@127.0.0.1:1/away".to_owned();
    };
    let without_postgres = shop.web.over(&shop.test.another_process_with(away));
    assert_eq!(readiness(&without_postgres).await, (503, "failed".into()));
    assert_eq!(Ask::new("GET", "/livez").send(&without_postgres.ops).await.status, 200, "a restart would not help");
    shop.web.draining.begin();
    assert_eq!(readiness(&shop.web).await, (503, "failed".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_loopback_board_and_metrics_ask_for_an_ops_key_and_probes_do_not() {
    let shop = Shop::open(SalePlan::default()).await;
    let mut settings = api_settings();
    settings.ops.addr = "0.0.0.0:8081".parse().unwrap();
    let web = Web::start_with(shop.stores(), settings).await;
    let ops = api_key(shop.stores(), KeyScope::Ops).await;
    for path in ["/", "/metrics", "/api/v1/queues", "/readyz?verbose", "/nowhere/else"] {
        let stranger = Ask::new("GET", path).send(&web.ops).await;
        assert_eq!(stranger.refusal(), (401, "unauthorized".into()), "{path}");
        assert!(stranger.header("www-authenticate").contains("Basic") || path.starts_with("/readyz"), "{path}");
        let sales = Ask::new("GET", path).by(&shop.sales).send(&web.ops).await;
        assert_eq!(sales.refusal(), (403, "forbidden".into()), "{path}");
        let operator = Ask::new("GET", path).by(&ops).send(&web.ops).await;
        assert!(operator.status.is_success(), "{path}: {}", operator.status);
    }
    assert_eq!(Ask::new("GET", "/readyz").send(&web.ops).await.status, 200);
    assert_eq!(Ask::new("GET", "/livez").send(&web.ops).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_boards_api_does_not_have_is_a_problem_and_no_page() {
    let shop = Shop::open(SalePlan::default()).await;
    for path in ["/api/v1/nowhere", "/api/v1/queues/nobody/stats", "/api/v1/queues/payments/nothing", "/api/v1/a/b/c"] {
        let answer = Ask::new("GET", path).send(&shop.web.ops).await;
        assert_eq!(answer.refusal(), (404, "not_found".into()), "{path}: {:.100}", answer.text);
        assert!(answer.header("content-type").starts_with("application/problem+json"), "{path}");
    }
    let page = Ask::new("GET", "/queues/payments").send(&shop.web.ops).await;
    assert!(page.status.is_success() && page.header("content-type").starts_with("text/html"), "a page of the board's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_tell_of_requests_holds_and_queues() {
    let shop = Shop::open(SalePlan::default()).await;
    assert_eq!(shop.hold_for("u1", &["A-1"]).send(&shop.web.public).await.status, 201);
    let metrics = Ask::new("GET", "/metrics").send(&shop.web.ops).await;
    assert!(metrics.header("content-type").starts_with("text/plain"));
    let requests =
        "holdfast_http_requests_total{listener=\"api\",method=\"POST\",route=\"/v1/events/{id}/reservations\"";
    for line in [
        requests,
        "holdfast_http_request_duration_seconds_bucket{",
        "holdfast_holds_total{outcome=\"held\"}",
        "holdfast_queue_depth{",
        "holdfast_build_info{",
    ] {
        assert!(metrics.text.contains(line), "{line} in {}", metrics.text);
    }
}
