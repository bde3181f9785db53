//! One huge block beside a small one: no call to Redis grows with the block, so nobody waits behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use domain::flow::Stores;
use domain::flow::unhold::cancel_reservation;
use domain::flow::warm_up::warm_up;
use domain::flow::{Access, place_hold::PlaceHoldError};
use domain::limits::SEATS_PER_RESERVATION_MAX;
use domain::reservation::CancelReason;
use domain::seat::SeatStatus;
use domain::time::to_ms;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::audit::settles_within;
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::{until, until_within};
use holdfast_tests::worker::RunningWorker;
use redis::aio::MultiplexedConnection;

/// Seats in a row of the huge block: as many as a reservation may have.
const ROW: usize = SEATS_PER_RESERVATION_MAX.unsigned_abs() as usize;
/// What any call may name: 500 seats with four values each, and a little more.
const ARGUMENTS_MAX: usize = 2_600;

/// The shared stage: the huge block, some of its rows held, and the small event beside it.
struct Stage {
    server: RedisServer,
    test: TestStores,
    big: Sale,
    small: Sale,
    admin: MultiplexedConnection,
}

impl Stage {
    async fn set(rows: usize, held_rows: usize, ttl_ms: i64) -> Self {
        let server = RedisServer::start(RedisConfig::test()).unwrap();
        let test = TestStores::start_with(|settings| settings.redis_url = server.url().to_owned()).await;
        let names: Vec<String> = (1..=rows).map(|row| format!("R{row}")).collect();
        let mut plan = SalePlan::of_rows(&names.iter().map(|row| ("HUGE", row.as_str(), ROW)).collect::<Vec<_>>());
        plan.rules.seats_per_reservation_max = SEATS_PER_RESERVATION_MAX;
        let big = Sale::open(&test.stores, plan.ttl_ms(ttl_ms)).await;
        let plan = SalePlan { venue: "A small house".to_owned(), ..SalePlan::of_rows(&[("S", "A", 50)]) };
        let small = Sale::open(&test.stores, plan).await;
        for row in 1..=held_rows {
            let seats: Vec<String> = (1..=ROW).map(|column| format!("R{row}-{column}")).collect();
            let seats: Vec<&str> = seats.iter().map(String::as_str).collect();
            big.hold(&test.stores, "u1", &seats).await.unwrap();
        }
        let client = redis::Client::open(server.url()).unwrap();
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        let admin = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
        Self { server, test, big, small, admin }
    }

    /// From now on every call that took longer than so many µs is written down.
    async fn write_down_calls_over(&mut self, microseconds: i64) {
        for (name, value) in [("slowlog-log-slower-than", microseconds), ("slowlog-max-len", 1_000_000)] {
            let () = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query_async(&mut self.admin).await.unwrap();
        }
        let () = redis::cmd("SLOWLOG").arg("RESET").query_async(&mut self.admin).await.unwrap();
    }

    /// The calls that were written down: how long, µs, with how many arguments, and the first two of them.
    async fn calls(&mut self) -> Vec<(i64, usize, String)> {
        type Entry = (i64, i64, i64, Vec<String>, String, String);
        let entries: Vec<Entry> = redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(&mut self.admin).await.unwrap();
        entries
            .into_iter()
            .map(|(_, _, took, arguments, _, _)| (took, counted(&arguments), first(&arguments)))
            .collect()
    }

