use std::collections::BTreeMap;

use serde_json::json;

use super::*;

const SEATSIO: MapFormat = MapFormat::Seatsio;

fn kinds(imported: &ImportedMap) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for skipped in &imported.skipped {
        *kinds.entry(skipped.kind.as_str()).or_default() += 1;
    }
    kinds
}

#[test]
fn the_race_track_has_all_its_8_897_seats() {
    let Some(file) = shared_venue("seatsio-sampleChartWithZones.json") else { return };
    let imported = import(SEATSIO, &file);
    let blocks: Vec<_> = imported
        .map
        .blocks
        .iter()
        .map(|block| (block.block.as_str(), block.tier.as_deref(), block.seats.len()))
        .collect();
    assert_eq!(
        blocks,
        [
            ("MT1", Some("Mid Track"), 2_418),
            ("MT3", Some("Mid Track"), 3_614),
            ("Goal Stand 3", Some("Finish Line"), 2_215),
            ("Goal Stand 4", Some("Finish Line"), 650)
        ]
    );
    assert_eq!(imported.map.seat_count(), 8_897);
    let categories: Vec<_> = imported
        .map
        .categories
        .iter()
        .map(|category| (category.category.as_str(), category.color.as_deref()))
        .collect();
    assert_eq!(categories, [("Goal Stands", Some("#4176a5")), ("Mid Track Stand", Some("#fca700"))]);
    // The section's corner plus the seat's own position.
    let first = seat(block(&imported, "Goal Stand 4"), "A", "1");
    assert_eq!(
        (first.x, first.y, first.label.as_str(), first.category.as_str()),
        (40_411.23, 22_994.06, "A-1", "Goal Stands")
    );
    // Rows lettered Z, AA, BB follow each other, and every seat of these unbroken rows but the outer ones has two neighbours.
    let rows: Vec<&str> =
        block(&imported, "Goal Stand 3").seats.chunk_by(|a, b| a.row == b.row).map(|row| row[0].row.as_str()).collect();
    assert_eq!(rows.len(), 54);
    assert_eq!(rows[24..28], ["Y", "Z", "AA", "BB"]);
    let links: usize = block(&imported, "MT1").seats.iter().map(|seat| seat.neighbours.len()).sum();
    assert_eq!(links, 26 * 2 * 92);
    assert_eq!(import(SEATSIO, &file).map.content_hash(), imported.map.content_hash());
    assert_eq!(import(MapFormat::Csv, export_csv(&imported.map)).map, imported.map);
}

#[test]
fn rows_outside_sections_are_in_the_block_main_and_areas_are_skipped() {
    let Some(file) = shared_venue("seatsio-sampleChart.json") else { return };
    let imported = import(SEATSIO, file);
    assert_eq!(imported.map.seat_count(), 32);
    assert_eq!(imported.map.blocks.len(), 1);
    assert_eq!(seat(block(&imported, "Main"), "D", "8").category, "Cat2");
    assert_eq!(kinds(&imported), BTreeMap::from([("generalAdmissionAreas", 2), ("shapes", 1)]));
    let area = imported.skipped.iter().find(|skipped| skipped.path == "$.subChart.generalAdmissionAreas[0]").unwrap();
    assert_eq!(
        area.reason,
        "the general admission area \"GA1\" has no seats of its own: its 100 places are not imported"
    );
    assert_eq!(
        imported.warnings,
        [
            "marks of accessible, companion and restricted-view seats are not kept; seats so marked: 1",
            "the category \"Cat3\" has no seats and is left out"
        ]
    );
}

#[test]
fn a_section_gives_its_seats_their_block_and_category() {
    let Some(file) = shared_venue("seatsio-sampleChartWithSections.json") else { return };
    let imported = import(SEATSIO, file);
    assert_eq!(imported.map.seat_count(), 71);
    assert_eq!((block(&imported, "Section A").seats.len(), block(&imported, "Section B").seats.len()), (36, 35));
    let first = seat(block(&imported, "Section B"), "A", "1");
    assert_eq!((first.category.as_str(), first.x, first.y), ("cat2", 206.19, 45.25));
}

#[test]
fn every_fault_of_a_faulty_chart_is_named_with_its_path() {
    let Some(file) = shared_venue("seatsio-sampleChartWithErrors.json") else { return };
    assert_eq!(
        refused(SEATSIO, file),
        [
            "$.subChart.rows[0].seats[2].label: the seat has no label: give it one",
            "$.subChart.rows[0].seats[3].categoryKey: the seat has no category: give it one, or its section",
            "$.subChart.rows[0].seats[1]: block Main, row A, column 1 is there already, at $.subChart.rows[0].seats[0]: \
             give one of the two another label",
        ]
    );
}

fn chart(contents: serde_json::Value) -> Vec<u8> {
    let categories =
        json!({"list": [{"key": 1, "label": "R", "color": "#ABC"}, {"key": "two", "label": "S", "color": "blue"}]});
    serde_json::to_vec(&json!({"categories": categories, "zones": null, "subChart": contents})).unwrap()
}

