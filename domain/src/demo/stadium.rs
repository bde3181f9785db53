//! The stadium: stands as arcs of an oval round a baseball field.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use super::{DemoCategory, DemoRow, label, length, map_categories, tenth};
use crate::venue::{MapBlock, MapSeat, VenueMap};

pub(super) const CATEGORIES: [DemoCategory; 6] = [
    DemoCategory { name: "Premium", color: "#8e24aa", price_krw: 80_000 },
    DemoCategory { name: "Table", color: "#d81b60", price_krw: 55_000 },
    DemoCategory { name: "Infield", color: "#1e88e5", price_krw: 22_000 },
    DemoCategory { name: "Upper", color: "#00897b", price_krw: 14_000 },
    DemoCategory { name: "Outfield", color: "#7cb342", price_krw: 9_000 },
    DemoCategory { name: "Accessible", color: "#fb8c00", price_krw: 9_000 },
];

/// The middle of the oval in the drawing, in decimetres.
pub(super) const CENTRE: (f64, f64) = (1_300.0, 950.0);
/// Half the width and half the depth of the oval in which the front row of the lower stands is, in decimetres.
const OVAL: (f64, f64) = (880.0, 780.0);
/// From one row to the next, in decimetres.
const ROW_DEPTH: f64 = 8.0;

/// Where a stand's blocks are and how their rows grow. Angles are in degrees from home plate, counted towards first
/// base; lengths are in decimetres.
struct Stand {
    first_block: usize,
    blocks: usize,
    tier: &'static str,
    from_angle: f64,
    to_angle: f64,
    /// How far the first row lies outside the oval.
    setback: f64,
    rows: usize,
    /// Seats in the first row, and after how many rows there is one more.
    seats_first_row: usize,
    rows_per_seat: usize,
    /// From one seat to the next.
    seat_width: f64,
    row_names: RowNames,
}

/// How a stand names its rows.
#[derive(Clone, Copy)]
enum RowNames {
    /// `1`, `2`, …
    Numbers,
    /// `A`, `B`, …
    Letters,
}

const INFIELD: Stand = Stand {
    first_block: 101,
    blocks: 22,
    tier: "Lower 1층",
    from_angle: -90.0,
    to_angle: 90.0,
    setback: 0.0,
    rows: 22,
    seats_first_row: 16,
    rows_per_seat: 2,
    seat_width: 5.0,
    row_names: RowNames::Numbers,
};
const UPPER: Stand = Stand {
    first_block: 301,
    tier: "Upper 3층",
    setback: 230.0,
    rows: 18,
    seats_first_row: 20,
    rows_per_seat: 3,
    row_names: RowNames::Letters,
    ..INFIELD
};
const OUTFIELD: Stand = Stand {
    first_block: 401,
    blocks: 16,
    tier: "Outfield 외야",
    from_angle: 105.0,
    to_angle: 255.0,
    rows: 14,
    seats_first_row: 19,
    rows_per_seat: 3,
    seat_width: 5.5,
    ..INFIELD
};

/// The blocks behind home plate, which are premium on the lower tier: wider seats, two fewer in a row.
const HOME: std::ops::Range<usize> = 8..14;
/// The outfield blocks that have two places for wheelchairs behind their last row.
const WITH_WHEELCHAIRS: [usize; 6] = [1, 4, 6, 9, 11, 14];

pub(super) fn map() -> VenueMap {
    let infield = (0..INFIELD.blocks).map(|number| infield_block(&INFIELD, number, "Infield"));
    let upper = (0..UPPER.blocks).map(|number| infield_block(&UPPER, number, "Upper"));
    let outfield = (0..OUTFIELD.blocks).map(outfield_block);
    let blocks = infield.chain(upper).chain(outfield).collect();
    VenueMap { categories: map_categories(&CATEGORIES), blocks }.into_canonical()
}

