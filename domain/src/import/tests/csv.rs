use std::collections::BTreeMap;

use proptest::prelude::*;
use unicode_normalization::UnicodeNormalization;

use super::*;
use crate::label::label_order;
use crate::venue::{MapCategory, VENUE_SEATS_MAX, VenueMap};

const CSV: MapFormat = MapFormat::Csv;

/// Rows of 3, 7, 1 and 12 seats; row C lacks columns 2 and 5.
fn ragged() -> String {
    let rows = [("A", vec![1, 2, 3]), ("C", vec![1, 3, 4, 6, 7, 8, 9]), ("D", vec![1]), ("E", (1..=12).collect())];
    let lines =
        rows.iter().flat_map(|(row, columns)| columns.iter().map(move |column| format!("B1,{row},{column},R\n")));
    format!("block,row,column,category\n{}", lines.collect::<String>())
}

#[test]
fn the_four_required_columns_are_enough() {
    let imported = import(CSV, ragged());
    assert_eq!(imported.map.seat_count(), 23);
    let block = block(&imported, "B1");
    let first = seat(block, "C", "3");
    assert_eq!((first.label.as_str(), first.category.as_str(), first.x, first.y), ("C-3", "R", 40.0, 20.0));
    assert_eq!(imported.map.categories, [MapCategory { category: String::from("R"), color: None }]);
    assert!(imported.warnings.is_empty() && imported.skipped.is_empty());
}

#[test]
fn a_seat_that_a_row_lacks_parts_its_neighbours() {
    let imported = import(CSV, ragged());
    let all = neighbours(block(&imported, "B1"));
    assert_eq!(all[..3], ["A/1: A/2", "A/2: A/1 A/3", "A/3: A/2"]);
    assert_eq!(all[3..10], ["C/1:", "C/3: C/4", "C/4: C/3", "C/6: C/7", "C/7: C/6 C/8", "C/8: C/7 C/9", "C/9: C/8"]);
    assert_eq!(all[10], "D/1:");
    assert_eq!(all[22], "E/12: E/11");
}

#[test]
fn odd_and_even_sides_are_neighbours_within_a_side() {
    let imported = import(CSV, "block,row,column,category\nB,1,1,R\nB,1,3,R\nB,1,5,R\nB,2,2,R\nB,2,4,R\nB,2,6,R\n");
    assert_eq!(
        neighbours(block(&imported, "B")),
        ["1/1: 1/3", "1/3: 1/1 1/5", "1/5: 1/3", "2/2: 2/4", "2/4: 2/2 2/6", "2/6: 2/4"]
    );
}

#[test]
fn an_aisle_is_a_gap_in_the_positions() {
    let imported = import(
        CSV,
        "block,row,column,category,x,y\nB,1,1,R,0,0\nB,1,2,R,10,0\nB,1,3,R,30,0\nB,1,4,R,40,0\nB,1,5,R,50,1\n",
    );
    assert_eq!(neighbours(block(&imported, "B")), ["1/1: 1/2", "1/2: 1/1", "1/3: 1/4", "1/4: 1/3 1/5", "1/5: 1/4"]);
}

#[test]
fn named_neighbours_replace_the_default_and_must_agree() {
    let header = "block,row,column,category,neighbours\n";
    let imported = import(CSV, format!("{header}B,1,1,R,2;2/1\nB,1,2,R,\nB,1,3,R,\nB,1,4,R,-\nB,2,1,R,1/1\n"));
    assert_eq!(neighbours(block(&imported, "B")), ["1/1: 1/2 2/1", "1/2: 1/1 1/3", "1/3: 1/2", "1/4:", "2/1: 1/1"]);
    assert_eq!(
        refused(CSV, format!("{header}B,1,1,R,9\nB,1,2,R,1/2/3\nB,1,3,R,\\\nB,1,4,R,1;;2\n")),
        [
            "line 3: a neighbour has two slashes: write \\/ for a slash in a label",
            "line 4: neighbours ends in a backslash: write \\\\ for a backslash",
            "line 5: in neighbours a label is empty: give it at least one character that is not white space",
        ],
    );
    assert_eq!(
        refused(CSV, format!("{header}B,1,1,R,2\nB,1,2,R,-\nB,1,3,R,3;9\n")),
        [
            "line 2: row 1, column 2 is named as a neighbour, but names its own without this seat at line 3: name each other or neither",
            "line 4: the seat is its own neighbour: leave it out",
            "line 4: the neighbour row 1, column 9 is not in block B: name a seat of it",
        ]
    );
}

