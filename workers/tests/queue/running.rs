//! Enqueueing, waking, throughput, parallel runs, delays, stops.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use domain::queue::{Enqueued, JobState, Queue, Retention};
use tokio::sync::{Semaphore, mpsc};

use crate::support::{World, counting, handler, hasty, job, jobs, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_enqueued_once_by_its_id_even_after_it_is_done() {
    let world = World::new();
    let batch = jobs(Queue::Payments, 1_200, "count");
    assert_eq!(world.enqueue(&batch).await, Enqueued { added: 1_200, known: 0 });
    assert_eq!(world.enqueue(&batch[..3]).await, Enqueued { added: 0, known: 3 });
    // The same id in another queue is another job.
    assert_eq!(world.enqueue(&jobs(Queue::Events, 1, "count")).await, Enqueued { added: 1, known: 0 });
    let (count, handler) = counting("count");
    let working = world.work(Queue::Payments, hasty(), vec![handler]);
    world.until_done(Queue::Payments, 1_200).await;
    assert_eq!(world.enqueue(&batch).await, Enqueued { added: 0, known: 1_200 });
    working.stop().await;
    assert_eq!(count.load(Ordering::SeqCst), 1_200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recurring_job_runs_again_once_it_is_done_and_not_before() {
    let world = World::new();
    let recurring = job(Queue::Expiries, "expire-1", "count").again_after_done();
    assert_eq!(world.enqueue(std::slice::from_ref(&recurring)).await.added, 1);
    assert_eq!(world.enqueue(std::slice::from_ref(&recurring)).await.known, 1, "it waits");
    let (count, handler) = counting("count");
    let working = world.work(Queue::Expiries, hasty(), vec![handler]);
    world.until_state(Queue::Expiries, "expire-1", JobState::Done).await;
    assert_eq!(world.enqueue(std::slice::from_ref(&recurring)).await.added, 1, "it is done");
    world.until_done(Queue::Expiries, 2).await;
    working.stop().await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_wakes_an_idle_worker_at_once() {
    let world = World::new();
    let (started, mut starts) = mpsc::unbounded_channel();
    let note = handler("note", move |_| {
        started.send(Instant::now()).unwrap();
        async { Ok(()) }
    });
    let working = world.work(Queue::Payments, hasty(), vec![note]);
    world.enqueue(&[job(Queue::Payments, "first", "note")]).await;
    starts.recv().await.unwrap();
    let mut waits = Vec::new();
    for n in 0_u64..20 {
        // Idle for a time that is no multiple of any timer, so that a poll cannot be lucky twenty times.
        tokio::time::sleep(Duration::from_millis(37 + n * 11)).await;
        let pushed = Instant::now();
        world.enqueue(&[job(Queue::Payments, &format!("n-{n}"), "note")]).await;
        waits.push(starts.recv().await.unwrap() - pushed);
    }
    waits.sort_unstable();
    assert!(waits[10] < Duration::from_millis(40), "half of the pushes waited longer than {:?}: {waits:?}", waits[10]);
    assert!(waits[17] < Duration::from_millis(200), "{waits:?}");
    assert_eq!(working.stop().await.restarts, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_ready_jobs_all_run_once() {
    let world = World::new();
    let added = world.enqueue(&jobs(Queue::Payments, 20_000, "count")).await.added;
    assert_eq!(added, 20_000);
    let (count, handler) = counting("count");
    let policy = workers::supervisor::QueuePolicy { concurrency: 64, ..hasty() };
    let working = world.work(Queue::Payments, policy, vec![handler]);
    let stats = world.until_done(Queue::Payments, 20_000).await;
    assert_eq!((stats.ready, stats.dead), (0, 0));
    assert_eq!(working.stop().await.restarts, 0);
    assert_eq!(count.load(Ordering::SeqCst), 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_thousand_due_in_apaliss_schedule_do_not_wedge_the_queue() {
    let world = World::new();
    let queue = Queue::Payments;
    world.enqueue(&jobs(queue, 30_000, "count")).await;
    // What apalis's own push, or a storm of its own retries, would have left.
    let script = "for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[2], 1, id) end \
                  redis.call('DEL', KEYS[1]) return redis.call('ZCARD', KEYS[2])";
    let moved = world.cli(&["EVAL", script, "2", &world.key(queue, "active"), &world.key(queue, "scheduled")]);
    assert_eq!(moved, "30000");
    let (count, handler) = counting("count");
    let policy = workers::supervisor::QueuePolicy { concurrency: 64, ..hasty() };
    let working = world.work(queue, policy, vec![handler]);
    world.tend(Retention::default());
    world.until_done(queue, 30_000).await;
    working.stop().await;
    assert_eq!(count.load(Ordering::SeqCst), 30_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_use_both_cores() {
    let world = World::new();
    let inside = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let (counted, peak) = (Arc::clone(&inside), Arc::clone(&most));
    let blocking = handler("block", move |_| {
        let (inside, most) = (Arc::clone(&counted), Arc::clone(&peak));
        async move {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Computes without an await: in one task the second could not begin meanwhile.
            std::thread::sleep(Duration::from_millis(30));
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    world.enqueue(&jobs(Queue::Payments, 20, "block")).await;
    let working = world.work(Queue::Payments, hasty(), vec![blocking]);
    world.until_done(Queue::Payments, 20).await;
    working.stop().await;
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_takes_no_more_jobs_than_it_can_start() {
    let world = World::new();
    let gate = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&gate);
    let wait = handler("wait", move |_| {
        let gate = Arc::clone(&waiting);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    world.enqueue(&jobs(Queue::Payments, 100, "wait")).await;
    let policy = workers::supervisor::QueuePolicy { concurrency: 8, ..hasty() };
    let working = world.work(Queue::Payments, policy, vec![wait]);
    until("8 in flight", || async { (world.stats(Queue::Payments).await.in_flight == 8).then_some(()) }).await;
    gate.add_permits(3);
    world.until_done(Queue::Payments, 3).await;
    until("full again", || async { (world.stats(Queue::Payments).await.in_flight >= 7).then_some(()) }).await;
    let stats = world.stats(Queue::Payments).await;
    assert!(stats.in_flight <= 8, "{stats:?}");
    assert_eq!(stats.in_flight + stats.ready + stats.done, 100);
    gate.add_permits(97);
    world.until_done(Queue::Payments, 100).await;
    assert_eq!(working.stop().await.restarts, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_job_runs_at_its_time_and_never_before() {
    let world = World::new();
    let (started, mut starts) = mpsc::unbounded_channel();
    let note = handler("note", move |delivery| {
        started.send(delivery.id).unwrap();
        async { Ok(()) }
    });
    let working = world.work(Queue::Payments, hasty(), vec![note]);
    world.tend(Retention::default());
    world.enqueue(&[job(Queue::Payments, "now", "note")]).await;
    starts.recv().await.unwrap();
    let now_ms = world.job(Queue::Payments, "now").await.started_ms.unwrap();
    for n in 0..5_i64 {
        let due = now_ms + 400 + n * 333;
        world.enqueue(&[job(Queue::Payments, &format!("d-{n}"), "note").not_before_ms(due)]).await;
    }
    assert_eq!(world.stats(Queue::Payments).await.delayed, 5);
    for n in 0..5_i64 {
        starts.recv().await.unwrap();
        let view = world.job(Queue::Payments, &format!("d-{n}")).await;
        let late = view.started_ms.unwrap() - (now_ms + 400 + n * 333);
        assert!((0..300).contains(&late), "{late} ms late");
    }
    // A time that has passed means at once.
    world.enqueue(&[job(Queue::Payments, "past", "note").not_before_ms(1)]).await;
    starts.recv().await.unwrap();
    working.stop().await;
}

// A-J5: a delay of three leases, four workers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_delayed_for_longer_than_the_lease_run_once_and_on_time() {
    let world = World::new();
    let queue = Queue::Payments;
    let (count, handler) = counting("count");
    let workers: Vec<_> = (0..4).map(|_| world.work(queue, hasty(), vec![Arc::clone(&handler)])).collect();
    world.tend(Retention::default());
    world.enqueue(&[job(queue, "now", "count")]).await;
    let now_ms = world.until_state(queue, "now", JobState::Done).await.started_ms.unwrap();
    let due = now_ms + 6_000;
    let delayed: Vec<_> = jobs(queue, 30, "count").into_iter().map(|job| job.not_before_ms(due)).collect();
    world.enqueue(&delayed).await;
    world.until_done(queue, 31).await;
    for n in 0..30 {
        let view = world.job(queue, &format!("j-{n}")).await;
        let late = view.started_ms.unwrap() - due;
        assert!((0..3_000).contains(&late), "j-{n} was {late} ms late");
        assert_eq!((view.attempts, view.starts), (1, 1), "j-{n}");
    }
    for working in workers {
        working.stop().await;
    }
    assert_eq!(count.load(Ordering::SeqCst), 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_finishes_what_runs_and_leaves_the_rest() {
    let world = World::new();
    let slow = handler("slow", |_| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(())
    });
    world.enqueue(&jobs(Queue::Payments, 50, "slow")).await;
    let working = world.work(Queue::Payments, hasty(), vec![slow]);
    until("a full worker", || async { (world.stats(Queue::Payments).await.in_flight == 8).then_some(()) }).await;
    let report = working.stop().await;
    assert!(!report.forced && !report.unreleased, "{report:?}");
    let stats = world.stats(Queue::Payments).await;
    assert!(stats.totals.done >= 8, "{stats:?}");
    assert_eq!(stats.totals.done + stats.ready, 50);
    assert_eq!((stats.in_flight, stats.workers.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_takes_too_long_gives_the_jobs_back_uncounted_and_first() {
    let world = World::new();
    let finished = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&finished);
    let endless = handler("endless", move |_| {
        let finished = Arc::clone(&counter);
        async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            finished.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    world.enqueue(&jobs(Queue::Payments, 12, "endless")).await;
    let policy = workers::supervisor::QueuePolicy { stop_limit: Duration::from_millis(200), ..hasty() };
    let working = world.work(Queue::Payments, policy, vec![endless]);
    until("a full worker", || async { (world.stats(Queue::Payments).await.in_flight == 8).then_some(()) }).await;
    let report = working.stop().await;
    assert!(report.forced, "{report:?}");
    assert_eq!(report.given_back, 8);
    let stats = world.stats(Queue::Payments).await;
    assert_eq!((stats.ready, stats.in_flight, stats.done), (12, 0, 0));
    let head = world.cli(&["LINDEX", &world.key(Queue::Payments, "active"), "8"]);
    assert_eq!(head, "j-8", "what was given back stands before what was never started");
    let view = world.job(Queue::Payments, "j-0").await;
    assert_eq!((view.attempts, view.starts, view.state), (0, 1, JobState::Ready));

    let (count, handler) = counting("endless");
    let working = world.work(Queue::Payments, hasty(), vec![handler]);
    world.until_done(Queue::Payments, 12).await;
    working.stop().await;
    assert_eq!((count.load(Ordering::SeqCst), finished.load(Ordering::SeqCst)), (12, 0));
}
