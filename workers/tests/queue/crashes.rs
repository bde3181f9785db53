//! Killed processes, stalled processes, a lost Redis.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use domain::queue::{
    Begun, Company, Deliveries, JobState, Outcome, Queue, QueuePrefix, QueueRedis, Retention, Settled, discard_dead,
    requeue_dead, stats_of,
};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio_util::sync::CancellationToken;
use workers::supervisor::{run_queue, tend_queues};

use crate::support::{PATIENCE, World, counting, handler, hasty, job, jobs, until};

/// A worker process of its own. It ends with the test.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(world: &World) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crashes::worker_process", "--ignored", "--nocapture"])
            .env("CHILD_REDIS_URL", &world.url)
            .env("CHILD_PREFIX", world.redis.prefix().as_str())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The body of [`WorkerProcess`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "not a test: other tests start it as a process of its own"]
async fn worker_process() {
    let (url, prefix) = (std::env::var("CHILD_REDIS_URL").unwrap(), std::env::var("CHILD_PREFIX").unwrap());
    let redis = QueueRedis::new(&url, QueuePrefix::new(&prefix).unwrap()).unwrap();
    let abort = handler("abort", |_| async { std::process::abort() });
    let hang = handler("hang", |_| async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        Ok(())
    });
    let short = handler("short", |_| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    });
    let stall = handler("stall", |_| async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        Ok(())
    });
    let token = CancellationToken::new();
    tokio::spawn(tend_queues(redis.clone(), Retention::default(), token.clone()));
    let policy = workers::supervisor::QueuePolicy { attempts_max: 25, ..hasty() };
    let process = format!("child-{}", std::process::id());
    run_queue(redis, Queue::Payments, vec![abort, hang, short, stall], policy, &process, token).await;
}

// A-J8: the survivor started before; nothing else starts after the death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_workers_jobs_start_elsewhere_within_the_lease() {
    let world = World::new();
    let queue = Queue::Payments;
    let mut doomed = WorkerProcess::start(&world);
    world.enqueue(&jobs(queue, 5, "hang")).await;
    until("5 running", || async {
        let mut running = 0;
        for n in 0..5 {
            running += u32::from(world.job(queue, &format!("j-{n}")).await.state == JobState::Running);
        }
        (running == 5).then_some(())
    })
    .await;
    let (count, handler) = counting("hang");
    let survivor = world.work(queue, hasty(), vec![handler]);
    until("two workers", || async { (world.stats(queue).await.workers.len() == 2).then_some(()) }).await;
    assert_eq!(count.load(Ordering::SeqCst), 0, "the jobs of a live worker are its own");
    doomed.kill();
    let killed = Instant::now();
    world.until_done(queue, 5).await;
    // Lease of 2 s, found at the next heartbeat, all in whole seconds.
    assert!(killed.elapsed() < Duration::from_secs(6), "{:?}", killed.elapsed());
    let view = world.job(queue, "j-0").await;
    assert_eq!((view.attempts, view.starts), (2, 2), "a crash counts");
    survivor.stop().await;
    assert_eq!(count.load(Ordering::SeqCst), 5);
}

/// The figures as Prometheus reads them.
async fn gauges(world: &World) -> String {
    let stats = domain::queue::queue_stats(&world.redis).await.unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || domain::queue::record_queue_gauges(&stats));
    recorder.handle().render()
}

