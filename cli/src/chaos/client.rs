//! A buyer's client: asks either API process, gives up early, and repeats itself under the same key when no answer came.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::runtime::clock::system_ms;
use reqwest::Method;
use serde_json::Value;

use super::record::{Ending, Kind, Recorder, Sample};

/// A client waits so long, and then asks again: shorter than the API's own limit, so that repeats meet work under way.
const PATIENCE: Duration = Duration::from_secs(4);
/// From one try to the next.
const BACK_OFF: Duration = Duration::from_millis(150);

/// A request.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What it is for.
    pub kind: Kind,
    /// GET, POST, DELETE.
    pub method: Method,
    /// From `/v1` on.
    pub path: String,
    /// The body.
    pub body: Option<Value>,
    /// Makes it repeatable.
    pub idempotency: Option<String>,
}

impl Ask {
    /// A GET.
    #[must_use]
    pub fn get(kind: Kind, path: String) -> Self {
        Self { kind, method: Method::GET, path, body: None, idempotency: None }
    }

    /// A POST.
    #[must_use]
    pub fn post(kind: Kind, path: String, body: Option<Value>, idempotency: String) -> Self {
        Self { kind, method: Method::POST, path, body, idempotency: Some(idempotency) }
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub enum Got {
    /// 2xx.
    Done(Value),
    /// A refusal that stands: its code.
    Refused(String),
    /// No answer, or none that says what happened.
    Nothing,
}

/// Asks the API processes.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    urls: Arc<[String]>,
    key: Arc<str>,
    recorder: Arc<Recorder>,
}

impl Client {
    /// A client with a key.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new(urls: &[String], key: &str, recorder: Arc<Recorder>) -> reqwest::Result<Self> {
        // The engine is on this machine: a proxy set for the outside must not be asked for it.
        let http = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?;
        Ok(Self { http, urls: urls.into(), key: key.into(), recorder })
    }

    /// How many API processes there are.
    #[must_use]
    pub fn apis(&self) -> usize {
        self.urls.len()
    }

    /// Asks one process once.
    pub async fn once(&self, api: usize, ask: &Ask) -> Got {
        let (sent_ms, began) = (system_ms(), Instant::now());
        let (ending, got) = self.send(api, ask).await;
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let at_ms = sent_ms - self.recorder.began_ms();
        self.recorder.take(Sample { at_ms, kind: ask.kind, took_us, ending });
        got
    }

    /// Asks up to `tries` times, each time the next process. Tells too whether any earlier try may have been heard.
    pub async fn insist(&self, first: usize, ask: &Ask, tries: usize) -> (Got, bool) {
        for attempt in 0..tries {
            let got = self.once(first + attempt, ask).await;
            if !matches!(got, Got::Nothing) {
                return (got, attempt > 0);
            }
            tokio::time::sleep(BACK_OFF).await;
        }
        (Got::Nothing, true)
    }

    async fn send(&self, api: usize, ask: &Ask) -> (Ending, Got) {
        let failed = |how: &str| (Ending::Failed(how.to_owned()), Got::Nothing);
        let Some(url) = self.urls.get(api % self.urls.len()) else { return failed("no API") };
        let mut request = self.http.request(ask.method.clone(), format!("{url}{}", ask.path)).bearer_auth(&self.key);
        if let Some(key) = &ask.idempotency {
            request = request.header("idempotency-key", key);
        }
        if let Some(body) = &ask.body {
            request = request.json(body);
        }
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) if error.is_timeout() => return failed("no answer in 4 s"),
            Err(error) if error.is_connect() => return failed("connection refused"),
            Err(_) => return failed("connection lost"),
        };
        let status = answer.status();
        let Ok(text) = answer.text().await else { return failed("connection lost") };
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return (Ending::Done, Got::Done(body));
        }
        let code = body["code"].as_str().unwrap_or("no problem document").to_owned();
        if status.is_server_error() || status.as_u16() == 429 || code == "request_in_progress" {
            return failed(&format!("{} {code}", status.as_u16()));
        }
        (Ending::Refused(code.clone()), Got::Refused(code))
    }
}
