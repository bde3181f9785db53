//! Names are text: whatever they contain, no two seats are confused.

use domain::flow::import_venue::{ImportMode, ImportVenueError, VenueFile, import_venue};
use domain::flow::place_hold::PlaceHoldError;
use domain::import::{MapFormat, export_csv, import_map};
use domain::seat::SeatStatus;
use domain::time::to_ms;
use holdfast_tests::provider::ScriptedProvider;
use holdfast_tests::repair::{finalize, settle};
use holdfast_tests::sale::{Sale, SalePlan, pay, seat_ref};
use holdfast_tests::stores::TestStores;

fn seats_of(blocks: &[&str], rows: &[&str], columns: &[&str]) -> Vec<(String, String, String)> {
    let mut seats = Vec::new();
    for block in blocks {
        for row in rows {
            for column in columns {
                seats.push(((*block).to_owned(), (*row).to_owned(), (*column).to_owned()));
            }
        }
    }
    seats
}

// A-N1
#[tokio::test(flavor = "multi_thread")]
async fn names_with_colons_never_confuse_two_seats() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let provider = ScriptedProvider::default();
    let seats = seats_of(&["A", "A:B", "A:B:C", "B"], &[":1", "1", "B:1"], &["1", ":", "1:2", "B:1"]);
    let sale = Sale::open(stores, SalePlan::of_seats(seats.clone()).ttl_ms(6_000).window_ms(6_000)).await;
    let keys = test.keys().await.into_iter().filter(|key| key.starts_with(&test.key("seat:"))).count();
    assert_eq!(keys, seats.len(), "each seat has a key of its own");
    for (index, (block, row, column)) in seats.iter().enumerate() {
        let seat = seat_ref(block, row, column);
        let held = sale.hold_refs(stores, "u1", vec![seat.clone()]).await.unwrap();
        let named = &held.seats[0];
        let names = (named.block.as_str(), named.row.as_str(), named.column.as_str());
        assert_eq!(names, (block.as_str(), row.as_str(), column.as_str()), "byte for byte");
        assert_eq!(test.count("SELECT count(*) FROM seat_claims WHERE state = 'held'").await, 1);
        if index % 3 == 0 {
            let payment = pay(stores, held.id, "tok_ok").await.unwrap();
            finalize(stores, &provider, payment.id).await;
        } else {
            test.advance(to_ms(held.expires_at) - to_ms(stores.pg.now().await.unwrap()));
            holdfast_tests::repair::sweep_deadlines(stores).await;
        }
    }
    settle(&test, stores, &provider).await;
    for block in ["A", "A:B", "A:B:C", "B"] {
        let reading = sale.read(stores, block).await;
        let sold = reading.seats.iter().filter(|seat| seat.status == SeatStatus::Sold).count();
        assert_eq!((reading.seats.len(), sold), (12, 4), "{block}");
    }
}

// A-N2
#[tokio::test(flavor = "multi_thread")]
async fn both_spellings_of_a_hangul_name_are_one_seat() {
    let test = TestStores::start().await;
    let (composed, decomposed) = ("가구역", "\u{1100}\u{1161}\u{1100}\u{116e}\u{110b}\u{1167}\u{11a8}");
    assert_ne!(composed, decomposed);
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&[(composed, "나열", 3)])).await;
    sale.hold_refs(&test.stores, "u1", vec![seat_ref(decomposed, "나열", "1")]).await.unwrap();
    let rival = sale.hold_refs(&test.stores, "u2", vec![seat_ref(composed, "나열", "1")]).await.unwrap_err();
    assert!(matches!(rival, PlaceHoldError::Unavailable(_)), "{rival:?}");
    let twice = format!("block,row,column,category\n{composed},나열,1,Seat\n{decomposed},나열,1,Seat\n");
    let file = VenueFile {
        format: MapFormat::Csv,
        name: "Both".to_owned(),
        time_zone: "Asia/Seoul".to_owned(),
        bytes: twice.into_bytes(),
        mode: ImportMode::Store,
    };
    match import_venue(&test.stores, file).await {
        Err(ImportVenueError::Faults(faults)) => assert!(faults.faults[0].at.contains("line 3"), "{faults}"),
        other => panic!("not refused: {other:?}"),
    }
    assert_eq!(test.count("SELECT count(*) FROM venues").await, 1);
}

// A-N3
#[tokio::test(flavor = "multi_thread")]
async fn labels_are_never_numbers() {
    let test = TestStores::start().await;
    let columns = ["1", "01", "001", "10", "1A", "A1"];
    let sale = Sale::open(&test.stores, SalePlan::of_seats(seats_of(&["B1"], &["A"], &columns))).await;
    let held = sale.hold(&test.stores, "u1", &["A-01"]).await.unwrap();
    assert_eq!(held.seats[0].column.as_str(), "01");
    for column in columns {
        let wanted = if column == "01" { SeatStatus::Held } else { SeatStatus::Available };
        assert_eq!(sale.status(&test.stores, &format!("A-{column}")).await, wanted, "{column}");
    }
    let order = |sale: &Sale| sale.sheet.map.seats().iter().map(|seat| seat.column.to_string()).collect::<Vec<_>>();
    let elsewhere = Sale::of(&test.another_process(), sale.event).await;
    assert_eq!(order(&sale), order(&elsewhere), "the same order in every process");
    let map =
        import_map(MapFormat::Csv, SalePlan::of_seats(seats_of(&["B1"], &["A"], &columns)).csv.as_bytes()).unwrap().map;
    assert_eq!(import_map(MapFormat::Csv, export_csv(&map).as_bytes()).unwrap().map, map);
    settle(&test, &test.stores, &ScriptedProvider::default()).await;
}

// A-N4
#[tokio::test(flavor = "multi_thread")]
async fn each_seat_of_a_ragged_house_is_sold_and_freed_alone() {
    let test = TestStores::start().await;
    let stores = &test.stores;
    let mut seats = seats_of(&["B1"], &["A"], &["1", "2", "3"]);
    seats.extend(seats_of(&["B1"], &["C"], &["1", "3", "4", "6", "7"]));
    seats.extend(seats_of(&["B1"], &["D"], &["1"]));
    let last: Vec<String> = (1..=12).map(|column| column.to_string()).collect();
    seats.extend(seats_of(&["B1"], &["E"], &last.iter().map(String::as_str).collect::<Vec<_>>()));
    let sale = Sale::open(stores, SalePlan::of_seats(seats.clone()).ttl_ms(600_000)).await;
    let mut held = Vec::new();
    for (block, row, column) in &seats {
        held.push(sale.hold_refs(stores, "u1", vec![seat_ref(block, row, column)]).await.unwrap());
    }
    for (index, held) in held.iter().enumerate() {
        let cancel = domain::reservation::CancelReason::User;
        domain::flow::unhold::cancel_reservation(stores, &domain::flow::Access::Any, held.id, cancel).await.unwrap();
        let reading = sale.read(stores, "B1").await;
        let free: Vec<_> = reading
            .seats
            .iter()
            .zip(sale.sheet.map.seats())
            .filter(|(reading, _)| reading.status == SeatStatus::Available)
            .map(|(_, seat)| (seat.row.to_string(), seat.column.to_string()))
            .collect();
        let mut wanted: Vec<_> = seats[..=index].iter().map(|(_, row, column)| (row.clone(), column.clone())).collect();
        wanted.sort_by_key(|(row, column)| (row.clone(), column.parse::<u32>().unwrap()));
        assert_eq!(free, wanted);
    }
    settle(&test, stores, &ScriptedProvider::default()).await;
}