/// A block of the lower or the upper tier between third base and first base.
fn infield_block(stand: &Stand, number: usize, category: &'static str) -> MapBlock {
    let (side_ko, side_en) = match number {
        _ if number < HOME.start => ("3루", "Third base"),
        _ if HOME.contains(&number) => ("중앙", "Home plate"),
        _ => ("1루", "First base"),
    };
    let lower = category == "Infield";
    let premium = lower && HOME.contains(&number);
    let (kind_ko, kind_en) = match (premium, lower) {
        (true, _) => ("프리미엄", "premium"),
        (false, true) => ("내야", "infield"),
        (false, false) => ("상단", "upper"),
    };
    let mut seats = Vec::new();
    if premium {
        let wide = Stand { seats_first_row: stand.seats_first_row - 2, seat_width: 5.3, ..*stand };
        wide.add_rows(&mut seats, number, "Premium");
    } else {
        stand.add_rows(&mut seats, number, category);
    }
    if lower && !premium {
        add_tables(stand, &mut seats, number);
    }
    stand.block(number, seats, (&format!("{side_ko} {kind_ko}"), &format!("{side_en} {kind_en}")))
}

fn outfield_block(number: usize) -> MapBlock {
    let names = match number {
        0..5 => ("우익 외야", "Right field"),
        5..11 => ("중견 외야", "Centre field"),
        _ => ("좌익 외야", "Left field"),
    };
    let mut seats = Vec::new();
    OUTFIELD.add_rows(&mut seats, number, "Outfield");
    if WITH_WHEELCHAIRS.contains(&number) {
        let setback = OUTFIELD.setback + ROW_DEPTH * length(OUTFIELD.rows) + 10.0;
        let row = DemoRow { row: label("W"), category: "Accessible", group: 2 };
        row.add_to(&mut seats, 2, |seat| {
            let (x, y) = OUTFIELD.position(number, setback, 15.0 * (length(seat) - 0.5));
            (label(&(seat + 1).to_string()), format!("휠체어 {}번", seat + 1), x, y)
        });
    }
    OUTFIELD.block(number, seats, names)
}

/// Four tables of four in front of the first row.
fn add_tables(stand: &Stand, seats: &mut Vec<MapSeat>, number: usize) {
    let row = DemoRow { row: label("T"), category: "Table", group: 4 };
    row.add_to(seats, 16, |seat| {
        let from_middle = 5.5 * (length(seat) - 7.5) + 5.0 * (length(seat / 4) - 1.5);
        let (x, y) = stand.position(number, stand.setback - 20.0, from_middle);
        (label(&(seat + 1).to_string()), format!("테이블 {}번", seat + 1), x, y)
    });
}

impl Stand {
    fn add_rows(&self, seats: &mut Vec<MapSeat>, number: usize, category: &str) {
        for row in 0..self.rows {
            let count = self.seats_first_row + row / self.rows_per_seat;
            let name = match self.row_names {
                RowNames::Numbers => (row + 1).to_string(),
                RowNames::Letters => ('A'..='Z').nth(row).map(String::from).unwrap_or_default(),
            };
            let setback = self.setback + ROW_DEPTH * length(row);
            let whole_row = DemoRow { row: label(&name), category, group: count };
            whole_row.add_to(seats, count, |seat| {
                let from_middle = self.seat_width * (length(seat) - (length(count) - 1.0) / 2.0);
                let (x, y) = self.position(number, setback, from_middle);
                (label(&(seat + 1).to_string()), format!("{name}열 {}번", seat + 1), x, y)
            });
        }
    }

    /// The place so far outside the oval and so far along the row from the middle of the block.
    fn position(&self, number: usize, setback: f64, from_middle: f64) -> (f64, f64) {
        let step = (self.to_angle - self.from_angle) / length(self.blocks);
        let middle = (self.from_angle + step * (length(number) + 0.5)) * PI / 180.0;
        let (across, deep) = (OVAL.0 + setback, OVAL.1 + setback);
        // How far one moves along the oval for each radian at the block's middle; a block is short enough for that.
        let speed = (across * middle.cos()).hypot(deep * middle.sin());
        let angle = middle + from_middle / speed;
        (tenth(CENTRE.0 + across * angle.sin()), tenth(CENTRE.1 + deep * angle.cos()))
    }

    fn block(&self, number: usize, seats: Vec<MapSeat>, (ko, en): (&str, &str)) -> MapBlock {
        let block = (self.first_block + number).to_string();
        let names = [("ko", format!("{ko} {block}블록")), ("en", format!("{en} {block}"))];
        let names: BTreeMap<String, String> =
            names.into_iter().map(|(language, name)| (language.to_owned(), name)).collect();
        MapBlock { block: label(&block), names, tier: Some(self.tier.to_owned()), seats }
    }
}
