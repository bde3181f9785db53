//! The demo that `dev up` opens, made only of what any integrator can do: requests to the engine's own API.

mod plan;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, Utc};
use domain::import::export_csv;
use reqwest::{Client, RequestBuilder};
use serde::Serialize;
use serde_json::{Value, json};

use self::plan::{Plan, TIME_ZONE, plans};
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
        let (api, id, block) = (&self.api, &event.id, encode(&event.block));
        let seat = json!({ "block": event.block, "column": event.column, "row": event.row });
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
        let parsed = serde_json::from_str(&body).ok().filter(|_| status.is_success());
        parsed.ok_or_else(|| DevError::Refused { action: action.to_owned(), status: status.as_u16(), body })
    }

    async fn get(&self, action: &str, path: &str) -> Result<Value, DevError> {
        self.ask(action, self.client.get(format!("{}{path}", self.api))).await
    }

    async fn post(&self, action: &str, path: &str, body: &Value) -> Result<Value, DevError> {
        self.ask(action, self.client.post(format!("{}{path}", self.api)).json(body)).await
    }

    /// Imports the demo venues and opens the demo events, unless an earlier start has done so.
    pub(super) async fn open_demo(&self) -> Result<Vec<DemoEvent>, DevError> {
        let mut events = Vec::new();
        for plan in plans() {
            let event = match self.find_event(&plan).await? {
                Some(event) => event,
                None => self.create_event(&plan).await?,
            };
            events.push(self.describe(&plan, &event).await?);
        }
        Ok(events)
    }

    /// The event of an earlier start, on sale and still to come.
    async fn find_event(&self, plan: &Plan) -> Result<Option<String>, DevError> {
        let action = "list the events";
        let now = self.now().await?;
        let mut page = String::new();
        loop {
            let answer = self.get(action, &format!("/v1/events?limit=200{page}")).await?;
            let events = answer["events"].as_array().map(Vec::as_slice).unwrap_or_default();
            let found = events.iter().find(|event| {
                let is_to_come = event["starts_at"].as_str().and_then(parse_time).is_some_and(|at| at > now);
                event["title"] == plan.title && event["status"] == "on_sale" && is_to_come
            });
            if let Some(event) = found {
                return Ok(event["id"].as_str().map(str::to_owned));
            }
            match answer["next_cursor"].as_str() {
                Some(cursor) => page = format!("&cursor={}", encode(cursor)),
                None => return Ok(None),
            }
        }
    }

    /// Imports the venue's file (the same file again changes nothing), makes the event, opens its sale.
    async fn create_event(&self, plan: &Plan) -> Result<String, DevError> {
        let action = format!("import {}", plan.venue);
        let query = format!("format=csv&name={}&time_zone={}", encode(plan.venue), encode(TIME_ZONE));
        let import = self.client.post(format!("{}/v1/venues/import?{query}", self.api));
        let file = export_csv(&(plan.map)());
        let venue = self.ask(&action, import.header("content-type", "text/csv").body(file)).await?;
        say(&format!(
            "         {}: {} seats in {} blocks",
            plan.venue,
            count(&venue["seats"]),
            count(&venue["blocks"])
        ));

        let action = format!("make the event {}", plan.title);
        let starts_at = plan.starts_at(self.now().await?).to_rfc3339_opts(SecondsFormat::Millis, true);
        let event = json!({
            "venue": venue["venue"].get("id").unwrap_or(&venue["venue"]), "title": plan.title, "starts_at": starts_at,
            "currency": "KRW", "prices": plan.prices,
        });
        let event = self.post(&action, "/v1/events", &event).await?;
        let Some(id) = event["id"].as_str() else {
            return Err(DevError::Refused { action, status: 201, body: event.to_string() });
        };
        self.open_event(id, plan.title).await?;
        Ok(id.to_owned())
    }

    /// Opens an event's sale and waits until a job has written its seats.
    async fn open_event(&self, id: &str, title: &str) -> Result<(), DevError> {
        let action = format!("open {title}");
        self.post(&action, &format!("/v1/events/{id}/open"), &json!({})).await?;
        let begun = Instant::now();
        while begun.elapsed() < OPEN_LIMIT {
            let event = self.get(&action, &format!("/v1/events/{id}")).await?;
            if event["status"] == "on_sale" {
                say(&format!("         {title}: on sale"));
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(DevError::TooSlow { what: format!("the opening of {title}"), limit_s: OPEN_LIMIT.as_secs() })
    }

    /// Counts an event's seats and picks an available one for the examples.
    async fn describe(&self, plan: &Plan, id: &str) -> Result<DemoEvent, DevError> {
        let action = format!("read the seats of {}", plan.title);
        let blocks = self.get(&action, &format!("/v1/events/{id}/blocks")).await?;
        let blocks = blocks["blocks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let statuses = ["available", "held", "sold", "blocked"];
        let seats = blocks.iter().flat_map(|block| statuses.map(|status| count(&block[status]))).sum();
        let free = blocks.iter().find(|block| count(&block["available"]) > 0).or(blocks.first());
        let block = free.and_then(|block| block["block"].as_str()).unwrap_or_default().to_owned();
        let list = self.get(&action, &format!("/v1/events/{id}/blocks/{}/seats", encode(&block))).await?;
        let list = list["seats"].as_array().map(Vec::as_slice).unwrap_or_default();
        let seat = list.iter().find(|seat| seat["status"] == "available").or(list.first());
        let text = |name: &str| seat.and_then(|seat| seat[name].as_str()).unwrap_or_default().to_owned();
        Ok(DemoEvent {
            id: id.to_owned(),
            title: plan.title.to_owned(),
            seats,
            column: text("column"),
            row: text("row"),
            block,
        })
    }

    /// The engine's own time: whether an event is to come is for its clock to say.
    async fn now(&self) -> Result<DateTime<Utc>, DevError> {
        let action = "ask the time";
        let answer = self.get(action, "/v1/time").await?;
        let time = &answer["server_time"];
        let parsed = time.as_str().and_then(parse_time).or_else(|| DateTime::from_timestamp_millis(time.as_i64()?));
        parsed.ok_or_else(|| DevError::Refused { action: action.to_owned(), status: 200, body: answer.to_string() })
    }
}

fn parse_time(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc())
}

/// A number, or the length of a list: the import's answer counts what it does not list.
fn count(value: &Value) -> u64 {
    let length = || value.as_array().and_then(|list| u64::try_from(list.len()).ok());
    value.as_u64().or_else(length).unwrap_or(0)
}

/// Percent-encodes everything that means something in a URL, and every byte that is not ASCII: a block may be called
/// "1관" or "A/B".
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_any_name_fits_into_a_url() {
        assert_eq!(encode("101"), "101");
        assert_eq!(encode("1관 A/B?"), "1%EA%B4%80%20A%2FB%3F");
    }
}
