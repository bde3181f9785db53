//! Seating plans that change while seats are sold by them.

use std::sync::Arc;

use domain::event::EventStatus;
use domain::flow::Stores;
use domain::flow::import_venue::{ImportMode, ImportVenueError, VenueFile, VenueImport, import_venue};
use domain::flow::set_up_event::{EventPlan, SetUpEventError, create_event};
use domain::import::MapFormat;
use domain::seat::SeatStatus;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::audit::assert_sound;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::web::{Answer, Ask, Web, api_key};

async fn import(web: &Web, admin: &str, csv: String) -> Answer {
    let path = "/v1/venues/import?format=csv&name=The%20house&time_zone=Asia/Seoul";
    Ask::new("POST", path).body("text/csv", csv).by(admin).send(&web.public).await
}

async fn seats(test: &TestStores) -> i64 {
    test.count("SELECT count(*) FROM seats").await
}

// A-L1: the new plan drops A-1 (sold) and A-2 (held), moves A-3 (being paid for) to another category, renames row B (of
// which B-1 is sold) and adds row Z, while others hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_would_change_taken_seats_is_refused_with_their_list() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let plan = SalePlan::of_rows(&[("B1", "A", 10), ("B1", "B", 10), ("B1", "C", 50)]);
    let old = plan.csv.clone();
    let sale = Sale::open(stores, plan).await;
    let (web, admin) = (Web::start(stores).await, api_key(stores, KeyScope::Admin).await);
    for seat in ["A-1", "B-1", "A-9"] {
        let held = sale.hold(stores, "u1", &[seat]).await.unwrap();
        let payment = pay(stores, held.id, "tok_ok").await.unwrap();
        finalize(stores, &provider, payment.id).await;
    }
    sale.hold(stores, "u2", &["A-2", "A-8"]).await.unwrap();
    let paying = sale.hold(stores, "u3", &["A-3"]).await.unwrap();
    let payment = pay(stores, paying.id, "tok_ok").await.unwrap();
    let new: String = old
        .lines()
        .filter(|line| !["\"B1\",\"A\",\"1\",Seat", "\"B1\",\"A\",\"2\",Seat"].contains(line))
        .map(|line| line.replace("\"A\",\"3\",Seat", "\"A\",\"3\",Box").replace("\"B\"", "\"BB\""))
        .chain(["\"B1\",\"Z\",\"1\",Seat".to_owned()])
        .map(|line| line + "\n")
        .collect();
    let before = seats(&test).await;
    let shared = Arc::new(sale.clone());
    let holding: Vec<_> = (1..=50)
        .map(|column| {
            let (stores, sale) = (stores.clone(), Arc::clone(&shared));
            tokio::spawn(async move { sale.hold(&stores, &format!("b{column}"), &[&format!("C-{column}")]).await })
        })
        .collect();
    let refused = import(&web, &admin, new.clone()).await;
    for held in holding {
        held.await.unwrap().expect("the import is in nobody's way");
    }
    assert_eq!(refused.refusal(), (409, "conflict".into()), "{}", refused.text);
    let words: Vec<String> = refused.json()["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["message"].as_str().unwrap().to_owned())
        .filter(|words| !words.contains("row C"))
        .collect();
    assert_eq!(
        words,
        [
            "block B1, row A, column 1 is sold: the file leaves it out",
            "block B1, row A, column 2 is held: the file leaves it out",
            "block B1, row A, column 3 is held: the file moves it to category Box",
            "block B1, row B, column 1 is sold: the file leaves it out",
        ],
        "A-8 and A-9 stay as they are"
    );
    let sold = sale.sheet.map.resolve(&sale.seat("A-1")).unwrap().id.to_string();
    let first = &refused.json()["conflicts"][0];
    assert_eq!((first["seat"].as_str(), first["status"].as_str()), (Some(sold.as_str()), Some("sold")));

    // All or nothing, and the price of what is held stays.
    assert_eq!(seats(&test).await, before);
    assert_eq!(import(&web, &admin, old).await.status, 200, "the venue has the map that it had");
    finalize(stores, &provider, payment.id).await;
    assert_eq!(provider.entry(payment.id).unwrap().amount.amount, 50_000);
    assert_eq!(sale.status(stores, "A-3").await, SeatStatus::Sold);
    assert_sound(&test).await;
    settle(&test, stores, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_of_a_venue_in_use_is_refused_though_nobody_owns_a_seat_yet() {
    let test = TestStores::start().await;
    let plan = SalePlan::default();
    let bigger = format!("{}\"B1\",\"Z\",\"1\",Seat\n", plan.csv);
    let sale = Sale::open(&test.stores, plan.ttl_ms(6_000)).await;
    let (web, admin) = (Web::start(&test.stores).await, api_key(&test.stores, KeyScope::Admin).await);
    sale.hold(&test.stores, "u1", &["A-1"]).await.unwrap();
    test.advance(6_000);
    let refused = import(&web, &admin, bigger).await;
    assert_eq!(refused.refusal(), (409, "conflict".into()));
    assert!(refused.json().get("conflicts").is_none(), "a dead hold owns nothing: {}", refused.text);
    let event = test.stores.pg.find_event(sale.event).await.unwrap().unwrap();
    assert_eq!((event.status, seats(&test).await), (EventStatus::OnSale, 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_made_of_a_map_that_is_being_replaced() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    for round in 0..20 {
        let venue = format!("House {round}");
        let plan = |category: &str| {
            let csv = format!("block,row,column,category\nB1,A,1,{category}\n");
            SalePlan { venue: venue.clone(), csv, ..SalePlan::default() }
        };
        let old = import_file(stores, &plan("Old")).await.unwrap().venue.unwrap().id;
        let event = EventPlan {
            venue: old,
            title: "An evening".to_owned(),
            starts_at: "2030-04-10T18:30".to_owned(),
            sales_open_at: None,
            sales_close_at: None,
            currency: "KRW".parse().unwrap(),
            prices: [("Old".to_owned(), 1_000)].into(),
            rules: SalePlan::default().rules,
        };
        let new = plan("New");
        let (made, replaced) = tokio::join!(create_event(stores, event), import_file(stores, &new));
        match (made, replaced) {
            (Ok(_), Err(ImportVenueError::InUse { .. })) | (Err(SetUpEventError::Invalid(_)), Ok(_)) => {}
            other => panic!("round {round}: {other:?}"),
        }
    }
}

async fn import_file(stores: &Stores, plan: &SalePlan) -> Result<VenueImport, ImportVenueError> {
    let file = VenueFile {
        format: MapFormat::Csv,
        name: plan.venue.clone(),
        time_zone: "Asia/Seoul".to_owned(),
        bytes: plan.csv.clone().into_bytes(),
        mode: ImportMode::Store,
    };
    import_venue(stores, file).await
}
