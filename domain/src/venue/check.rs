//! What a map must satisfy before it is stored.

use std::collections::HashSet;

use super::{
    MapBlock, MapCategory, MapFault, MapSeat, POSITION_MAX, SEAT_LABEL_CHARS_MAX, SEAT_NEIGHBOURS_MAX,
    VENUE_BLOCKS_MAX, VENUE_CATEGORIES_MAX, VENUE_SEATS_MAX, VenueMap, parse_name,
};
use crate::label::{LabelError, normal_text};

/// The most faults one check names: a file that is wrong throughout need not be listed throughout.
const CHECK_FAULTS_MAX: usize = 1_000;

impl VenueMap {
    /// Checks everything the store and the engine rely on: the bounds ([`VENUE_SEATS_MAX`], [`VENUE_BLOCKS_MAX`],
    /// [`VENUE_CATEGORIES_MAX`]), at least one seat in the map and in every block, names in their normal form,
    /// block labels and (row, column) unique, categories known, colours as `#rrggbb`, positions finite and
    /// within [`POSITION_MAX`], neighbours within the block, symmetric and no seat its own.
    ///
    /// Gives every fault it finds, the first thousand at most.
    pub fn check(&self) -> Result<(), Vec<MapFault>> {
        let mut faults = Faults(Vec::new());
        self.check_bounds(&mut faults);
        check_categories(&self.categories, &mut faults);
        let categories: HashSet<&str> = self.categories.iter().map(|category| category.category.as_str()).collect();
        let mut blocks = HashSet::new();
        for block in &self.blocks {
            if !blocks.insert(&block.block) {
                faults.add(block_at(block), "the map has this block twice: merge the two or rename one");
            }
            check_block(block, &categories, &mut faults);
        }
        if faults.0.is_empty() { Ok(()) } else { Err(faults.0) }
    }

    fn check_bounds(&self, faults: &mut Faults) {
        let counts = [
            ("seats", self.seat_count(), VENUE_SEATS_MAX),
            ("blocks", self.blocks.len(), VENUE_BLOCKS_MAX),
            ("categories", self.categories.len(), VENUE_CATEGORIES_MAX),
        ];
        for (what, count, max) in counts {
            if count > max {
                faults.add(
                    String::from("map"),
                    &format!("{count} {what}: a venue has at most {max}, split it into several"),
                );
            }
        }
        if self.seat_count() == 0 {
            faults.add(String::from("map"), "it has no seats: a venue needs at least one");
        }
    }
}

/// Faults up to the limit; what follows is dropped.
struct Faults(Vec<MapFault>);

impl Faults {
    fn add(&mut self, at: String, message: &str) {
        if self.0.len() < CHECK_FAULTS_MAX {
            self.0.push(MapFault { at, message: message.to_owned() });
        }
    }

    fn check_text(
        &mut self,
        what: &str,
        text: &str,
        normal: Result<std::borrow::Cow<'_, str>, LabelError>,
        at: impl Fn() -> String,
    ) {
        match normal {
            Err(error) => self.add(at(), &format!("the {what} {error}")),
            Ok(normal) if normal != text => {
                self.add(at(), &format!("the {what} {text:?} is not normal text: write {normal:?}"))
            }
            Ok(_) => {}
        }
    }
}

fn block_at(block: &MapBlock) -> String {
    format!("block {}", block.block)
}

fn seat_at(block: &MapBlock, seat: &MapSeat) -> String {
    format!("block {}, row {}, column {}", block.block, seat.row, seat.column)
}

fn check_categories(categories: &[MapCategory], faults: &mut Faults) {
    let mut seen = HashSet::new();
    for category in categories {
        let at = || format!("category {}", category.category);
        faults.check_text("category", &category.category, parse_name(&category.category), at);
        if !seen.insert(&category.category) {
            faults.add(at(), "the map has this category twice: merge the two or rename one");
        }
        if let Some(color) = &category.color
            && !is_color(color)
        {
            faults.add(at(), &format!("the colour {color:?} is not understood: write it as #rrggbb in lower case"));
        }
    }
}

