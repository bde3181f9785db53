//! The cinema: Hangul rows with two aisles, and couple seats at the back.

use std::collections::BTreeMap;

use super::{DemoCategory, DemoRow, label, length, map_categories};
use crate::venue::{MapBlock, VenueMap};

pub(super) const CATEGORIES: [DemoCategory; 3] = [
    DemoCategory { name: "일반", color: "#546e7a", price_krw: 14_000 },
    DemoCategory { name: "프라임", color: "#3949ab", price_krw: 16_000 },
    DemoCategory { name: "커플", color: "#c2185b", price_krw: 19_000 },
];

const ROWS: [&str; 10] = ["가", "나", "다", "라", "마", "바", "사", "아", "자", "차"];
/// The rows in the middle, from which one sees best.
const PRIME: std::ops::Range<usize> = 4..8;
/// How many seats stand together: the aisles are after columns 04 and 12.
const SEATS_PER_ROW: usize = 16;
const COUPLE_SEATS: usize = 20;
/// Lengths in decimetres.
const SEAT_WIDTH: f64 = 6.0;
const AISLE_WIDTH: f64 = 12.0;
const ROW_DEPTH: f64 = 11.0;
const FRONT: f64 = 60.0;
/// Left of the couple seats, and how much further in the other rows begin.
const MARGIN: f64 = 10.0;
const INDENT: f64 = 4.5;

pub(super) fn map() -> VenueMap {
    let mut seats = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let category = if PRIME.contains(&number) { "프라임" } else { "일반" };
        let y = FRONT + ROW_DEPTH * length(number);
        for (first, count) in [(0, 4), (4, 8), (12, 4)] {
            DemoRow { row: label(row), category, group: count }.add_to(&mut seats, count, |seat| {
                let place = first + seat;
                let aisles = usize::from(place >= 4) + usize::from(place >= 12);
                (
                    column(place),
                    format!("{row}{:02}", place + 1),
                    MARGIN + INDENT + SEAT_WIDTH * length(place) + AISLE_WIDTH * length(aisles),
                    y,
                )
            });
        }
    }
    // Sofas for two, over the hall's whole width and a little more.
    let sofa = (SEAT_WIDTH * length(SEATS_PER_ROW) + 2.0 * AISLE_WIDTH) / length(COUPLE_SEATS / 2) + 1.0;
    let y = FRONT + ROW_DEPTH * length(ROWS.len()) + 4.0;
    DemoRow { row: label("AA"), category: "커플", group: 2 }.add_to(&mut seats, COUPLE_SEATS, |seat| {
        let x = MARGIN + sofa * length(seat / 2) + SEAT_WIDTH * length(seat % 2);
        (column(seat), format!("AA{:02}", seat + 1), x, y)
    });
    let names = BTreeMap::from(
        [("ko", "1관"), ("en", "Screen 1")].map(|(language, name)| (language.to_owned(), name.to_owned())),
    );
    let block = MapBlock { block: label("1관"), names, tier: None, seats };
    VenueMap { categories: map_categories(&CATEGORIES), blocks: vec![block] }.into_canonical()
}

fn column(place: usize) -> crate::label::Label {
    label(&format!("{:02}", place + 1))
}
