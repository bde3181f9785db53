//! The API's own router over one test's stores, and a client for it.

use std::sync::Arc;
use std::time::Duration;

use api::app::{App, FakeProvider};
use api::auth::{Identity, new_api_key};
use api::ops::{self, Draining, Metrics};
use api::rate::RateSettings;
use api::serve::{identity, public_router};
use api::stream::StreamSettings;
use api::{ApiSettings, OpsSettings};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use domain::flow::Stores;
use domain::store::pg::api_keys::KeyScope;
use serde_json::Value;
use tower::ServiceExt as _;

/// The largest answer that a test reads, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Settings as `holdfast api` has them by default, without rate limits.
#[must_use]
pub fn api_settings() -> ApiSettings {
    let loopback = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    ApiSettings {
        addr: loopback(8080),
        ops: OpsSettings { addr: loopback(8081), key: false, drain_ms: 0, stop_ms: 1_000 },
        buyer_token_secret: None,
        buyer_token_public_key: None,
        anonymous_buyers: true,
        anonymous_buyer_ttl_seconds: 3_600,
        fake_provider: true,
        cors_origins: Vec::new(),
        trusted_proxies: Vec::new(),
        request_timeout_ms: 10_000,
        requests_max: 4_096,
        connections_max: 1_000,
        streams: StreamSettings { max: 100, per_address_max: 50 },
        rates: RateSettings::unlimited(),
    }
}

/// A process's two listeners, without sockets.
#[derive(Clone)]
pub struct Web {
    /// The public listener.
    pub public: Router,
    /// The operators' listener.
    pub ops: Router,
    /// The switch of its readiness.
    pub draining: Draining,
    identity: Arc<Identity>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, byte for byte.
    pub text: String,
}

impl Answer {
    /// Its body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// A header as text; empty if it is absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Status and problem code.
    #[must_use]
    pub fn refusal(&self) -> (u16, String) {
        (self.status.as_u16(), self.json()["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Ask {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Ask {
    /// A request without a body.
    #[must_use]
    pub fn new(method: &str, path: impl Into<String>) -> Self {
        let method = method.parse().expect("a method");
        Self { method, path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// With a JSON body.
    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// With a body of another kind.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("content-type", content_type)
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With credentials.
    #[must_use]
    pub fn by(self, credentials: &str) -> Self {
        self.header("authorization", &format!("Bearer {credentials}"))
    }

    /// With an idempotency key.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    fn request(self) -> Request<Body> {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        request.body(Body::from(self.body)).expect("a request")
    }

    /// Sends it to a router, and leaves the body to be read as it comes.
    pub async fn open(self, router: &Router) -> Response {
        router.clone().oneshot(self.request()).await.expect("a router always answers")
    }

    /// Sends it to a router.
    pub async fn send(self, router: &Router) -> Answer {
        let response = self.open(router).await;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, ANSWER_BYTES_MAX).await.expect("the body is whole");
        let text = String::from_utf8(bytes.to_vec()).expect("the body is UTF-8");
        Answer { status: parts.status, headers: parts.headers, text }
    }
}

impl Web {
    /// A process with the usual settings.
    pub async fn start(stores: &Stores) -> Self {
        Self::start_with(stores, api_settings()).await
    }

    /// A process with other settings.
    pub async fn start_with(stores: &Stores, settings: ApiSettings) -> Self {
        let identity = identity(&settings, stores).await.expect("the settings can be used");
        Self::of(stores, settings, identity)
    }

    /// Another process with what this one knows of callers: for stores that cannot be asked.
    #[must_use]
    pub fn over(&self, stores: &Stores) -> Self {
        Self::of(stores, api_settings(), Arc::clone(&self.identity))
    }

    fn of(stores: &Stores, settings: ApiSettings, identity: Arc<Identity>) -> Self {
        let fake = if settings.fake_provider { FakeProvider::Allowed } else { FakeProvider::Refused };
        let draining = Draining::default();
        let metrics = Metrics::install().expect("nobody else records metrics");
        let ops = ops::router(&settings.ops, stores.clone(), Arc::clone(&identity), (metrics, draining.clone()));
        let app = App::new(stores.clone(), Arc::clone(&identity), fake, settings.streams);
        let public = public_router(&settings, app).expect("the settings can be used");
        Self { public, ops, draining, identity }
    }

    /// An anonymous buyer's token.
    pub async fn buyer(&self) -> String {
        let answer = Ask::new("POST", "/v1/buyers").send(&self.public).await;
        answer.json()["token"].as_str().expect("a token").to_owned()
    }
}

/// A new API key.
pub async fn api_key(stores: &Stores, scope: KeyScope) -> String {
    let (key, hash) = new_api_key();
    stores.pg.insert_api_key("test", scope, &hash).await.expect("the key is kept");
    key
}

/// How long a revoked key may go on working: the cache's time, and as much again for a busy machine.
pub const REVOKED_WITHIN: Duration = Duration::from_secs(6);