    /// Reads the block as a process does that has never seen it, rebuilds Redis, and lets all that is held expire, while
    /// the small event sells. Returns how long each hold of the small event took.
    async fn everything_at_once(&mut self, held_rows: usize) -> Vec<Duration> {
        let (test, big) = (&self.test, &self.big);
        let done = Arc::new(AtomicBool::new(false));
        let selling = tokio::spawn(sell_small(test.another_process(), self.small.clone(), Arc::clone(&done)));
        let fresh = test.another_process();
        let reading = big.read(&fresh, "HUGE").await;
        let held = reading.seats.iter().filter(|seat| seat.status_at(reading.now_ms) == SeatStatus::Held).count();
        assert_eq!(held, held_rows * ROW);
        warm_up(&fresh).await.expect("Redis is rebuilt");
        let last = reading.seats.iter().filter_map(|seat| seat.deadline_ms).max().unwrap();
        let now = to_ms(test.stores.pg.now().await.unwrap());
        test.advance((last - now).max(0));
        let _worker = RunningWorker::start(test);
        until_within(Duration::from_secs(60), "all of it to be released", async || {
            let left = "SELECT count(*) FROM reservations WHERE buyer = 'u1' AND status = 'PENDING'";
            (test.count(left).await == 0).then_some(())
        })
        .await;
        until("its last seat to be shown so", async || {
            let last = format!("R{held_rows}-{ROW}");
            (big.bucket_status(test, &last).await.as_deref() == Some("available")).then_some(())
        })
        .await;
        done.store(true, Ordering::Relaxed);
        let took = selling.await.unwrap();
        settles_within(test, Duration::from_secs(30)).await;
        took
    }
}

/// The slow log cuts long calls, and says by how much.
fn counted(arguments: &[String]) -> usize {
    let more = arguments.last().and_then(|last| last.strip_prefix("... (")?.split(' ').next()?.parse::<usize>().ok());
    more.map_or(arguments.len(), |more| arguments.len() - 1 + more)
}

fn first(arguments: &[String]) -> String {
    arguments.iter().take(2).cloned().collect::<Vec<_>>().join(" ")
}

async fn sell_small(stores: Stores, sale: Sale, done: Arc<AtomicBool>) -> Vec<Duration> {
    let mut took = Vec::new();
    let mut column = 0;
    while !done.load(Ordering::Relaxed) {
        column = column % 50 + 1;
        let asked = Instant::now();
        match sale.hold(&stores, "u2", &[&format!("A-{column}")]).await {
            Ok(held) => {
                took.push(asked.elapsed());
                cancel_reservation(&stores, &Access::Any, held.id, CancelReason::User).await.unwrap();
            }
            Err(PlaceHoldError::Unavailable(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    took
}

// A-C5: 6,000 seats, 2,000 of them held. What each call may cost is counted, not timed: a busy machine is slow at all.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_to_redis_grows_with_its_block() {
    let mut stage = Stage::set(60, 20, 60_000).await;
    stage.write_down_calls_over(0).await;
    let took = stage.everything_at_once(20).await;
    assert!(!took.is_empty(), "the small event sold meanwhile");
    let calls = stage.calls().await;
    let longest = calls.iter().max_by_key(|(_, arguments, _)| *arguments).unwrap();
    assert!(calls.len() > 200, "{} calls were written down", calls.len());
    assert!(longest.1 > 500, "a call for many seats was among them: {longest:?}");
    assert!(longest.1 <= ARGUMENTS_MAX, "{longest:?}");
    drop(stage.server);
}

// A-C5, in full.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "60,000 seats take a minute, and what Redis needs for a call depends on the machine"]
async fn a_block_of_sixty_thousand_seats_stops_redis_for_nobody() {
    let mut stage = Stage::set(600, 200, 600_000).await;
    stage.write_down_calls_over(10_000).await;
    let mut took = stage.everything_at_once(200).await;
    took.sort_unstable();
    // A machine that gives its core to somebody else makes any call slow, a SET of one key too. What grows with the block
    // would be slow each time, and by much more.
    let slow = stage.calls().await;
    let info: String = redis::cmd("INFO").arg("stats").query_async(&mut stage.admin).await.unwrap();
    let all = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
    let all: usize = all.trim().parse().unwrap();
    assert!(slow.len() * 1_000 < all, "{} of {all} calls took over 10 ms: {slow:?}", slow.len());
    assert!(slow.iter().all(|(took, _, _)| *took < 100_000), "{slow:?}");
    let p99 = took[took.len() * 99 / 100];
    eprintln!("{} holds of the small event, p99 {p99:?}; {} of {all} calls over 10 ms", took.len(), slow.len());
}
