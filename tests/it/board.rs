//! The operations board tells the truth about our queues, and stays cheap with a long history.

use std::time::{Duration, Instant};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use domain::queue::Queue;
use serde_json::Value;
use tower::ServiceExt;
use workers::{outcome::JobError, supervisor::QueuePolicy};

#[expect(dead_code, reason = "the support of the queues' tests; this module needs a part of it")]
#[path = "../../workers/tests/queue/support.rs"]
mod support;

use support::{World, counting, handler, hasty, job, jobs, until};

async fn ask(board: &Router, method: &str, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response = board.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 16 << 20).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn read(board: &Router, path: &str) -> Value {
    let (status, body) = ask(board, "GET", path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn statistic<'a>(stats: &'a Value, title: &str) -> &'a str {
    let stats = stats.as_array().unwrap();
    let found = stats.iter().find(|stat| stat["title"] == title).unwrap_or_else(|| panic!("no {title} in {stats:?}"));
    found["value"].as_str().unwrap()
}

fn ids(tasks: &Value) -> Vec<&str> {
    tasks.as_array().unwrap().iter().map(|task| task["ctx"]["task_id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_board_shows_queues_workers_and_jobs_as_they_are() {
    let world = World::new();
    let queue = Queue::Payments;
    let board = api::ops::board::board_router(&world.redis);
    let hang = handler("hang", |_| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    let (_, good) = counting("count");
    let hopeless = handler("hopeless", |_| async { Err(JobError::never("the event is gone")) });
    let failing = handler("failing", |_| async { Err(JobError::retry("no answer")) });
    let policy = QueuePolicy {
        concurrency: 4,
        retry_base: Duration::from_secs(600),
        retry_cap: Duration::from_secs(600),
        stop_limit: Duration::from_millis(50),
        ..hasty()
    };
    world
        .enqueue(&[job(queue, "dead", "hopeless"), job(queue, "failed", "failing"), job(queue, "done", "count")])
        .await;
    world.enqueue(&jobs(queue, 7, "hang")).await;
    world.enqueue(&[job(queue, "delayed", "hang").not_before_ms(i64::from(u32::MAX) * 1_000)]).await;
    let working = world.work(queue, policy, vec![hang, good, hopeless, failing]);
    until("a full worker", || async {
        let stats = world.stats(queue).await;
        (stats.in_flight == 4 && stats.ready == 3).then_some(())
    })
    .await;

    let queues = read(&board, "/api/v1/queues").await;
    let names: Vec<_> = queues.as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["payments", "expiries", "events", "warm-up"]);
    let [own, idle, ..] = queues.as_array().unwrap().as_slice() else { panic!("{queues}") };
    assert_eq!((own["workers"].as_array().unwrap().len(), idle["workers"].as_array().unwrap().len()), (1, 0));
    assert_eq!(own["activity"], serde_json::json!([0, 0, 0, 0, 0, 0, 2]));
    for stats in
        [&own["stats"], &read(&board, "/api/v1/queues/payments/stats").await, &read(&board, "/api/v1/overview").await]
    {
        let figures = ["TOTAL_JOBS", "PENDING_JOBS", "RUNNING_JOBS", "DONE_JOBS", "FAILED_JOBS", "KILLED_JOBS"];
        assert_eq!(figures.map(|title| statistic(stats, title)), ["11", "4", "4", "1", "1", "1"]);
        assert_eq!(statistic(stats, "SUCCESS_RATE"), "50.00");
    }
    assert_eq!(statistic(&read(&board, "/api/v1/queues/events/stats").await, "TOTAL_JOBS"), "0");

    let workers = read(&board, "/api/v1/queues/payments/workers").await;
    assert_eq!(workers, read(&board, "/api/v1/workers").await);
    let worker = &workers[0];
    assert_eq!((worker["queue"].as_str(), worker["id"].as_str()), (Some("payments"), own["workers"][0].as_str()));
    assert!(worker["started_at"].as_u64().unwrap() > 1_700_000_000);

    let tasks = |query: &str| format!("/api/v1/queues/payments/tasks?{query}");
    assert_eq!(ids(&read(&board, &tasks("status=Killed&page=1")).await), ["dead"]);
    assert_eq!(ids(&read(&board, &tasks("status=Failed&page=1")).await), ["failed"]);
    assert_eq!(ids(&read(&board, &tasks("status=Done&page=1")).await), ["done"]);
    assert_eq!(ids(&read(&board, &tasks("status=Pending&page=1")).await), ["j-4", "j-5", "j-6", "delayed"]);
    assert_eq!(ids(&read(&board, &tasks("status=Pending&page=2&page_size=3")).await), ["delayed"]);
    assert_eq!(ids(&read(&board, &tasks("status=Running&page=1")).await), ["j-0", "j-1", "j-2", "j-3"]);
    let everything = ["j-0", "j-1", "j-2", "j-3", "dead", "failed", "j-4", "j-5", "j-6", "delayed", "done"];
    let mut pages = Vec::new();
    for page in 1..=4 {
        let listed = read(&board, &format!("/api/v1/tasks?page={page}&page_size=3")).await;
        pages.extend(ids(&listed).into_iter().map(str::to_owned));
    }
    assert_eq!(pages, everything);

    let dead = read(&board, "/api/v1/queues/payments/tasks/dead").await;
    assert_eq!((dead["ctx"]["status"].as_str(), dead["ctx"]["attempt"].as_u64()), (Some("Killed"), Some(1)));
    assert_eq!(dead["ctx"]["metadata"]["reason"], "the event is gone");
    assert_eq!(
        (dead["args"]["kind"].as_str(), dead["args"]["payload"]["id"].as_str()),
        (Some("hopeless"), Some("dead"))
    );
    let running = read(&board, "/api/v1/queues/payments/tasks/j-0").await;
    assert_eq!(running["ctx"]["lock_by"], worker["id"]);
    assert_eq!(ask(&board, "GET", "/api/v1/queues/payments/tasks/nobody").await.0, StatusCode::NOT_FOUND);
    working.stop().await;
    assert_eq!(read(&board, "/api/v1/workers").await, serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_board_enqueues_nothing_and_serves_its_pages() {
    let world = World::new();
    let board = api::ops::board::board_router(&world.redis);
    for method in ["PUT", "POST", "DELETE", "PATCH"] {
        let (status, body) = ask(&board, method, "/api/v1/queues/payments/tasks").await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["code"], "method_not_allowed");
    }
    assert_eq!(world.stats(Queue::Payments).await.totals.enqueued, 0);
    assert_eq!(ask(&board, "GET", "/api/v1/events").await.0, StatusCode::NO_CONTENT);
    let (status, page) = ask(&board, "GET", "/").await;
    assert_eq!(status, StatusCode::OK);
    let script = page.split('"').find(|part| part.ends_with(".js")).expect("the page names its script").to_owned();
    let (status, script) = ask(&board, "GET", &format!("/{}", script.trim_start_matches('/'))).await;
    assert!(status == StatusCode::OK && script.contains("wasm"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_done_jobs_cost_the_board_nothing() {
    let world = World::new();
    let queue = Queue::Payments;
    let script = "for n = 1, tonumber(ARGV[1]) do local id = 'old-' .. n \
                  redis.call('HSET', KEYS[1], id, '{\"v\":1,\"kind\":\"count\",\"payload\":{},\"enqueued_ms\":1}') \
                  redis.call('ZADD', KEYS[2], n, id) end redis.call('HINCRBY', KEYS[3], 'done', ARGV[1])";
    let [data, done, totals] = ["data", "done_ms", "totals"].map(|rest| world.key(queue, rest));
    world.cli(&["EVAL", script, "3", &data, &done, &totals, "1000000"]);
    let board = api::ops::board::board_router(&world.redis);
    read(&board, "/api/v1/overview").await;
    for path in [
        "/api/v1/queues",
        "/api/v1/overview",
        "/api/v1/workers",
        "/api/v1/tasks?page=1",
        "/api/v1/queues/payments/stats",
        "/api/v1/queues/payments/tasks?status=Done&page=1&page_size=20",
        "/api/v1/queues/payments/tasks?status=Done&page=40000&page_size=20",
    ] {
        let asked = Instant::now();
        read(&board, path).await;
        // A full pass over the history would take a second and more, of Redis's time.
        assert!(asked.elapsed() < Duration::from_millis(250), "{path} took {:?}", asked.elapsed());
    }
    let listed = read(&board, "/api/v1/queues/payments/tasks?status=Done&page=2&page_size=2").await;
    assert_eq!(ids(&listed), ["old-999998", "old-999997"]);
}
