//! The two processes started for real, over HTTP, and killed for real.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

/// The binary, built with these tests from the same sources.
const BINARY: &str = env!("CARGO_BIN_EXE_holdfast-under-test");

/// A process that dies with its test.
struct Process(Child);

impl Process {
    fn start(test: &TestStores, arguments: &[&str]) -> Self {
        Self(command(test, arguments).spawn().expect("the binary starts"))
    }

    /// `kill -9`.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _already_dead = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn command(test: &TestStores, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(arguments)
        .env("DATABASE_URL", &test.settings.database_url)
        .env("REDIS_URL", &test.settings.redis_url)
        .env("HOLDFAST_REDIS_PREFIX", &test.settings.redis_prefix)
        .env("HOLDFAST_REDIS_CONFIGURE", "false")
        .env("HOLDFAST_FAKE_PROVIDER", "true")
        .env("HOLDFAST_LOG", "warn")
        .stdin(Stdio::null());
    command
}

/// What a command prints, as JSON.
fn printed(test: &TestStores, arguments: &[&str]) -> Value {
    let output = command(test, arguments).output().expect("the binary runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

fn free_addr() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free").to_string()
}

/// An API process, a key, and an event there on the demo stadium.
struct Engine {
    test: TestStores,
    _api: Process,
    client: Client,
    url: String,
    key: String,
    event: String,
}

impl Engine {
    /// Everything but a worker.
    async fn start(hold_ttl_seconds: u32) -> Self {
        let test = TestStores::start().await;
        let made = printed(&test, &["keys", "create", "--scope", "admin", "--name", "test", "--json"]);
        let (addr, ops) = (free_addr(), free_addr());
        let api = Process::start(&test, &["api", "--addr", &addr, "--ops-addr", &ops]);
        let client = Client::builder().no_proxy().build().expect("a client can be made");
        let key = made["key"].as_str().expect("a key was made").to_owned();
        let mut engine = Self { test, _api: api, client, url: format!("http://{addr}"), key, event: String::new() };
        let ready = format!("http://{ops}/readyz");
        until("the api to be ready", async || {
            engine.client.get(&ready).send().await.ok().filter(|answer| answer.status().is_success())
        })
        .await;
        engine.event = engine.open_stadium(hold_ttl_seconds).await;
        engine
    }

    async fn open_stadium(&self, hold_ttl_seconds: u32) -> String {
        let file = domain::import::export_csv(&domain::demo::stadium());
        let import = format!("{}/v1/venues/import?format=csv&name=Stadium&time_zone=Asia/Seoul", self.url);
        let request = self.client.post(import).header("content-type", "text/csv").body(file);
        let venue = self.answer(request).await;
        let plan = json!({
            "venue": venue["venue"], "title": "Opening day", "starts_at": "2030-05-01T18:30", "currency": "KRW",
            "prices": domain::demo::demo_prices().stadium, "hold_ttl_seconds": hold_ttl_seconds,
        });
        let event = self.post("/v1/events", &plan).await;
        let id = event["id"].as_str().expect("an event was made").to_owned();
        // The worker that opens it is one of its own, so that a test decides when its workers run.
        let worker = Process::start(&self.test, &["worker"]);
        self.post(&format!("/v1/events/{id}/open"), &json!({})).await;
        until("the event to be on sale", async || {
            (self.get(&format!("/v1/events/{id}")).await["status"] == "on_sale").then_some(())
        })
        .await;
        worker.kill();
        id
    }

    async fn answer(&self, request: RequestBuilder) -> Value {
        let answer = request.bearer_auth(&self.key).send().await.expect("the api answers");
        let status = answer.status();
        let text = answer.text().await.expect("the answer has a body");
        assert!(status.is_success(), "{status}: {text}");
        serde_json::from_str(&text).expect("the body is JSON")
    }

    async fn get(&self, path: &str) -> Value {
        self.answer(self.client.get(format!("{}{path}", self.url))).await
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        self.answer(self.client.post(format!("{}{path}", self.url)).json(body)).await
    }

    async fn hold(&self, column: &str) -> String {
        let seat = json!({ "block": "101", "row": "1", "column": column });
        let path = format!("/v1/events/{}/reservations", self.event);
        let held = self.post(&path, &json!({ "buyer": "anna", "seats": [seat] })).await;
        held["id"].as_str().expect("a reservation was made").to_owned()
    }

    async fn reservation(&self, id: &str) -> Value {
        self.get(&format!("/v1/reservations/{id}")).await
    }

    async fn seat_status(&self, column: &str) -> String {
        let block = self.get(&format!("/v1/events/{}/blocks/101/seats", self.event)).await;
        let seats = block["seats"].as_array().expect("a block has seats");
        let seat = seats.iter().find(|seat| seat["row"] == "1" && seat["column"] == column).expect("the seat is there");
        seat["status"].as_str().expect("a seat has a status").to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paid_is_sold_though_its_worker_is_killed_in_between() {
    let engine = Engine::start(600).await;
    let worker = Process::start(&engine.test, &["worker"]);
    let reservation = engine.hold("1").await;
    assert_eq!(engine.seat_status("1").await, "held");
    // The provider takes three seconds: the worker is killed while it waits.
    let payments = format!("/v1/reservations/{reservation}/payments");
    let payment = engine.post(&payments, &json!({ "provider": "fake", "token": "tok_delay_3s" })).await;
    let in_flight = async || {
        let starts = domain::queue::queue_stats(engine.test.stores.jobs.redis()).await.expect("the queues answer");
        starts.iter().any(|queue| queue.in_flight > 0).then_some(())
    };
    until("the payment's job to run", in_flight).await;
    worker.kill();
    assert_eq!(engine.reservation(&reservation).await["status"], "PENDING");
    let _next_worker = Process::start(&engine.test, &["worker"]);
    until("the reservation to be confirmed", async || {
        (engine.reservation(&reservation).await["status"] == "CONFIRMED").then_some(())
    })
    .await;
    let payment = engine.get(&format!("/v1/payments/{}", payment["id"].as_str().expect("a payment has an id"))).await;
    assert_eq!(payment["status"], "captured");
    until("the seat to be shown as sold", async || (engine.seat_status("1").await == "sold").then_some(())).await;
    assert_eq!(engine.test.count("SELECT sum(captures) FROM fake_provider_ledger").await, 1);
}

// A-E4
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_paid_is_free_at_its_deadline_and_tidied_up_by_the_next_worker() {
    let engine = Engine::start(2).await;
    let worker = Process::start(&engine.test, &["worker"]);
    let reservation = engine.hold("2").await;
    worker.kill();
    // No worker runs: the deadline is a comparison.
    until("the seat to look free", async || (engine.seat_status("2").await == "available").then_some(())).await;
    let next = engine.hold("2").await;
    assert_eq!(engine.reservation(&reservation).await["cancel_reason"], "expired");
    let _next_worker = Process::start(&engine.test, &["worker"]);
    until("the second hold to be tidied up", async || {
        let tidy = format!("SELECT count(*) FROM reservations WHERE id = '{next}' AND cancel_reason = 'expired'");
        let row: (i64,) = sqlx::query_as(sqlx::AssertSqlSafe(tidy)).fetch_one(&engine.test.sql).await.ok()?;
        (row.0 == 1).then_some(())
    })
    .await;
    assert_eq!(engine.seat_status("2").await, "available");
}

/// The README's examples, run as they stand there, with the three values that `./dev up` prints.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_readme_run() {
    let engine = Engine::start(600).await;
    let _worker = Process::start(&engine.test, &["worker"]);
    let readme = include_str!("../../README.md");
    let section = readme.split("## Five requests").nth(1).and_then(|rest| rest.split("\n## ").next());
    let section = section.expect("the README has its examples");
    let examples: Vec<&str> = section
        .split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|it| it.contains("curl"))
        .collect();
    assert_eq!(examples.len(), 5, "five examples");
    let mut reservation = String::new();
    for example in examples {
        let is_release = example.contains("-X DELETE");
        if is_release {
            reservation = engine.hold("9").await;
        }
        let script: String =
            example.lines().filter(|line| !line.starts_with("RESERVATION=")).collect::<Vec<_>>().join("\n");
        let output = Command::new("bash")
            .args(["-c", &script.replace("curl -s", "curl -s --fail-with-body --noproxy '*'")])
            .envs([("API", &engine.url), ("KEY", &engine.key), ("EVENT", &engine.event), ("RESERVATION", &reservation)])
            .output()
            .expect("bash and curl are there");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{example}\n{text}");
        let answer: Value = serde_json::from_str(&text).expect("the answer is JSON");
        if example.contains("/reservations \\") {
            reservation = answer["id"].as_str().expect("a reservation was made").to_owned();
        }
        if example.contains("tok_ok") {
            until("the reservation to be confirmed", async || {
                (engine.reservation(&reservation).await["status"] == "CONFIRMED").then_some(())
            })
            .await;
        }
        if is_release {
            assert_eq!(answer["status"], "CANCELLED");
        }
    }
}