// A-J4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_ends_its_process_is_dead_after_five_starts_and_its_neighbours_are_done() {
    let world = World::new();
    let queue = Queue::Payments;
    world.enqueue(&[job(queue, "bomb", "abort")]).await;
    world.enqueue(&jobs(queue, 50, "short")).await;
    let mut deaths = 0;
    let started = Instant::now();
    let mut process = WorkerProcess::start(&world);
    loop {
        if process.0.try_wait().unwrap().is_some() {
            deaths += 1;
            process = WorkerProcess::start(&world);
        }
        let stats = world.stats(queue).await;
        if stats.dead == 1 && stats.totals.done == 50 {
            break;
        }
        assert!(started.elapsed() < 3 * PATIENCE, "{stats:?} after {deaths} deaths");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let view = world.job(queue, "bomb").await;
    assert_eq!((view.starts, deaths), (5, 5));
    assert!(view.reason.as_deref().unwrap().starts_with("crashed: 5 starts"), "{view:?}");
    assert_eq!(world.stats(queue).await.done, 50);
    process.kill();
    let alert = "holdfast_queue_depth{queue=\"payments\",state=\"dead\"}";
    assert!(gauges(&world).await.contains(&format!("{alert} 1")), "an alert can be made of it");

    // An operator sets it going again once it is mended.
    assert!(requeue_dead(&world.redis, queue, "bomb").await.unwrap());
    let (count, mended) = counting("abort");
    let working = world.work(queue, hasty(), vec![mended]);
    world.until_done(queue, 51).await;
    working.stop().await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert!(gauges(&world).await.contains(&format!("{alert} 0")));
    assert!(!discard_dead(&world.redis, queue, "bomb").await.unwrap(), "it is not dead any more");
}

// A machine that dies takes all its jobs along, and none of them is to blame: they run again together, not one after the
// other. Only what was there when a second one died is suspected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_with_one_process_runs_again_together() {
    let world = World::new();
    let queue = Queue::Payments;
    world.enqueue(&jobs(queue, 6, "work")).await;
    let in_process = |process: u32, id: &str| {
        let worker = format!("worker-{process}");
        world.cli(&["SADD", &world.key(queue, &format!("inflight:{worker}")), id]);
        Deliveries::new(world.redis.clone(), queue, Arc::from(format!("process-{process}")), Arc::from(worker))
    };
    for process in 1..=2 {
        for n in 0..6 {
            let id = format!("j-{n}");
            let begun = in_process(process, &id).begin(&id, Company::Together, 25, 5).await.unwrap();
            assert_eq!(begun, Begun::Run { attempt: process, starts: process }, "{id} in process {process}");
        }
    }
    for n in 0..6 {
        let id = format!("j-{n}");
        let begun = in_process(3, &id).begin(&id, Company::Together, 25, 5).await.unwrap();
        assert_eq!(begun, Begun::Suspect, "{id} was there both times");
    }
}