#[test]
fn faults_of_labels_categories_and_positions_are_named_each() {
    let file = chart(json!({
        "rows": [
            {"label": null, "seats": [{"label": "1", "x": 0, "y": 0, "categoryKey": 1}, {"label": "", "x": 0, "y": 0, "categoryKey": 7}]},
            {"label": "B", "seats": [{"label": "a\u{7}", "x": "0", "y": 1e300, "categoryLabel": "T"}]},
        ],
        "sections": [{"label": "?", "topLeft": {"x": 1, "y": "top"}, "subChart": {"rows": [
            {"label": "A", "seats": [{"label": "1", "x": 0, "y": 0}]}]}}],
    }));
    let faults = refused(SEATSIO, file);
    let paths: Vec<&str> = faults.iter().map(|fault| fault.split_once(": ").unwrap().0).collect();
    assert_eq!(
        paths,
        [
            "$.subChart.rows[0].label",
            "$.subChart.rows[0].seats[1].label",
            "$.subChart.rows[0].seats[1].categoryKey",
            "$.subChart.rows[1].seats[0].label",
            "$.subChart.rows[1].seats[0].categoryLabel",
            "$.subChart.rows[1].seats[0].x",
            "$.subChart.rows[1].seats[0].y",
            "$.subChart.sections[0].label",
            "$.subChart.sections[0].topLeft.y",
            "$.subChart.sections[0].subChart.rows[0].seats[0].categoryKey",
        ]
    );
}

#[test]
fn every_object_that_is_no_row_is_listed_also_of_kinds_nobody_knows() {
    let file = chart(json!({
        "rows": [{"label": 1, "displayLabel": "Row 1", "sectionLabel": "L", "categoryKey": "two", "seats": [
            {"label": 7, "x": 0, "y": 0, "accessible": true}, {"label": "08", "x": 5, "y": 0, "categoryKey": 1}]}],
        "tables": [{"label": "T1", "seats": [{}, {}]}],
        "booths": [{"label": "B1"}],
        "portals": [{"label": "P"}, 3],
        "sections": [{"label": "S", "subChart": {"texts": [{"text": "Exit"}], "rows": null}}, {"label": "Empty"}],
        "backgroundImage": {"anything": []},
    }));
    let imported = import(SEATSIO, file);
    let skipped: Vec<_> =
        imported.skipped.iter().map(|skipped| (skipped.path.as_str(), skipped.kind.as_str())).collect();
    assert_eq!(
        skipped,
        [
            ("$.subChart.booths[0]", "booths"),
            ("$.subChart.portals[0]", "portals"),
            ("$.subChart.portals[1]", "portals"),
            ("$.subChart.tables[0]", "tables"),
            ("$.subChart.sections[0].subChart.texts[0]", "texts"),
            ("$.subChart.sections[1]", "sections"),
        ]
    );
    assert_eq!(imported.skipped[3].reason, "the table \"T1\" is not a row: its 2 seats are not imported");
    let block = block(&imported, "L");
    assert_eq!((seat(block, "1", "7").label.as_str(), seat(block, "1", "7").category.as_str()), ("Row 1-7", "S"));
    assert_eq!(seat(block, "1", "08").category, "R");
    assert_eq!(imported.map.categories[0].color.as_deref(), Some("#aabbcc"));
    assert_eq!(
        imported.warnings,
        [
            "$.categories.list[1].color: \"blue\" is not #rrggbb and is left out",
            "marks of accessible, companion and restricted-view seats are not kept; seats so marked: 1",
        ]
    );
}

#[test]
fn neighbours_follow_the_drawn_row_and_stop_at_an_aisle() {
    let seats = |labels: &[(&str, f64)]| {
        labels.iter().map(|(label, x)| json!({"label": label, "x": x, "y": 0, "categoryKey": 1})).collect::<Vec<_>>()
    };
    let file = chart(json!({"rows": [
        {"label": "A", "seats": seats(&[("1", 0.0), ("3", 10.0), ("2", 20.0), ("4", 50.0), ("5", 60.0)])},
        {"label": "A", "seats": seats(&[("6", 70.0), ("7", 80.0)])},
    ]}));
    assert_eq!(
        neighbours(block(&import(SEATSIO, file), "Main")),
        ["A/1: A/3", "A/2: A/3", "A/3: A/1 A/2", "A/4: A/5", "A/5: A/4", "A/6: A/7", "A/7: A/6"]
    );
}

#[test]
fn what_is_no_chart_says_so() {
    assert!(refused(SEATSIO, "{\"subChart\": {\"rows\": 5}}")[0].starts_with("line 1, column"));
    assert!(refused(SEATSIO, "{}")[0].starts_with("$.subChart: it is missing"));
    let deep = "{\"subChart\":{\"sections\":[".repeat(200);
    assert!(refused(SEATSIO, deep)[0].contains("recursion limit"));
}