#[test]
fn separators_in_labels_are_escaped_in_neighbours() {
    let table = r#"block,row,column,category,neighbours
A:B,a/b,;,R,"\-;\\/x,""y"
A:B,a/b,-,R,
A:B,\,"x,""y",R,a\/b/\;
"#;
    let imported = import(CSV, table);
    let found = neighbours(block(&imported, "A:B"));
    assert_eq!(found, [r#"\/x,"y: a/b/;"#, "a/b/-: a/b/;", r#"a/b/;: \/x,"y a/b/-"#]);
    let exported = export_csv(&imported.map);
    let cells = [r"a\/b/\;", r"\;", r#""\\/x,""y;-""#];
    assert!(exported.lines().skip(1).zip(cells).all(|(line, cell)| line.ends_with(&format!(",{cell}"))), "{exported}");
    assert_eq!(import(CSV, &exported).map, imported.map);
    let alone = import(CSV, "block,row,column,category,neighbours\nB,1,-,R,2\nB,1,2,R,\\-\n");
    assert_eq!(neighbours(block(&alone, "B")), ["1/2: 1/-", "1/-: 1/2"]);
    assert_eq!(import(CSV, export_csv(&alone.map)).map, alone.map);
}

#[test]
fn six_spellings_of_one_are_six_seats_and_keep_their_order() {
    let columns = ["1", "01", "001", "10", "1A", "A1"];
    let table = |columns: &[&str]| {
        format!(
            "block,row,column,category\n{}",
            columns.iter().map(|column| format!("B,A,{column},R\n")).collect::<String>()
        )
    };
    let imported = import(CSV, table(&columns));
    let order: Vec<&str> = imported.map.blocks[0].seats.iter().map(|seat| seat.column.as_str()).collect();
    assert_eq!(order, ["001", "01", "1", "1A", "10", "A1"]);
    let reversed: Vec<&str> = columns.into_iter().rev().collect();
    assert_eq!(import(CSV, table(&reversed)).map, imported.map);
    assert_eq!(import(CSV, export_csv(&imported.map)).map, imported.map);
}

#[test]
fn both_spellings_of_a_hangul_row_are_one_and_the_lines_are_named() {
    let decomposed: String = "나열".nfd().collect();
    let file = format!("block,row,column,category\n가구역,나열,1,R\n가구역,나열,2,R\n가구역,{decomposed},1,R\n");
    let faults = refused(CSV, file);
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].starts_with("line 4: block 가구역, row 나열, column 1 is there already, at line 2: "),
        "{faults:?}"
    );
}

#[test]
fn utf8_with_and_without_a_mark_and_euc_kr_give_the_same_map() {
    let text = "block,row,column,label,category,block_ko,tier\r\n1루,가,01,\"가, 1\",내야석,1루 내야,1층\r\n1루,나,02,,내야석,,\r\n";
    let plain = import(CSV, text);
    assert_eq!(seat(block(&plain, "1루"), "가", "01").label, "가, 1");
    assert_eq!(block(&plain, "1루").names, BTreeMap::from([(String::from("ko"), String::from("1루 내야"))]));
    assert_eq!(block(&plain, "1루").tier.as_deref(), Some("1층"));
    let marked = import(CSV, format!("\u{feff}{text}"));
    assert_eq!(marked, plain);
    let (korean, _, lossy) = encoding_rs::EUC_KR.encode(text);
    assert!(!lossy && std::str::from_utf8(&korean).is_err());
    let korean = import(CSV, korean);
    assert_eq!(korean.map, plain.map);
    assert!(korean.warnings[0].contains("EUC-KR"));
    assert!(
        refused(CSV, b"block,row,column,category\nB,1,1,R\nB,1,\xff\xff,R\n")[0]
            .starts_with("line 3: the file is neither UTF-8 nor")
    );
    assert!(refused(CSV, b"\xff\xfeb\0l\0")[0].contains("UTF-16"));
}

#[test]
fn every_fault_names_its_line_and_the_remedy() {
    let file = "block,row,column,label,category,x,y,color\n\
        B,1,1,,R,0,0,#FFF\n\
        ,1,2,,R,1,0,\n\
        \n\
        B,\"a\nb\",,,R,0,zero,\n\
        B,1,3,,R,2\n\
        B,1,4,,S,,,#ffffff\n\
        B,1,5,,R,1e9,0,#000000\n";
    assert_eq!(
        refused(CSV, file),
        [
            "line 3: the block is empty: give it at least one character that is not white space",
            "line 5: the row contains the control character U+000A: remove it",
            "line 5: the column is empty: give it at least one character that is not white space",
            "line 5: y is \"zero\": write a number with a point, within 10000000 of 0",
            "line 7: it has 6 fields and the header has 8: fill in or remove fields, and put a field that contains a comma in double quotes",
            "line 8: either every line has a position or none: fill in x and y here or leave both columns blank",
            "line 9: x is \"1e9\": write a number with a point, within 10000000 of 0",
            "line 9: the category \"R\" is #000000 here and #ffffff at line 2: choose one colour",
        ]
    );
}

#[test]
fn lines_are_counted_as_an_editor_counts_them() {
    for end in ["\n", "\r\n", "\r"] {
        let file =
            ["", "block,row,column,label,category", "B,1,1,\"two", "lines\",R", "", "", "B,1,,,R", "B,1,2,,"].join(end);
        let faults = refused(CSV, file);
        let lines: Vec<&str> = faults.iter().map(|fault| fault.split_once(':').unwrap().0).collect();
        assert_eq!(lines, ["line 3", "line 7", "line 8"], "{end:?}");
    }
}

#[test]
fn a_header_that_is_wrong_says_what_it_should_be() {
    for (header, says) in [
        (
            "block,row,column",
            "line 1: the column \"category\" is missing: the header is block,row,column,label,category,x,y,neighbours",
        ),
        ("block,row,seat,category", "line 1: the column \"seat\" is not known"),
        ("block;row;column;category", "line 1: the fields are not separated by commas"),
        ("block,row,row,column,category", "line 1: the column \"row\" is there twice"),
        ("block,row,column,category,x", "line 1: a position needs both columns"),
        (&"block_ko,".repeat(1_000_000), "line 1: it has 1000001 columns: at most 64"),
    ] {
        let faults = refused(CSV, format!("{header}\nB,1,1,R\n"));
        assert!(faults[0].starts_with(says), "{faults:?}");
    }
    assert_eq!(import(CSV, " Block , ROW,Column,CATEGORY\nB,1,1,R\n").map.seat_count(), 1);
}

#[test]
fn the_table_of_the_guide_imports() {
    let guide = include_str!("../../../../docs/venue-files.md");
    let table = guide.split("```csv\n").nth(1).unwrap().split("```").next().unwrap();
    let imported = import(CSV, table);
    let block = block(&imported, "101");
    assert_eq!(neighbours(block), ["1/1: 1/2", "1/2: 1/1 1/3", "1/3: 1/2"]);
    assert_eq!((block.names["ko"].as_str(), block.names["en"].as_str()), ("3루 101블록", "Third base 101"));
    assert_eq!(block.tier.as_deref(), Some("1층"));
    assert_eq!(
        export_csv(&imported.map).lines().next(),
        table.lines().next().map(|header| header.replace("block_ko,block_en", "block_en,block_ko")).as_deref()
    );
}

#[test]
fn a_block_has_one_name_and_one_tier() {
    let faults = refused(CSV, "block,row,column,category,block_en,tier\nB,1,1,R,East,1\nB,1,2,R,,\nB,1,3,R,West,2\n");
    assert_eq!(
        faults,
        [
            "line 4: block_en of block B is \"West\" here and \"East\" at line 2: choose one",
            "line 4: tier of block B is \"2\" here and \"1\" at line 2: choose one",
        ]
    );
}

#[test]
fn faults_are_bounded_and_the_rest_is_counted() {
    let lines: String = (0..250).map(|_| String::from("B,1,,R\n")).collect();
    let faults = import_map(CSV, format!("block,row,column,category\n{lines}").as_bytes()).unwrap_err();
    assert_eq!((faults.faults.len(), faults.more), (100, 150));
    assert!(faults.to_string().ends_with("and 150 more faults"));
}

#[test]
fn a_venue_has_at_most_200_000_seats() {
    let table = |seats: usize| {
        let lines: String =
            (0..seats).map(|seat| format!("B{},{},{},R\n", seat / 2_000, seat / 40, seat % 40)).collect();
        format!("block,row,column,category\n{lines}")
    };
    assert_eq!(import(CSV, table(VENUE_SEATS_MAX)).map.seat_count(), VENUE_SEATS_MAX);
    assert_eq!(
        refused(CSV, table(VENUE_SEATS_MAX + 1)),
        ["file: it has more than 200000 seats: split it into several venues"]
    );
}

/// Any text a label can be, with the characters that separate something somewhere well represented.
fn labels() -> impl Strategy<Value = Label> {
    prop_oneof!["[;/\\\\:,\"\\- A1가]{1,5}", "\\PC{1,12}", "[0-9]{1,3}"]
        .prop_filter_map("is a label", |text| Label::parse(&text).ok())
}

prop_compose! {
    fn seats()(
        places in prop::collection::btree_set((labels(), labels()), 1..12),
        details in prop::collection::vec((labels(), 0..4_usize, -1e6..1e6, -1e6..1e6), 12),
        links in prop::collection::vec((0..12_u32, 0..12_u32), 0..8),
    ) -> Vec<(MapSeat, usize)> {
        let count = u32::try_from(places.len()).unwrap();
        let mut seats: Vec<(MapSeat, usize)> = places.into_iter().zip(details).map(|((row, column), (label, category, x, y))| {
            (MapSeat { row, column, label: label.to_string(), category: String::new(), x, y, neighbours: Vec::new() }, category)
        }).collect();
        for (a, b) in links {
            let (a, b) = (a % count, b % count);
            if a != b && !seats[a as usize].0.neighbours.contains(&b) {
                seats[a as usize].0.neighbours.push(b);
                seats[b as usize].0.neighbours.push(a);
            }
        }
        seats
    }
}

prop_compose! {
    fn maps()(
        categories in prop::collection::btree_map("[A-Z가-나 ,;]{0,8}[A-Z가-나]", prop::option::of("#[0-9a-f]{6}"), 4..5),
        blocks in prop::collection::btree_map(labels(), (seats(), prop::option::of(labels()), prop::option::of(labels())), 1..4),
    ) -> VenueMap {
        let categories: Vec<MapCategory> = categories.into_iter().filter_map(|(category, color)| {
            Some(MapCategory { category: Label::parse(&category).ok()?.to_string(), color })
        }).collect();
        let blocks = blocks.into_iter().map(|(block, (seats, name, tier))| MapBlock {
            block,
            names: name.map(|name| (String::from("ko"), name.to_string())).into_iter().collect(),
            tier: tier.map(String::from),
            seats: seats.into_iter().map(|(seat, number)| {
                MapSeat { category: categories[number % categories.len()].category.clone(), ..seat }
            }).collect(),
        }).collect();
        let mut map = VenueMap { categories, blocks };
        map.categories.sort_by(|a, b| a.category.cmp(&b.category));
        map.categories.dedup_by(|a, b| a.category == b.category);
        let used: Vec<String> = map.used_categories().into_iter().map(String::from).collect();
        map.categories.retain(|category| used.contains(&category.category));
        map.into_canonical()
    }
}

proptest! {
    #[test]
    fn a_map_survives_export_and_import_whatever_its_labels(map in maps()) {
        prop_assert_eq!(map.check(), Ok(()));
        let exported = export_csv(&map);
        let again = import(CSV, &exported);
        prop_assert_eq!(&again.map, &map);
        prop_assert_eq!(again.map.content_hash(), map.content_hash());
        prop_assert!(again.map.blocks.is_sorted_by(|a, b| label_order(&a.block, &b.block).is_lt()));
    }

    #[test]
    fn the_order_of_the_lines_does_not_matter(map in maps(), seed in any::<u64>()) {
        let exported = export_csv(&map);
        let (header, lines) = exported.split_once('\n').unwrap();
        let mut lines: Vec<&str> = lines.lines().collect();
        let count = lines.len();
        lines.rotate_left(usize::try_from(seed % count as u64).unwrap());
        lines.reverse();
        prop_assert_eq!(import(CSV, format!("{header}\n{}\n", lines.join("\n"))).map, map);
    }

    #[test]
    fn no_bytes_make_an_import_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), format in 0..3_usize) {
        let _ = import_map(MapFormat::ALL[format], &bytes);
        let mut table = b"block,row,column,label,category,x,y,neighbours\n".to_vec();
        table.extend(&bytes);
        let _ = import_map(CSV, &table);
    }
}
