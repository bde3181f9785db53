//! The engine's own processes, started for real: `holdfast api` and `holdfast worker`, to be asked over HTTP and killed.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Duration;

use holdfast::services::SupervisedProcess;
use nix::sys::signal::Signal;
use reqwest::{Client, StatusCode};
use serde_json::Value;

use crate::stores::TestStores;
use crate::wait::until;

/// How long a process may take to end in good order.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A process of the engine. Dropped, it is killed; and it dies with the test.
pub struct EngineProcess(SupervisedProcess);

impl EngineProcess {
    /// Starts `holdfast`, the binary at `binary`, with these arguments on the test's stores.
    pub fn start(binary: &str, test: &TestStores, arguments: &[&str]) -> Self {
        Self::start_with(binary, test, arguments, &[])
    }

    /// [`EngineProcess::start`] with more in its environment, or something else than usual.
    pub fn start_with(binary: &str, test: &TestStores, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        assert_eq!(test.clock.offset_ms(), 0, "another process does not share the test's clock");
        let settings = &test.settings;
        let mut command = Command::new(binary);
        command
            .args(arguments)
            .env("DATABASE_URL", &settings.database_url)
            .env("REDIS_URL", &settings.redis_url)
            .env("HOLDFAST_REDIS_PREFIX", &settings.redis_prefix)
            .env("HOLDFAST_REDIS_CONFIGURE", "false")
            .env("HOLDFAST_FAKE_PROVIDER", "true")
            .env("HOLDFAST_PG_CONNECTIONS", "8")
            .env("HOLDFAST_LOG", std::env::var("HOLDFAST_TEST_LOG").unwrap_or_else(|_| "error".to_owned()))
            .envs(environment.iter().copied());
        Self(SupervisedProcess::spawn(command, Signal::SIGKILL).expect("the binary starts"))
    }

    /// Kills it as a crash of the machine would.
    pub fn kill(&mut self) {
        self.0.kill().expect("it can be killed");
    }

    /// Freezes it: it holds what it holds and does nothing.
    pub fn pause(&mut self) {
        self.0.signal(Signal::SIGSTOP).expect("it can be stopped");
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.0.signal(Signal::SIGCONT).expect("it can go on");
    }

    /// Asks it to end, and waits. Returns whether it ended in good order.
    pub fn stop(&mut self) -> bool {
        self.0.signal(Signal::SIGTERM).expect("it can be asked");
        let ended = self.0.wait_for_exit(STOP_LIMIT).expect("it can be waited for");
        ended.is_some_and(|status| status.success())
    }
}

/// An API process and a client for it.
pub struct ApiProcess {
    /// The process.
    pub process: EngineProcess,
    /// `http://127.0.0.1:port`
    pub url: String,
    client: Client,
}

impl ApiProcess {
    /// Starts an API process on free ports and waits until it answers.
    pub async fn start(binary: &str, test: &TestStores) -> Self {
        Self::start_with(binary, test, &[]).await
    }

    /// [`ApiProcess::start`] with more in its environment, or something else than usual.
    pub async fn start_with(binary: &str, test: &TestStores, environment: &[(&str, &str)]) -> Self {
        let (port, ops_port) = (free_port(), free_port());
        let (addr, ops_addr) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{ops_port}"));
        let arguments = ["api", "--addr", &addr, "--ops-addr", &ops_addr];
        let process = EngineProcess::start_with(binary, test, &arguments, environment);
        let api = Self { process, url: format!("http://{addr}"), client: client() };
        let ready = format!("http://{ops_addr}/readyz");
        until("the API to be ready", async || {
            let answer = api.client.get(&ready).send().await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
        api
    }

    /// Sends a request, as nobody where the key is empty; none where no answer came.
    pub async fn try_send(
        &self,
        (method, path): (&str, &str),
        (key, idempotency): (&str, Option<&str>),
        body: Option<&Value>,
    ) -> Option<(StatusCode, Value)> {
        let mut request = self.client.request(method.parse().expect("a method"), format!("{}{path}", self.url));
        if !key.is_empty() {
            request = request.bearer_auth(key);
        }
        if let Some(idempotency) = idempotency {
            request = request.header("idempotency-key", idempotency);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Sends a request and gets an answer.
    ///
    /// # Panics
    /// Where none came.
    pub async fn send(&self, method: &str, path: &str, key: &str, body: Option<&Value>) -> (StatusCode, Value) {
        self.try_send((method, path), (key, None), body).await.expect("the API answers")
    }
}

fn client() -> Client {
    Client::builder().timeout(Duration::from_secs(20)).build().expect("a client")
}

/// A port that nobody listens on at this moment.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free").local_addr().expect("it has a number").port()
}