// Whoever is new beside a suspect may be the cause of its deaths: after two of them it is a suspect too, and alone with
// itself it dies before the innocent one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_innocent_suspect_outlives_a_new_job_that_ends_its_process() {
    let world = World::new();
    let queue = Queue::Payments;
    world.enqueue(&[job(queue, "innocent", "work"), job(queue, "bomb", "work")]).await;
    let in_process = |process: u32, id: &str| {
        let worker = format!("worker-{process}");
        world.cli(&["SADD", &world.key(queue, &format!("inflight:{worker}")), id]);
        Deliveries::new(world.redis.clone(), queue, Arc::from(format!("process-{process}")), Arc::from(worker))
    };
    // Two machines died under the innocent one.
    for process in 1..=2 {
        let begun = in_process(process, "innocent").begin("innocent", Company::Together, 25, 5).await.unwrap();
        assert_eq!(begun, Begun::Run { attempt: process, starts: process });
    }
    let mut deaths = 0;
    for process in 3..=9 {
        let innocent = in_process(process, "innocent");
        assert_eq!(innocent.begin("innocent", Company::Together, 25, 5).await.unwrap(), Begun::Suspect);
        let bomb = in_process(process, "bomb");
        let begun = match bomb.begin("bomb", Company::Together, 25, 5).await.unwrap() {
            // Beside the innocent one, which is blamed for what happens.
            run @ Begun::Run { .. } => {
                let begun = innocent.begin("innocent", Company::Alone, 25, 5).await.unwrap();
                assert!(matches!(begun, Begun::Run { .. }), "process {process}: {begun:?}");
                run
            }
            Begun::Suspect => bomb.begin("bomb", Company::Alone, 25, 5).await.unwrap(),
            other => other,
        };
        if let Begun::Crashed { starts } = begun {
            assert_eq!((starts, deaths), (5, 5), "the bomb is dead");
            let begun = innocent.begin("innocent", Company::Alone, 25, 5).await.unwrap();
            assert!(matches!(begun, Begun::Run { .. }), "{begun:?}");
            assert_eq!(innocent.settle("innocent", &Outcome::Done, 25).await.unwrap(), Settled::Done);
            return;
        }
        assert!(matches!(begun, Begun::Run { .. }), "process {process}: {begun:?}");
        deaths += 1;
    }
    panic!("the bomb is not dead after {deaths} deaths");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_worker_that_lost_its_lease_settles_nothing() {
    let world = World::new();
    let queue = Queue::Payments;
    let stalled = WorkerProcess::start(&world);
    world.enqueue(&[job(queue, "stall", "stall")]).await;
    world.until_state(queue, "stall", JobState::Running).await;
    stalled.signal("-STOP");
    let hopeless = handler("stall", |_| async { Err(workers::outcome::JobError::never("decided by the survivor")) });
    let survivor = world.work(queue, hasty(), vec![hopeless]);
    world.until_state(queue, "stall", JobState::Dead).await;
    stalled.signal("-CONT");
    // It is over when the stalled process has noticed and works under a new name.
    world.enqueue(&jobs(queue, 1, "short")).await;
    until("the stalled process to be back", || async {
        let workers = world.stats(queue).await.workers;
        workers.iter().any(|worker| worker.name.starts_with("child-") && worker.name.ends_with("-1")).then_some(())
    })
    .await;
    let view = world.job(queue, "stall").await;
    assert_eq!((view.state, view.reason.as_deref()), (JobState::Dead, Some("decided by the survivor")));
    assert_eq!(world.stats(queue).await.totals.done, 0, "its result was not written over the other's");
    survivor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_survive_a_redis_that_restarts_with_nothing() {
    let mut world = World::alone();
    let queue = Queue::Payments;
    let (count, handler) = counting("count");
    let working = world.work(queue, hasty(), vec![handler]);
    world.tend(Retention::default());
    world.enqueue(&jobs(queue, 5, "count")).await;
    world.until_done(queue, 5).await;
    let server = world.server.as_mut().unwrap();
    server.stop();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.run();
    let pushing: Vec<_> = (0..10).map(|n| job(queue, &format!("after-{n}"), "count")).collect();
    until("an enqueue to be taken", || async { world.sender.enqueue(&pushing).await.ok() }).await;
    let back = Instant::now();
    world.until_done(queue, 10).await;
    assert!(back.elapsed() < Duration::from_secs(20), "{:?}", back.elapsed());
    until("one worker", || async { (world.stats(queue).await.workers.len() == 1).then_some(()) }).await;
    let report = working.stop().await;
    assert!(!report.unreleased, "{report:?}");
    assert_eq!(count.load(Ordering::SeqCst), 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_done_while_redis_was_away_is_settled_or_run_again() {
    let mut world = World::alone();
    let queue = Queue::Payments;
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    let slow = handler("slow", move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            Ok(())
        }
    });
    let working = world.work(queue, hasty(), vec![slow]);
    world.enqueue(&[job(queue, "slow", "slow")]).await;
    world.until_state(queue, "slow", JobState::Running).await;
    // Redis answers nobody for a while, then goes on with all it knew.
    world.cli(&["CLIENT", "PAUSE", "1500", "ALL"]);
    let view = world.until_state(queue, "slow", JobState::Done).await;
    assert_eq!(view.attempts, 1);
    let report = working.stop().await;
    assert_eq!((report.restarts, runs.load(Ordering::SeqCst)), (0, 1), "a slow answer ends no worker");
    world.server.as_mut().unwrap().stop();
    let asked = Instant::now();
    assert!(world.sender.enqueue(&[job(queue, "x", "slow")]).await.is_err());
    assert!(stats_of(&world.redis, queue).await.is_err());
    assert!(asked.elapsed() < Duration::from_secs(6), "request handlers are not kept waiting: {:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_answer_was_lost_is_one_start() {
    let world = World::new();
    let queue = Queue::Payments;
    world.enqueue(&jobs(queue, 1, "work")).await;
    let fetch = |worker: &str| {
        world.cli(&["SADD", &world.key(queue, &format!("inflight:{worker}")), "j-0"]);
        Deliveries::new(world.redis.clone(), queue, Arc::from("process"), Arc::from(worker))
    };
    let first = fetch("first");
    let began = Begun::Run { attempt: 1, starts: 1 };
    assert_eq!(first.begin("j-0", Company::Together, 3, 5).await.unwrap(), began);
    assert_eq!(first.begin("j-0", Company::Together, 3, 5).await.unwrap(), began, "the same call again");
    let stranger = Deliveries::new(world.redis.clone(), queue, Arc::from("other"), Arc::from("other"));
    assert_eq!(stranger.begin("j-0", Company::Together, 3, 5).await.unwrap(), Begun::Lost);
    assert_eq!(stranger.settle("j-0", &Outcome::Done, 3).await.unwrap(), Settled::Lost);
    assert_eq!(first.settle("j-0", &Outcome::Done, 3).await.unwrap(), Settled::Done);
    assert_eq!(first.settle("j-0", &Outcome::Done, 3).await.unwrap(), Settled::Lost, "the same call again");
    let view = world.job(queue, "j-0").await;
    assert_eq!((view.attempts, view.starts, world.stats(queue).await.totals.done), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_runs_beside_a_suspect_of_another_queue_is_not_blamed_for_its_crashes() {
    let world = World::new();
    let (bombs, longs) = (Queue::Payments, Queue::WarmUp);
    world.enqueue(&jobs(bombs, 1, "bomb")).await;
    world.enqueue(&jobs(longs, 1, "long")).await;
    // Each round is a process which dies without a word.
    let in_round = |round: u32, queue: Queue| {
        let worker = format!("worker-{round}");
        world.cli(&["SADD", &world.key(queue, &format!("inflight:{worker}")), "j-0"]);
        Deliveries::new(world.redis.clone(), queue, Arc::from(format!("process-{round}")), Arc::from(worker))
    };
    let began = |n| Begun::Run { attempt: n, starts: n };
    for round in 1..=2 {
        let (bomb, long) = (in_round(round, bombs), in_round(round, longs));
        assert_eq!(bomb.begin("j-0", Company::Together, 25, 5).await.unwrap(), began(round));
        assert_eq!(long.begin("j-0", Company::Together, 25, 5).await.unwrap(), began(round));
    }
    for round in 3..=5 {
        let (bomb, long) = (in_round(round, bombs), in_round(round, longs));
        assert_eq!(bomb.begin("j-0", Company::Together, 25, 5).await.unwrap(), Begun::Suspect);
        assert_eq!(bomb.begin("j-0", Company::Alone, 25, 5).await.unwrap(), began(round));
        assert_eq!(long.begin("j-0", Company::Alone, 25, 5).await.unwrap(), Begun::Suspect, "one suspect at a time");
    }
    // A job that is no suspect runs beside the bomb for the first time, and dies with it.
    world.enqueue(&jobs(Queue::Events, 1, "bystander")).await;
    assert_eq!(in_round(5, Queue::Events).begin("j-0", Company::Together, 25, 5).await.unwrap(), began(1));

    let verdict = in_round(6, bombs).begin("j-0", Company::Together, 25, 5).await.unwrap();
    assert_eq!(verdict, Begun::Crashed { starts: 5 });
    let long = in_round(6, longs);
    assert_eq!(long.begin("j-0", Company::Alone, 25, 5).await.unwrap(), began(3));
    assert_eq!(long.settle("j-0", &Outcome::Done, 25).await.unwrap(), Settled::Done);
    let bystander = in_round(6, Queue::Events).begin("j-0", Company::Together, 25, 5).await.unwrap();
    assert_eq!(bystander, Begun::Run { attempt: 1, starts: 2 }, "neither suspected nor counted");
}
