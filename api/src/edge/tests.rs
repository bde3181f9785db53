use super::*;
use axum::body::Body;
use axum::routing::{get, post};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use crate::extract::NoBody;

fn router(edge: &Edge) -> Router {
    let router = Router::new()
        .route("/ok", get(async || "ok"))
        .route("/panic", get(async || -> &'static str { panic!("boom") }))
        .route("/slow", get(async || std::future::pending::<&'static str>().await))
        .route("/plain", get(async || (axum::http::StatusCode::IM_A_TEAPOT, "teapot")))
        .route("/nothing", post(async |_: NoBody| "done"))
        .fallback(async || Problem::new(ProblemCode::NotFound))
        .method_not_allowed_fallback(async || Problem::new(ProblemCode::MethodNotAllowed));
    edge.seal(edge.guard(router))
}

fn edge() -> Edge {
    Edge::new("api", 8, Duration::from_millis(50), Clock::default())
}

async fn call(router: Router, request: Request) -> (Response, serde_json::Value) {
    let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let json = serde_json::from_slice(&bytes).unwrap_or(serde_json::Value::Null);
    (Response::from_parts(parts, Body::empty()), json)
}

fn request(method: &str, uri: &str) -> Request {
    Request::builder().method(method).uri(uri).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn every_error_is_a_problem_with_the_requests_id() {
    for (method, uri, status, code) in [
        ("GET", "/nowhere", 404, "not_found"),
        ("DELETE", "/ok", 405, "method_not_allowed"),
        ("GET", "/panic", 500, "internal"),
        ("GET", "/slow", 503, "timed_out"),
        ("GET", "/plain", 422, "validation_failed"),
    ] {
        let (response, body) = call(router(&edge()), request(method, uri)).await;
        assert_eq!(response.status(), status, "{method} {uri}");
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{method} {uri}");
        assert_eq!(body["code"], code, "{method} {uri}");
        assert_eq!(body["status"], status, "{method} {uri}");
        assert_eq!(body["request_id"], response.headers()["x-request-id"].to_str().unwrap());
        assert!(response.headers().contains_key("server-time"));
        if status == 503 {
            assert_eq!(response.headers()["retry-after"], "1");
        }
    }
}

#[tokio::test]
async fn a_wrong_method_is_told_the_allowed_ones() {
    let (response, _) = call(router(&edge()), request("PUT", "/nothing")).await;
    assert_eq!(response.headers()["allow"], "POST");
    let (response, _) = call(router(&edge()), request("POST", "/ok")).await;
    assert_eq!(response.headers()["allow"], "GET,HEAD");
}

#[tokio::test]
async fn a_sane_request_id_is_taken_over_and_another_replaced() {
    for (sent, kept) in [("abc-123", true), ("has space", false), ("", false)] {
        let mut ask = request("GET", "/ok");
        ask.headers_mut().insert("x-request-id", sent.parse().unwrap());
        let (response, _) = call(router(&edge()), ask).await;
        assert_eq!(response.headers()["x-request-id"] == sent, kept, "{sent:?}");
        assert!(!response.headers()["x-request-id"].is_empty());
    }
    let mut ask = request("GET", "/ok");
    ask.headers_mut().insert("x-request-id", "x".repeat(129).parse().unwrap());
    let (response, _) = call(router(&edge()), ask).await;
    assert_eq!(response.headers()["x-request-id"].len(), 32);
}

#[tokio::test]
async fn one_request_too_many_at_once_is_refused_with_retry_after() {
    let edge = Edge::new("api", 1, Duration::from_secs(5), Clock::default());
    let router = router(&edge);
    let slow = tokio::spawn(router.clone().oneshot(request("GET", "/slow")));
    let full = async {
        while edge.in_flight.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), full).await.unwrap();
    let (response, body) = call(router.clone(), request("GET", "/ok")).await;
    assert_eq!((response.status().as_u16(), body["code"].as_str()), (503, Some("overloaded")));
    assert_eq!(response.headers()["retry-after"], "1");
    slow.abort();
    assert!(slow.await.unwrap_err().is_cancelled());
    assert_eq!(call(router, request("GET", "/ok")).await.0.status(), 200, "its place is free again");
}

#[tokio::test]
async fn a_command_without_fields_takes_an_empty_object_and_no_field() {
    for (body, status) in [("", 200), ("{}", 200), (" { } ", 200), (r#"{"a":1}"#, 422), ("[1]", 422), ("x", 422)] {
        let ask = Request::builder().method("POST").uri("/nothing").body(Body::from(body)).unwrap();
        let (response, json) = call(router(&edge()), ask).await;
        assert_eq!(response.status(), status, "{body}: {json}");
    }
    let huge = Request::builder().method("POST").uri("/nothing").body(Body::from(vec![b' '; 300 * 1024])).unwrap();
    let (response, json) = call(router(&edge()), huge).await;
    assert_eq!((response.status().as_u16(), json["limit"].as_u64()), (413, Some(256 * 1024)));
}

#[tokio::test]
async fn cors_exposes_the_headers_that_a_shop_needs() {
    assert!(cors(&[]).unwrap().is_none());
    assert!(cors(&["bad\norigin".into()]).is_err());
    let edge = edge();
    let layer = cors(&["https://shop.example".into()]).unwrap().unwrap();
    let router = edge.seal(router(&edge).layer(layer));
    let mut ask = request("OPTIONS", "/nothing");
    for (name, value) in [("origin", "https://shop.example"), ("access-control-request-method", "POST")] {
        ask.headers_mut().insert(name, value.parse().unwrap());
    }
    let (preflight, _) = call(router.clone(), ask).await;
    assert_eq!(preflight.status(), 200);
    assert_eq!(preflight.headers()["access-control-allow-origin"], "https://shop.example");
    let mut ask = request("GET", "/ok");
    ask.headers_mut().insert("origin", "https://shop.example".parse().unwrap());
    let (answer, _) = call(router, ask).await;
    let exposed = answer.headers()["access-control-expose-headers"].to_str().unwrap();
    for name in ["x-request-id", "server-time", "etag", "retry-after", "idempotency-replayed"] {
        assert!(exposed.contains(name), "{name} in {exposed}");
    }
}
