use std::collections::HashSet;

use serde_json::{Value, json};

use super::*;

const PRETIX: MapFormat = MapFormat::Pretix;

#[test]
fn a_plan_whose_rows_repeat_is_refused_naming_both_seats() {
    let Some(file) = shared_venue("pretix-stadium.json") else { return };
    let faults = import_map(PRETIX, &file).unwrap_err();
    // 738 seats at 318 distinct places.
    assert_eq!(faults.faults.len() + faults.more, 738 - 318);
    let first = &faults.faults[0];
    assert_eq!(first.at, "$.zones[1].rows[6].seats[0]");
    assert!(
        first
            .message
            .starts_with("block First Floor, row A, column 1 is there already, at $.zones[1].rows[0].seats[0]: "),
        "{first}"
    );
}

#[test]
fn the_same_plan_with_a_zone_for_each_stand_has_all_its_738_seats() {
    let Some(file) = shared_venue("pretix-stadium.json") else { return };
    let mut plan: Value = serde_json::from_slice(&file).unwrap();
    let mut stands = Vec::new();
    for zone in plan["zones"].as_array().unwrap() {
        let mut seen = HashSet::new();
        let mut stand = zone.clone();
        stand["rows"] = json!([]);
        for row in zone["rows"].as_array().unwrap() {
            if !seen.insert(row["row_number"].to_string()) {
                seen = HashSet::from([row["row_number"].to_string()]);
                stands.push(stand.clone());
                stand["rows"] = json!([]);
                stand["areas"] = json!([]);
            }
            stand["rows"].as_array_mut().unwrap().push(row.clone());
        }
        stands.push(stand);
    }
    for (number, stand) in stands.iter_mut().enumerate() {
        stand["name"] = json!(format!("{} {}", stand["name"].as_str().unwrap(), number + 1));
    }
    plan["zones"] = Value::Array(stands);
    let imported = import(PRETIX, serde_json::to_vec(&plan).unwrap());
    assert_eq!(imported.map.seat_count(), 738);
    let rows: usize = imported.map.blocks.iter().map(|block| block.seats.chunk_by(|a, b| a.row == b.row).count()).sum();
    assert_eq!(rows, 90);
    assert_eq!(imported.skipped.len(), 1);
    assert_eq!(imported.warnings, ["the category \"Category III\" has no seats and is left out"]);
}

fn plan() -> Value {
    json!({
        "name": "Hall",
        "categories": [{"name": "Parkett", "color": "#F44336"}],
        "size": {"width": 100, "height": 100},
        "zones": [{
            "name": "Parkett links", "zone_id": "pl", "position": {"x": 100, "y": 10},
            "areas": [{"shape": "circle", "position": {"x": 0, "y": 0}}],
            "rows": [{"row_number": "1", "position": {"x": 1, "y": 2}, "seats": [
                {"seat_number": "01", "seat_guid": "same", "category": "Parkett", "position": {"x": 0.5, "y": 0}},
                {"seat_number": "1", "seat_guid": "same", "category": "Parkett", "position": {"x": 20.5, "y": 0}},
            ]}],
        }],
    })
}

#[test]
fn a_seat_is_its_zone_row_and_number_whatever_its_guid() {
    let imported = import(PRETIX, plan().to_string());
    let block = block(&imported, "Parkett links");
    assert_eq!(neighbours(block), ["1/01: 1/1", "1/1: 1/01"]);
    let first = seat(block, "1", "01");
    assert_eq!((first.x, first.y, first.label.as_str(), first.category.as_str()), (101.5, 12.0, "1-01", "Parkett"));
    assert_eq!(imported.skipped[0].path, "$.zones[0].areas[0]");
}

#[test]
fn faults_are_named_with_their_paths() {
    let mut faulty = plan();
    faulty["zones"][0]["rows"][0]["seats"][0] = json!({"category": "Balkon", "position": {"x": "a", "y": 0}});
    faulty["categories"].as_array_mut().unwrap().push(json!({"name": "Parkett"}));
    let faults = refused(PRETIX, faulty.to_string());
    let paths: Vec<&str> = faults.iter().map(|fault| fault.split_once(": ").unwrap().0).collect();
    assert_eq!(
        paths,
        [
            "$.categories[1].name",
            "$.zones[0].rows[0].seats[0].seat_number",
            "$.zones[0].rows[0].seats[0].category",
            "$.zones[0].rows[0].seats[0].position.x",
        ]
    );
}
