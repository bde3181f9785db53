//! The dead list, history and figures.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use domain::queue::{
    JobState, Queue, QueueTotals, Retention, discard_dead, list_dead, list_jobs, read_job, requeue_dead, trim_history,
};
use workers::outcome::JobError;

use crate::support::{PATIENCE, World, counting, handler, hasty, job, jobs, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_job_is_requeued_with_all_its_attempts_or_discarded() {
    let world = World::new();
    let queue = Queue::Payments;
    let hopeless = handler("work", |_| async { Err(JobError::never("no")) });
    let working = world.work(queue, hasty(), vec![hopeless]);
    world.enqueue(&jobs(queue, 5, "work")).await;
    until("5 dead", || async { (world.stats(queue).await.dead == 5).then_some(()) }).await;
    working.stop().await;

    let page = list_dead(&world.redis, queue, 0, 2).await.unwrap();
    assert_eq!((page.total, page.jobs.len()), (5, 2));
    let rest = list_dead(&world.redis, queue, 2, 100).await.unwrap();
    let mut ids: Vec<_> = page.jobs.iter().chain(&rest.jobs).map(|job| job.id.clone()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["j-0", "j-1", "j-2", "j-3", "j-4"]);
    assert!(page.jobs.iter().all(|job| job.reason.as_deref() == Some("no") && job.state == JobState::Dead));

    assert_eq!(world.enqueue(&jobs(queue, 1, "work")).await.known, 1, "a dead job is known");
    assert!(discard_dead(&world.redis, queue, "j-0").await.unwrap());
    assert!(!discard_dead(&world.redis, queue, "j-0").await.unwrap(), "once");
    assert!(read_job(&world.redis, queue, "j-0").await.unwrap().is_none());
    assert!(requeue_dead(&world.redis, queue, "j-1").await.unwrap());
    assert!(!requeue_dead(&world.redis, queue, "j-1").await.unwrap(), "once");
    assert!(!requeue_dead(&world.redis, queue, "j-9").await.unwrap(), "unknown");
    let view = world.job(queue, "j-1").await;
    assert_eq!((view.state, view.attempts, view.reason.as_deref()), (JobState::Ready, 0, Some("no")));

    let (count, handler) = counting("work");
    let working = world.work(queue, hasty(), vec![handler]);
    world.until_done(queue, 1).await;
    working.stop().await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert!(!requeue_dead(&world.redis, queue, "j-1").await.unwrap(), "a done job is not dead");
    assert_eq!(world.stats(queue).await.dead, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_bounded_and_the_dead_are_kept_longer() {
    let world = World::new();
    let queue = Queue::Payments;
    let (_, good) = counting("count");
    let hopeless = handler("hopeless", |_| async { Err(JobError::never("no")) });
    let policy = workers::supervisor::QueuePolicy { concurrency: 64, ..hasty() };
    let working = world.work(queue, policy, vec![good, hopeless]);
    let dead: Vec<_> = (0..20).map(|n| job(queue, &format!("dead-{n}"), "hopeless")).collect();
    world.enqueue(&dead).await;
    world.enqueue(&jobs(queue, 5_000, "count")).await;
    world.until_done(queue, 5_000).await;
    until("20 dead", || async { (world.stats(queue).await.dead == 20).then_some(()) }).await;
    working.stop().await;

    let keep_some = Retention { done_max: 100, done_for: Duration::from_secs(3_600), ..Retention::default() };
    let mut slices = 0;
    while trim_history(&world.redis, &keep_some).await.unwrap() > 0 {
        slices += 1;
    }
    assert!(slices >= 9, "in bounded slices: {slices}");
    let stats = world.stats(queue).await;
    assert_eq!((stats.done, stats.dead, stats.totals.done), (100, 20, 5_000));
    assert_eq!(world.cli(&["HLEN", &world.key(queue, "data")]), "120");
    let metas = world.cli(&["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", &world.key(queue, "meta:*")]);
    assert_eq!(metas, "120");
    // What was trimmed is forgotten: the same id is a new job.
    let latest = list_jobs(&world.redis, queue, JobState::Done, 0, 100).await.unwrap();
    let kept: Vec<_> = latest.jobs.iter().map(|job| job.id.clone()).collect();
    let gone = (0..5_000).map(|n| format!("j-{n}")).find(|id| !kept.contains(id)).unwrap();
    assert_eq!(world.enqueue(&[job(queue, &gone, "count")]).await.added, 1);
    assert_eq!(world.enqueue(&[job(queue, &kept[0], "count")]).await.known, 1);

    let keep_none = Retention { done_for: Duration::ZERO, ..keep_some };
    world.tend(keep_none);
    until("no done job", || async { (world.stats(queue).await.done == 0).then_some(()) }).await;
    assert_eq!(world.stats(queue).await.dead, 20);
}

fn memory(world: &World) -> u64 {
    let info = world.cli(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    used.trim().parse().unwrap()
}

/// Runs so many short jobs, keeps done ones for `done_for`, and waits until Redis is as it was.
async fn memory_comes_back(count: usize, done_for: Duration) {
    let world = World::alone();
    let queue = Queue::Payments;
    let (_, good) = counting("count");
    let hopeless = handler("hopeless", |_| async { Err(JobError::never("no")) });
    let policy = workers::supervisor::QueuePolicy { concurrency: 64, ..hasty() };
    let working = world.work(queue, policy, vec![good, hopeless]);
    // What every use leaves, however long: scripts, connections, totals.
    world.enqueue(&(0..200).map(|n| job(queue, &format!("first-{n}"), "count")).collect::<Vec<_>>()).await;
    world.until_done(queue, 200).await;
    let keep_none = Retention { done_for: Duration::ZERO, ..Retention::default() };
    while trim_history(&world.redis, &keep_none).await.unwrap() > 0 {}
    let before = memory(&world);
    world.tend(Retention { done_for, ..Retention::default() });
    let dead: Vec<_> = (0..3).map(|n| job(queue, &format!("dead-{n}"), "hopeless")).collect();
    world.enqueue(&dead).await;
    for batch in jobs(queue, count, "count").chunks(10_000) {
        world.enqueue(batch).await;
    }
    let limit = 2 * done_for + 2 * PATIENCE;
    let began = Instant::now();
    loop {
        let (stats, used) = (world.stats(queue).await, memory(&world));
        let keys: u64 = world.cli(&["DBSIZE"]).parse().unwrap();
        let is_over = stats.totals.done == 200 + u64::try_from(count).unwrap() && stats.done == 0;
        if is_over && used <= before + before / 10 && keys < 1_000 {
            break;
        }
        assert!(began.elapsed() < limit, "{stats:?}; {keys} keys, {used} bytes of memory after {before}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.stats(queue).await.dead, 3, "the dead have a longer limit of their own");
    working.stop().await;
}

// A-J10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_done_jobs_comes_back() {
    memory_comes_back(5_000, Duration::from_secs(2)).await;
}

// A-J10, in full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "100,000 jobs that are kept for a minute take minutes"]
async fn the_memory_of_a_hundred_thousand_done_jobs_comes_back() {
    memory_comes_back(100_000, Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_are_those_of_the_queue() {
    let world = World::new();
    let queue = Queue::WarmUp;
    let hang = handler("hang", |_| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    let (_, good) = counting("count");
    let hopeless = handler("hopeless", |_| async { Err(JobError::never("no")) });
    world.enqueue(&[job(queue, "bad", "hopeless"), job(queue, "good-1", "count"), job(queue, "good-2", "count")]).await;
    world.enqueue(&jobs(queue, 12, "hang")).await;
    world.enqueue(&[job(queue, "later", "hang").not_before_ms(i64::from(u32::MAX) * 1_000)]).await;
    let policy = workers::supervisor::QueuePolicy { stop_limit: Duration::from_millis(50), ..hasty() };
    let working = world.work(queue, policy, vec![hang, good, hopeless]);
    until("a full worker", || async {
        let stats = world.stats(queue).await;
        (stats.in_flight == 8 && stats.ready == 4).then_some(())
    })
    .await;
    until("a second", || async {
        (world.stats(queue).await.oldest_ready_age_ms.unwrap_or_default() > 1_000).then_some(())
    })
    .await;
    let stats = world.stats(queue).await;
    assert_eq!((stats.delayed, stats.done, stats.dead), (1, 2, 1));
    assert_eq!(stats.totals, QueueTotals { enqueued: 16, done: 2, retried: 0, dead: 1 });
    assert!(stats.oldest_ready_age_ms.unwrap() < 30_000);
    let [worker] = stats.workers.as_slice() else { panic!("{stats:?}") };
    assert_eq!(worker.in_flight, 8);
    let now_s: i64 = world.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    assert!((0..=3).contains(&(now_s - worker.last_heartbeat_s)), "{worker:?} at {now_s}");
    let running = list_jobs(&world.redis, queue, JobState::Running, 0, 100).await.unwrap();
    assert_eq!((running.total, running.jobs.len()), (8, 8));
    assert!(running.jobs.iter().all(|job| job.worker.as_deref() == Some(worker.name.as_str())));
    assert_eq!(list_jobs(&world.redis, queue, JobState::Delayed, 0, 10).await.unwrap().jobs[0].id, "later");
    assert_eq!(world.stats(Queue::Payments).await.totals, QueueTotals::default(), "the queues are separate");
    working.stop().await;
    assert_eq!(world.stats(queue).await.workers, []);
}