/// Whether a text is a colour as maps keep it: `#` and six lower-case hex digits.
pub(crate) fn is_color(text: &str) -> bool {
    text.len() == 7 && text.starts_with('#') && text[1..].bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a text names a language: two to eight lower-case letters, then digits, letters and single hyphens.
pub(crate) fn is_language(text: &str) -> bool {
    let mut parts = text.split('-');
    parts.next().is_some_and(|part| (2..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_lowercase()))
        && parts.all(|part| {
            (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
}

fn check_block(block: &MapBlock, categories: &HashSet<&str>, faults: &mut Faults) {
    if block.seats.is_empty() {
        faults.add(block_at(block), "it has no seats: leave the block out");
    }
    for (language, name) in &block.names {
        if !is_language(language) {
            faults.add(block_at(block), &format!("{language:?} is not a language: write \"ko\" or \"en\" for example"));
        }
        faults.check_text("name", name, parse_name(name), || block_at(block));
    }
    if let Some(tier) = &block.tier {
        faults.check_text("tier", tier, parse_name(tier), || block_at(block));
    }
    let mut places = HashSet::with_capacity(block.seats.len());
    for (index, seat) in block.seats.iter().enumerate() {
        let at = || seat_at(block, seat);
        if !places.insert((&seat.row, &seat.column)) {
            faults.add(at(), "the block has this seat twice: remove one or give it another column");
        }
        faults.check_text("label", &seat.label, normal_text(&seat.label, SEAT_LABEL_CHARS_MAX), at);
        if !categories.contains(seat.category.as_str()) {
            faults.add(at(), &format!("the category {:?} is not among the map's categories: add it", seat.category));
        }
        if ![seat.x, seat.y].iter().all(|position| position.is_finite() && position.abs() <= POSITION_MAX) {
            faults.add(at(), &format!("its position is not a number within {POSITION_MAX} of the origin: move it"));
        }
        check_neighbours(block, index, faults);
    }
}

fn check_neighbours(block: &MapBlock, index: usize, faults: &mut Faults) {
    let seat = &block.seats[index];
    if seat.neighbours.len() > SEAT_NEIGHBOURS_MAX {
        let count = seat.neighbours.len();
        faults.add(
            seat_at(block, seat),
            &format!("it has {count} neighbours: at most {SEAT_NEIGHBOURS_MAX} are possible"),
        );
        return;
    }
    let mut seen = HashSet::new();
    for &neighbour in &seat.neighbours {
        let other = usize::try_from(neighbour).ok().and_then(|other| Some((other, block.seats.get(other)?)));
        match other {
            None => faults.add(seat_at(block, seat), &format!("its neighbour number {neighbour} is not in the block")),
            Some((other, _)) if other == index => faults.add(seat_at(block, seat), "it is its own neighbour"),
            Some((_, other)) if !other.neighbours.iter().any(|&back| usize::try_from(back) == Ok(index)) => {
                let (row, column) = (&other.row, &other.column);
                let message =
                    format!("row {row}, column {column} is its neighbour but not the other way round: name both");
                faults.add(seat_at(block, seat), &message);
            }
            Some(_) if !seen.insert(neighbour) => faults.add(seat_at(block, seat), "it names a neighbour twice"),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;

    fn seat(row: &str, column: &str, neighbours: &[u32]) -> MapSeat {
        MapSeat {
            row: Label::parse(row).unwrap(),
            column: Label::parse(column).unwrap(),
            label: format!("{row}-{column}"),
            category: String::from("R"),
            x: 1.5,
            y: -2.0,
            neighbours: neighbours.to_vec(),
        }
    }

    fn map() -> VenueMap {
        let block = MapBlock {
            block: Label::parse("101").unwrap(),
            names: BTreeMap::from([(String::from("ko"), String::from("백일"))]),
            tier: Some(String::from("1층")),
            seats: vec![seat("10", "1", &[1]), seat("10", "2", &[0]), seat("9", "01", &[3]), seat("9", "1", &[2])],
        };
        VenueMap {
            categories: vec![MapCategory { category: String::from("R"), color: Some(String::from("#00ff7f")) }],
            blocks: vec![block],
        }
    }

    fn faults(change: impl FnOnce(&mut VenueMap)) -> Vec<String> {
        let mut map = map();
        change(&mut map);
        map.check().unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_sound_map_passes_and_canonical_order_carries_the_neighbours_along() {
        let map = map();
        map.check().unwrap();
        let canonical = map.clone().into_canonical();
        canonical.check().unwrap();
        let seats: Vec<(&str, &str, &[u32])> = canonical.blocks[0]
            .seats
            .iter()
            .map(|seat| (seat.row.as_str(), seat.column.as_str(), &*seat.neighbours))
            .collect();
        assert_eq!(seats, [("9", "01", &[1_u32][..]), ("9", "1", &[0]), ("10", "1", &[3]), ("10", "2", &[2])]);
        assert_eq!(map.content_hash(), canonical.content_hash());
    }

    #[test]
    fn the_hash_sees_every_field() {
        let hash = map().content_hash();
        assert_eq!(hash.len(), 64);
        let changes: [fn(&mut VenueMap); 12] = [
            |map| map.categories[0].color = None,
            |map| map.categories[0].category.push('x'),
            |map| map.blocks[0].block = Label::parse("102").unwrap(),
            |map| map.blocks[0].names.clear(),
            |map| map.blocks[0].tier = None,
            |map| map.blocks[0].seats[0].row = Label::parse("11").unwrap(),
            |map| map.blocks[0].seats[0].column = Label::parse("001").unwrap(),
            |map| map.blocks[0].seats[0].label.push('x'),
            |map| map.blocks[0].seats[0].category.push('x'),
            |map| map.blocks[0].seats[0].x += 0.001,
            |map| map.blocks[0].seats[0].y += 0.001,
            |map| map.blocks[0].seats[0].neighbours.clear(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut changed = map();
            change(&mut changed);
            assert_ne!(changed.content_hash(), hash, "change {number}");
        }
    }

    #[test]
    fn a_map_survives_json() {
        let map = map();
        assert_eq!(serde_json::from_str::<VenueMap>(&serde_json::to_string(&map).unwrap()).unwrap(), map);
    }

    #[test]
    fn seats_blocks_and_categories_are_unique() {
        assert_eq!(
            faults(|map| map.blocks[0].seats[1].column = Label::parse("1").unwrap()),
            ["block 101, row 10, column 1: the block has this seat twice: remove one or give it another column"]
        );
        assert!(faults(|map| map.blocks.extend_from_within(..))[0].contains("has this block twice"));
        assert!(faults(|map| map.categories.extend_from_within(..))[0].contains("has this category twice"));
    }

    #[test]
    fn categories_colours_and_positions_are_checked() {
        assert!(faults(|map| map.blocks[0].seats[0].category = String::from("S"))[0].contains("\"S\" is not among"));
        for color in ["red", "#FFF", "#00FF7F", "#00ff7"] {
            assert!(faults(|map| map.categories[0].color = Some(color.to_owned()))[0].contains("#rrggbb"), "{color}");
        }
        for position in [f64::NAN, f64::INFINITY, 1e8] {
            assert!(faults(|map| map.blocks[0].seats[0].x = position)[0].contains("position"), "{position}");
            assert!(faults(|map| map.blocks[0].seats[0].y = position)[0].contains("position"), "{position}");
        }
    }

    #[test]
    fn neighbours_are_in_the_block_and_symmetric() {
        assert!(faults(|map| map.blocks[0].seats[0].neighbours.clear())[0].contains("not the other way round"));
        assert!(faults(|map| map.blocks[0].seats[0].neighbours.push(9))[0].contains("number 9 is not in the block"));
        assert!(faults(|map| map.blocks[0].seats[0].neighbours.push(0))[0].contains("its own neighbour"));
        assert!(faults(|map| map.blocks[0].seats[0].neighbours.push(1))[0].contains("neighbour twice"));
    }

    #[test]
    fn the_bounds_hold() {
        assert!(faults(|map| map.blocks.clear())[0].contains("no seats"));
        assert!(faults(|map| map.blocks[0].seats.clear()).iter().any(|fault| fault.contains("leave the block out")));
        let many = |count: usize| (0..count).map(|number| seat("1", &number.to_string(), &[])).collect::<Vec<_>>();
        assert!(faults(|map| map.blocks[0].seats = many(VENUE_SEATS_MAX + 1))[0].contains("at most 200000"));
        let mut largest = map();
        largest.blocks[0].seats = many(VENUE_SEATS_MAX);
        largest.check().unwrap();
        assert!(
            faults(|map| {
                let block = map.blocks[0].clone();
                map.blocks = (0..=VENUE_BLOCKS_MAX)
                    .map(|number| MapBlock { block: Label::parse(&number.to_string()).unwrap(), ..block.clone() })
                    .collect();
            })[0]
                .contains("at most 5000")
        );
        assert!(
            faults(|map| {
                let extra =
                    (0..VENUE_CATEGORIES_MAX).map(|number| MapCategory { category: number.to_string(), color: None });
                map.categories.extend(extra);
            })[0]
                .contains("at most 500")
        );
    }
}
