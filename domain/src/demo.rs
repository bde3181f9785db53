//! Two venues that exist nowhere, for `holdfast dev up`, the guides, the tests and the bench: a baseball stadium large
//! enough to be work, and a cinema whose labels are none that arithmetic would survive.
//!
//! Both are the same on every run: no clock, no randomness.

use std::collections::BTreeMap;

use crate::label::Label;
use crate::venue::{MapCategory, MapSeat, VenueMap};

mod cinema;
mod stadium;

/// Prices for the demo venues' categories, in minor units of KRW, which has no minor digits: whole won.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoPrices {
    /// For each category of [`stadium`].
    pub stadium: BTreeMap<String, i64>,
    /// For each category of [`cinema`].
    pub cinema: BTreeMap<String, i64>,
}

/// The baseball stadium: 23,750 seats in 60 blocks on three tiers round the field, with Korean and English names.
///
/// Positions are in decimetres. Home plate is at the bottom, third base to the left: blocks 101 to 122 and, above them,
/// 301 to 322 run from third base past home to first base, 401 to 416 from right field to left field.
pub fn stadium() -> VenueMap {
    stadium::map()
}

/// The cinema: 180 seats in the block `1관`, ten rows lettered in Hangul and a row `AA` of couple seats, columns from
/// `01`.
///
/// Positions are in decimetres, the screen is at the top.
pub fn cinema() -> VenueMap {
    cinema::map()
}

/// The prices the demo events are opened with.
pub fn demo_prices() -> DemoPrices {
    let prices = |categories: &[DemoCategory]| {
        categories.iter().map(|category| (category.name.to_owned(), category.price_krw)).collect()
    };
    DemoPrices { stadium: prices(&stadium::CATEGORIES), cinema: prices(&cinema::CATEGORIES) }
}

struct DemoCategory {
    name: &'static str,
    color: &'static str,
    price_krw: i64,
}

fn map_categories(categories: &[DemoCategory]) -> Vec<MapCategory> {
    let map = |category: &DemoCategory| MapCategory {
        category: category.name.to_owned(),
        color: Some(category.color.to_owned()),
    };
    categories.iter().map(map).collect()
}

#[expect(clippy::expect_used, reason = "the demo's labels are made here and the tests make every one of them")]
fn label(text: &str) -> Label {
    Label::parse(text).expect("the demo venues use sound labels")
}

/// A row in the making: its seats from left to right, the first of each group parted from the one before.
struct DemoRow<'a> {
    row: Label,
    category: &'a str,
    /// How many seats stand side by side before the next gap.
    group: usize,
}

impl DemoRow<'_> {
    /// Adds the row's seats to a block. `place` gives label, printed label and position of the seat with that number,
    /// from 0.
    fn add_to(&self, seats: &mut Vec<MapSeat>, count: usize, place: impl Fn(usize) -> (Label, String, f64, f64)) {
        let first = seats.len();
        for number in 0..count {
            let (column, printed, x, y) = place(number);
            let same_group = |other: usize| other < count && other / self.group == number / self.group;
            let beside =
                [number.checked_sub(1), Some(number + 1)].into_iter().flatten().filter(|&other| same_group(other));
            seats.push(MapSeat {
                row: self.row.clone(),
                column,
                label: printed,
                category: self.category.to_owned(),
                x,
                y,
                neighbours: beside.filter_map(|other| u32::try_from(first + other).ok()).collect(),
            });
        }
    }
}

/// A small number as a length.
fn length(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

/// A position to a tenth of a unit: the last bits of sines differ between platforms, the map must not.
fn tenth(position: f64) -> f64 {
    (position * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::import::{MapFormat, export_csv, import_map};

    fn count_by_category(map: &VenueMap) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for seat in map.blocks.iter().flat_map(|block| &block.seats) {
            *counts.entry(seat.category.as_str()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn the_stadium_has_23_750_seats_in_60_named_blocks() {
        let map = stadium();
        map.check().unwrap();
        assert_eq!((map.seat_count(), map.blocks.len()), (23_750, 60));
        assert_eq!(
            count_by_category(&map),
            BTreeMap::from([
                ("Accessible", 12),
                ("Infield", 7_392),
                ("Outfield", 4_672),
                ("Premium", 2_508),
                ("Table", 256),
                ("Upper", 8_910)
            ])
        );
        assert!(map.blocks.iter().all(|block| block.names.keys().eq(["en", "ko"]) && block.tier.is_some()));
        assert_eq!(map.blocks.iter().map(|block| &block.tier).collect::<BTreeSet<_>>().len(), 3);
        let names: BTreeSet<&str> =
            map.blocks.iter().flat_map(|block| block.names.values()).map(String::as_str).collect();
        assert_eq!(names.len(), 120);
    }

    #[test]
    fn no_two_seats_of_the_stadium_stand_in_each_other() {
        let map = stadium();
        let mut seats: Vec<&MapSeat> = map.blocks.iter().flat_map(|block| &block.seats).collect();
        seats.sort_by(|a, b| a.x.total_cmp(&b.x));
        for (number, seat) in seats.iter().enumerate() {
            // A seat is 0.45 m wide.
            for other in seats[number + 1..].iter().take_while(|other| other.x - seat.x < 4.5) {
                let distance = (seat.x - other.x).hypot(seat.y - other.y);
                assert!(distance >= 4.5, "{distance} dm between {seat:?} and {other:?}");
            }
            // The field is free, and nothing lies left of or above the drawing.
            let (across, deep) = ((seat.x - stadium::CENTRE.0) / 800.0, (seat.y - stadium::CENTRE.1) / 700.0);
            assert!(across * across + deep * deep > 1.0 && seat.x > 0.0 && seat.y > 0.0, "{seat:?} is on the field");
        }
    }

    #[test]
    fn the_cinema_has_180_seats_with_labels_that_are_no_numbers() {
        let map = cinema();
        map.check().unwrap();
        assert_eq!((map.seat_count(), map.blocks.len()), (180, 1));
        let rows: Vec<&str> =
            map.blocks[0].seats.chunk_by(|a, b| a.row == b.row).map(|row| row[0].row.as_str()).collect();
        assert_eq!(rows, ["AA", "가", "나", "다", "라", "마", "바", "사", "아", "자", "차"]);
        let first = &map.blocks[0].seats[map.blocks[0].seat_index(&label("나"), &label("01")).unwrap()];
        assert_eq!((first.label.as_str(), first.category.as_str(), first.neighbours.len()), ("나01", "일반", 1));
        assert_eq!(count_by_category(&map), BTreeMap::from([("일반", 96), ("커플", 20), ("프라임", 64)]));
    }

    #[test]
    fn the_demo_venues_are_the_same_on_every_run_and_after_a_round_trip() {
        for (map, again) in [(stadium(), stadium()), (cinema(), cinema())] {
            assert_eq!(map, again);
            assert_eq!(map, map.clone().into_canonical());
            let imported = import_map(MapFormat::Csv, export_csv(&map).as_bytes()).unwrap();
            assert_eq!(imported.map.content_hash(), map.content_hash());
        }
    }

    #[test]
    fn every_category_has_a_price() {
        let prices = demo_prices();
        for (map, prices) in [(stadium(), prices.stadium), (cinema(), prices.cinema)] {
            assert!(map.categories.iter().all(|category| prices[&category.category] > 0));
            assert_eq!(map.categories.len(), prices.len());
        }
    }
}
