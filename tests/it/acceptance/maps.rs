//! Big maps: more cells than a statement may have bound values (65,535).

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use domain::id::EventId;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::stores::TestStores;
use holdfast_tests::wait::until_within;
use holdfast_tests::web::{Answer, Ask, Web, api_key};
use holdfast_tests::worker::RunningWorker;
use serde_json::{Value, json};
use sqlx::Executor as _;

const ROW: usize = 100;
const BLOCK: usize = 2_000;

/// Seats with nine attributes each: all that our table knows, and the name of their block in Korean.
fn table(seats: usize) -> String {
    let mut csv = "block,row,column,label,category,x,y,neighbours,block_ko\n".to_owned();
    for seat in 0..seats {
        let (block, row, column) = (seat / BLOCK + 1, seat % BLOCK / ROW + 1, seat % ROW + 1);
        let category = ["Near", "Far"][seat % 2];
        let (x, y) = (column * 10, row * 12);
        writeln!(csv, "{block},{row},{column},S{seat},{category},{x},{y},,{block}구역").unwrap();
    }
    csv
}

async fn import(web: &Web, admin: &str, name: &str, csv: String) -> Answer {
    let path = format!("/v1/venues/import?format=csv&name={name}&time_zone=Asia/Seoul");
    Ask::new("POST", path).body("text/csv", csv).by(admin).send(&web.public).await
}

/// From the file to a whole map on sale, and a new price for all of it.
async fn a_map_is_whole(seats: usize) {
    let test = TestStores::start().await;
    let (web, admin) = (Web::start(&test.stores).await, api_key(&test.stores, KeyScope::Admin).await);
    let asked = Instant::now();
    let imported = import(&web, &admin, "Big", table(seats)).await;
    assert!(asked.elapsed() < Duration::from_secs(60), "the import took {:?}", asked.elapsed());
    assert_eq!((imported.status.as_u16(), imported.json()["seats"].as_u64()), (201, Some(seats as u64)));
    assert_eq!(test.count("SELECT count(*) FROM seats WHERE x > 0 AND y > 0 AND label LIKE 'S%'").await, seats as i64);
    let plan = json!({
        "venue": imported.json()["venue"], "title": "An evening", "starts_at": "2030-04-10T18:30", "currency": "KRW",
        "prices": { "Near": 50_000, "Far": 30_000 },
    });
    let send = async |ask: Ask| ask.by(&admin).send(&web.public).await;
    let event = send(Ask::new("POST", "/v1/events").json(&plan)).await;
    let path = event.header("location").to_owned();
    let _worker = RunningWorker::start(&test);
    send(Ask::new("POST", format!("{path}/open"))).await;
    until_within(Duration::from_secs(60), "the event to be on sale", async || {
        (send(Ask::new("GET", path.clone())).await.json()["status"] == "on_sale").then_some(())
    })
    .await;
    let blocks = send(Ask::new("GET", format!("{path}/blocks"))).await.json();
    let available: u64 = blocks["blocks"].as_array().unwrap().iter().map(|it| it["available"].as_u64().unwrap()).sum();
    assert_eq!(available, seats as u64);

    let dearer = json!({ "prices": { "Near": 60_000, "Far": 35_000 } });
    assert_eq!(send(Ask::new("PATCH", path.clone()).json(&dearer)).await.status, 200);
    let mut seen = 0;
    for block in blocks["blocks"].as_array().unwrap() {
        let label = block["block"].as_str().unwrap();
        let map = until_within(Duration::from_secs(10), "the new price", async || {
            let map = send(Ask::new("GET", format!("{path}/blocks/{label}/seats"))).await.json();
            is_dearer(&map).then_some(map)
        })
        .await;
        seen += map["seats"].as_array().unwrap().len();
    }
    assert_eq!(seen, seats);
    let id: EventId = event.json()["id"].as_str().unwrap().parse().unwrap();
    assert!(test.stores.pg.find_event(id).await.unwrap().is_some());
}

fn is_dearer(map: &Value) -> bool {
    map["seats"].as_array().unwrap().iter().all(|seat| {
        let wanted = if seat["category"] == "Near" { 60_000 } else { 35_000 };
        seat["price"]["amount"].as_i64().or(seat["price"].as_i64()) == Some(wanted)
    })
}

// A-C7: nine times 7,282 is just over the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_map_of_more_cells_than_a_statement_may_bind_is_imported_whole() {
    a_map_is_whole(7_282).await;
}

// A-C7, in full.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "80,000 seats take half a minute"]
async fn eighty_thousand_seats_are_imported_within_a_minute_shown_and_priced_anew() {
    a_map_is_whole(80_000).await;
}

// A-C7: the insert fails near its end.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_fails_near_its_end_leaves_no_part_of_a_map() {
    let test = TestStores::start().await;
    let (web, admin) = (Web::start(&test.stores).await, api_key(&test.stores, KeyScope::Admin).await);
    let fail = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'no more room' USING ERRCODE = '53100'; END $$;
                CREATE TRIGGER fail BEFORE INSERT ON seats FOR EACH ROW WHEN (NEW.label = 'S7200') EXECUTE FUNCTION fail()";
    test.sql.execute(sqlx::raw_sql(fail)).await.unwrap();
    let refused = import(&web, &admin, "Big", table(7_282)).await;
    assert_eq!(refused.refusal(), (503, "degraded".into()), "{}", refused.text);
    let rows = "SELECT (SELECT count(*) FROM venues) + (SELECT count(*) FROM blocks) + (SELECT count(*) FROM seats)
                     + (SELECT count(*) FROM categories)";
    assert_eq!(test.count(rows).await, 0);
    test.sql.execute("DROP TRIGGER fail ON seats").await.unwrap();
    assert_eq!(import(&web, &admin, "Big", table(7_282)).await.status, 201);
    // A fault on the last line is found before anything is stored.
    let faulty = format!("{}1,1,1,S1,Near,10,12,,1구역\n", table(7_282));
    let refused = import(&web, &admin, "Other", faulty).await;
    assert_eq!(refused.refusal(), (422, "validation_failed".into()));
    assert!(refused.text.contains("line 7284"), "{}", refused.text);
    assert_eq!(test.count("SELECT count(*) FROM venues").await, 1);
}
