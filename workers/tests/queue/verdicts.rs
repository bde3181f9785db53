//! What becomes of a job that is not done.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use domain::queue::{JobState, Queue, Retention};
use workers::{outcome::JobError, supervisor::QueuePolicy};

use crate::support::{World, counting, handler, hasty, job, jobs, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_payload_goes_to_the_dead_list_and_hurts_nobody() {
    let world = World::new();
    let queue = Queue::Payments;
    world.enqueue(&jobs(queue, 30, "count")).await;
    for (id, rubbish) in [("j-3", "\u{1}not json"), ("j-4", ""), ("j-5", r#"{"v":1}"#), ("j-6", "[1,2")] {
        world.cli(&["HSET", &world.key(queue, "data"), id, rubbish]);
    }
    // An id that apalis keeps but that is not one of ours.
    world.cli(&["HSET", &world.key(queue, "data"), "§", "{}"]);
    world.cli(&["HSET", &world.key(queue, "meta:§"), "attempts", "0", "max_attempts", "0", "status", "Pending"]);
    world.cli(&["LPUSH", &world.key(queue, "active"), "§"]);
    let (count, handler) = counting("count");
    let working = world.work(queue, hasty(), vec![handler]);
    let stats = world.until_done(queue, 26).await;
    let stats = if stats.dead == 5 {
        stats
    } else {
        until("5 dead", || async { Some(world.stats(queue).await).filter(|s| s.dead == 5) }).await
    };
    assert_eq!((stats.done, stats.ready), (26, 0));
    assert_eq!(working.stop().await.restarts, 0);
    assert_eq!(count.load(Ordering::SeqCst), 26);
    for id in ["j-3", "j-4", "j-5", "j-6"] {
        let reason = world.job(queue, id).await.reason.unwrap();
        assert!(reason.starts_with("undecodable: "), "{reason}");
    }
    let reason = world.job(queue, "§").await.reason.unwrap();
    assert!(reason.starts_with("not a job id"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_without_data_ends_no_worker_twice() {
    let world = World::new();
    let queue = Queue::Payments;
    world.enqueue(&jobs(queue, 10, "count")).await;
    world.cli(&["HDEL", &world.key(queue, "data"), "j-2"]);
    world.cli(&["DEL", &world.key(queue, "meta:j-7")]);
    let (_, handler) = counting("count");
    let working = world.work(queue, hasty(), vec![handler]);
    let stats = world.until_done(queue, 8).await;
    assert_eq!(stats.ready, 0);
    let report = working.stop().await;
    assert!((1..=2).contains(&report.restarts), "apalis fails on each at most once: {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_a_panicking_and_a_slow_job_are_retried_and_then_dead() {
    let world = World::new();
    let queue = Queue::Payments;
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    let bad = handler("bad", move |delivery| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            match delivery.id.as_str() {
                "fails" => Err(JobError::retry(format!("attempt {} of {}", delivery.attempt, delivery.attempts_max))),
                "panics" => panic!("no seat {}", 7),
                _ => {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    Ok(())
                }
            }
        }
    });
    let (count, good) = counting("count");
    world.tend(Retention::default());
    let policy = QueuePolicy { run_limit: Duration::from_millis(150), ..hasty() };
    let working = world.work(queue, policy, vec![bad, good]);
    world.enqueue(&[job(queue, "fails", "bad"), job(queue, "panics", "bad"), job(queue, "hangs", "bad")]).await;
    world.enqueue(&jobs(queue, 20, "count")).await;
    for (id, reason) in
        [("fails", "attempt 3 of 3"), ("panics", "panicked: no seat 7"), ("hangs", "took longer than 150 ms")]
    {
        let view = world.until_state(queue, id, JobState::Dead).await;
        assert_eq!((view.attempts, view.starts, view.reason.as_deref()), (3, 3, Some(reason)), "{id}");
        assert!(view.ended_ms.is_some() && view.worker.is_none());
    }
    let stats = world.until_done(queue, 20).await;
    assert_eq!((stats.dead, stats.totals.dead, stats.totals.retried), (3, 3, 6));
    assert_eq!(working.stop().await.restarts, 0);
    assert_eq!((runs.load(Ordering::SeqCst), count.load(Ordering::SeqCst)), (9, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_succeeds_on_a_later_attempt_is_done() {
    let world = World::new();
    let flaky = handler("flaky", |delivery| async move {
        if delivery.is_last_attempt() { Ok(()) } else { Err(JobError::retry("not yet")) }
    });
    world.tend(Retention::default());
    let working = world.work(Queue::Payments, hasty(), vec![flaky]);
    world.enqueue(&[job(Queue::Payments, "flaky", "flaky")]).await;
    let view = world.until_state(Queue::Payments, "flaky", JobState::Done).await;
    assert_eq!((view.attempts, view.starts, view.reason), (3, 3, None));
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_is_not_counted_as_an_attempt() {
    let world = World::new();
    let snoozing = handler("snooze", |delivery| async move {
        match delivery.starts {
            1..=4 => Err(JobError::later(Duration::from_millis(10), "too early")),
            5 => Err(JobError::later_at_ms(delivery.enqueued_ms + 1_000, "at one second")),
            _ => Ok(()),
        }
    });
    world.tend(Retention::default());
    let working = world.work(Queue::Payments, hasty(), vec![snoozing]);
    world.enqueue(&[job(Queue::Payments, "snooze", "snooze")]).await;
    let view = world.until_state(Queue::Payments, "snooze", JobState::Done).await;
    assert_eq!((view.attempts, view.starts), (1, 6));
    let waited = view.started_ms.unwrap() - view.enqueued_ms.unwrap();
    assert!((1_000..1_500).contains(&waited), "{waited} ms");
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_and_a_payload_of_another_shape_are_dead_at_once() {
    let world = World::new();
    let queue = Queue::Payments;
    let hopeless = handler("hopeless", |_| async { Err(JobError::never("the event is gone")) });
    let shaped = handler("shaped", |delivery| async move { delivery.payload_as::<u32>().map(drop) });
    let working = world.work(queue, hasty(), vec![hopeless, shaped]);
    world.enqueue(&[job(queue, "hopeless", "hopeless"), job(queue, "shaped", "shaped")]).await;
    let view = world.until_state(queue, "hopeless", JobState::Dead).await;
    assert_eq!((view.attempts, view.reason.as_deref()), (1, Some("the event is gone")));
    let view = world.until_state(queue, "shaped", JobState::Dead).await;
    assert!(view.reason.unwrap().starts_with("payload: invalid type: map"));
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_this_release_does_not_know_waits_for_one_that_does() {
    let world = World::new();
    let queue = Queue::Payments;
    let (_, other) = counting("other");
    world.tend(Retention::default());
    let old = world.work(queue, QueuePolicy { attempts_max: 1_000, ..hasty() }, vec![other]);
    world.enqueue(&[job(queue, "new", "brand-new")]).await;
    until("a try of the old release", || async { (world.job(queue, "new").await.starts >= 2).then_some(()) }).await;
    let (count, handler) = counting("brand-new");
    let new = world.work(queue, hasty(), vec![handler]);
    old.stop().await;
    world.enqueue(&[job(queue, "next", "brand-new")]).await;
    world.until_done(queue, 2).await;
    new.stop().await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_store_is_down_the_queue_pauses_and_no_job_is_counted() {
    let world = World::new();
    let queue = Queue::Payments;
    let down = Arc::new(AtomicBool::new(true));
    let runs = Arc::new(AtomicU32::new(0));
    let (is_down, counter) = (Arc::clone(&down), Arc::clone(&runs));
    let needy = handler("needy", move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let down = is_down.load(Ordering::SeqCst);
        async move { if down { Err(JobError::store_down("no connection")) } else { Ok(()) } }
    });
    world.tend(Retention::default());
    let working = world.work(queue, hasty(), vec![needy]);
    world.enqueue(&jobs(queue, 500, "needy")).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let while_down = runs.load(Ordering::SeqCst);
    assert!((1..200).contains(&while_down), "{while_down} runs while the store was down");
    down.store(false, Ordering::SeqCst);
    let stats = world.until_done(queue, 500).await;
    assert_eq!((stats.dead, stats.totals.retried), (0, 0));
    assert_eq!(working.stop().await.restarts, 0);
    for id in ["j-0", "j-499"] {
        assert_eq!(world.job(queue, id).await.attempts, 1, "{id}");
    }
}
