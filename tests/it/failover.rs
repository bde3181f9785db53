//! A failover to a replica that had not heard everything: what Redis acknowledged is not what Redis still knows.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::flow::Access;
use domain::flow::place_hold::PlaceHoldError;
use domain::flow::unhold::cancel_reservation;
use domain::reservation::CancelReason;
use domain::seat::SeatStatus;
use holdfast::services::{RedisConfig, RedisServer};
use holdfast_tests::audit::{assert_sound, settles_within};
use holdfast_tests::repair::look_at_deadlines;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until;
use holdfast_tests::worker::RunningWorker;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// One address behind which the server changes, as a failover does it.
struct Address {
    url: String,
    target: Arc<Mutex<SocketAddr>>,
    cut: tokio::sync::watch::Sender<u32>,
}

impl Address {
    async fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let target = Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], server.port()))));
        let (cut, watched) = tokio::sync::watch::channel(0);
        let now = Arc::clone(&target);
        tokio::spawn(async move {
            let mut lines = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let (target, mut watched) = (*now.lock().unwrap(), watched.clone());
                watched.mark_unchanged();
                lines.spawn(async move {
                    let Ok(mut server) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ended = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _cut = watched.changed() => {}
                    }
                });
            }
        });
        Self { url, target, cut }
    }

    /// From now on the address leads elsewhere; open connections end.
    fn move_to(&self, server: &RedisServer) {
        *self.target.lock().unwrap() = SocketAddr::from(([127, 0, 0, 1], server.port()));
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

async fn command(server: &RedisServer, words: &[&str]) -> String {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let value: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap();
    redis::from_redis_value(value).unwrap_or_default()
}

// A-C6; and A-C4: a promoted replica has none of the scripts.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_failover_forgot_is_neither_sold_twice_nor_lost() {
    let mut primary = RedisServer::start(RedisConfig::test()).unwrap();
    let replica = RedisServer::start(RedisConfig::test()).unwrap();
    let address = Address::of(&primary).await;
    let test = TestStores::start_with(|settings| settings.redis_url = address.url.clone()).await;
    let (_worker, _api) = (RunningWorker::start(&test), test.repair_as_an_api());
    let sale = Sale::open(&test.stores, SalePlan::default().window_ms(600_000)).await;
    let before = sale.hold(&test.stores, "u1", &["B-1"]).await.unwrap();
    settles_within(&test, Duration::from_secs(15)).await;
    command(&replica, &["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).await;
    until("the replica to have it all", async || {
        command(&replica, &["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
    })
    .await;
    // From here on the replica hears nothing.
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    let held = sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    let paying = sale.hold(&test.stores, "u1", &["A-2"]).await.unwrap();
    pay(&test.stores, paying.id, "tok_silence").await.unwrap();
    let sold = sale.hold(&test.stores, "u1", &["A-3"]).await.unwrap();
    pay(&test.stores, sold.id, "tok_ok").await.unwrap();
    until("the sale", async || (sale.status(&test.stores, "A-3").await == SeatStatus::Sold).then_some(())).await;
    cancel_reservation(&test.stores, &Access::Any, before.id, CancelReason::User).await.unwrap();
    primary.kill().unwrap();
    address.move_to(&replica);
    // The new server shows as available and B-1 as held; Postgres knows better.
    for seat in ["A-1", "A-2", "A-3"] {
        let refusal = sale.hold(&test.stores, "u2", &[seat]).await.unwrap_err();
        assert!(matches!(refusal, PlaceHoldError::Unavailable(_)), "{seat}: {refusal:?}");
    }
    assert_sound(&test).await;
    // The workers find a server that is another one, and rebuild it from Postgres.
    let states = [
        ("A-1", SeatStatus::Held),
        ("A-2", SeatStatus::Held),
        ("A-3", SeatStatus::Sold),
        ("B-1", SeatStatus::Available),
    ];
    until("the picture to be right", async || {
        for (seat, wanted) in states {
            if sale.bucket_status(&test, seat).await.as_deref() != Some(wanted.as_str()) {
                return None;
            }
        }
        Some(())
    })
    .await;
    // What the new server still has in the index of a reservation that is over leaves it at the old deadline.
    look_at_deadlines(&test, &test.another_process()).await;
    settles_within(&test, Duration::from_secs(20)).await;
    let read = test.stores.pg.find_reservation(held.id).await.unwrap().unwrap();
    assert_eq!(read.expires_at, held.expires_at, "its deadline is what it was");
    sale.hold(&test.stores, "u2", &["B-1"]).await.expect("what was given back can be held");
}
