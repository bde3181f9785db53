//! A map in the making: seats as a format's reader finds them, each with the place in the file it came from.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::neighbours::{link_seats, place_on_grid};
use super::{IMPORT_FAULTS_MAX, IMPORT_SKIPPED_MAX, ImportFaults, ImportedMap, Skipped};
use crate::label::{Label, label_order, natural_order};
use crate::venue::{MapBlock, MapCategory, MapFault, MapSeat, VENUE_SEATS_MAX, VenueMap};

/// Where in the file something stands. It is only written out if it is at fault.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// A line of a table, from 1.
    Line(u64),
    /// A seat of a JSON file: the path of the object that has the rows, the row's index, the seat's index.
    Seat { rows_of: Arc<str>, row: usize, seat: usize },
    /// Any other JSON path.
    Path(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Seat { rows_of, row, seat } => write!(f, "{rows_of}.rows[{row}].seats[{seat}]"),
            Self::Path(path) => f.write_str(path),
        }
    }
}

/// What the file says about a seat's neighbours.
#[derive(Debug)]
pub(super) enum Neighbours {
    /// Nothing: the seats next to it in its strip are its neighbours, up to an aisle.
    Unsaid,
    /// All of them, as (row, column); none, if the list is empty.
    Said(Vec<(Label, Label)>),
}

#[derive(Debug)]
pub(super) struct DraftSeat {
    pub row: Label,
    pub column: Label,
    pub label: String,
    pub category: String,
    pub x: f64,
    pub y: f64,
    pub neighbours: Neighbours,
    /// The drawn row the seat belongs to, and its place along it: a chart may draw one row in several pieces, and
    /// number its seats in any order. Both are 0 in a format that says neither: seat order decides.
    pub strip: (usize, usize),
    pub origin: Origin,
}

#[derive(Debug)]
pub(super) struct DraftBlock {
    pub block: Label,
    pub names: BTreeMap<String, (String, Origin)>,
    pub tier: Option<(String, Origin)>,
    pub seats: Vec<DraftSeat>,
}

/// Faults up to a limit, and how many more there were.
#[derive(Debug, Default)]
pub(super) struct Faults {
    kept: Vec<MapFault>,
    more: usize,
}

impl Faults {
    pub(super) fn add(&mut self, at: impl fmt::Display, message: impl fmt::Display) {
        if self.kept.len() < IMPORT_FAULTS_MAX {
            self.kept.push(MapFault { at: at.to_string(), message: message.to_string() });
        } else {
            self.more += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Draft {
    pub faults: Faults,
    pub warnings: Vec<String>,
    skipped: Vec<Skipped>,
    skipped_more: usize,
    categories: BTreeMap<String, Option<(String, Origin)>>,
    blocks: Vec<DraftBlock>,
    block_numbers: HashMap<Label, usize>,
    seat_total: usize,
    /// Whether the seats have no positions of their own.
    without_positions: bool,
    /// What to do about a seat that is there twice, in the format's own words.
    duplicate_remedy: &'static str,
}

impl Draft {
    pub(super) fn new(duplicate_remedy: &'static str) -> Self {
        Self {
            faults: Faults::default(),
            warnings: Vec::new(),
            skipped: Vec::new(),
            skipped_more: 0,
            categories: BTreeMap::new(),
            blocks: Vec::new(),
            block_numbers: HashMap::new(),
            seat_total: 0,
            without_positions: false,
            duplicate_remedy,
        }
    }

    /// Says that no seat of the file has a position: they get one on a grid.
    pub(super) fn positions_are_missing(&mut self) {
        self.without_positions = true;
    }

    pub(super) fn skip(&mut self, path: String, kind: &str, reason: String) {
        if self.skipped.len() < IMPORT_SKIPPED_MAX {
            self.skipped.push(Skipped { path, kind: kind.to_owned(), reason });
        } else {
            self.skipped_more += 1;
        }
    }

    /// Enters a category; a second colour for it is a fault.
    pub(super) fn add_category(&mut self, category: &str, color: Option<String>, origin: &Origin) {
        let known = match self.categories.get_mut(category) {
            Some(known) => known,
            None => self.categories.entry(category.to_owned()).or_default(),
        };
        match (&known, color) {
            (Some((first, at)), Some(color)) if *first != color => {
                let message =
                    format!("the category {category:?} is {color} here and {first} at {at}: choose one colour");
                self.faults.add(origin, message);
            }
            (None, Some(color)) => *known = Some((color, origin.clone())),
            (_, _) => {}
        }
    }

    pub(super) fn has_category(&self, category: &str) -> bool {
        self.categories.contains_key(category)
    }

    /// The block of this label, new if need be.
    pub(super) fn block(&mut self, block: &Label) -> &mut DraftBlock {
        let number = match self.block_numbers.entry(block.clone()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                self.blocks.push(DraftBlock {
                    block: block.clone(),
                    names: BTreeMap::new(),
                    tier: None,
                    seats: Vec::new(),
                });
                *free.insert(self.blocks.len() - 1)
            }
        };
        &mut self.blocks[number]
    }

    /// Adds a seat to a block. Seats beyond the limit are only counted.
    pub(super) fn add_seat(&mut self, block: &Label, seat: DraftSeat) {
        self.seat_total += 1;
        if self.seat_total <= VENUE_SEATS_MAX {
            self.block(block).seats.push(seat);
        }
    }

    /// Whether the limit of seats is passed, so that a reader may stop.
    pub(super) fn is_full(&self) -> bool {
        self.seat_total > VENUE_SEATS_MAX
    }

    /// Puts everything in canonical order, links neighbours, and gives the map if nothing is at fault.
    pub(super) fn finish(mut self) -> Result<ImportedMap, ImportFaults> {
        if self.is_full() {
            let message = format!("it has more than {VENUE_SEATS_MAX} seats: split it into several venues");
            self.faults.add("file", message);
        }
        // Seats that could not be read are missing here: that a neighbour is missing too would be a second complaint
        // about one mistake.
        let complete = self.faults.is_empty();
        self.blocks.retain(|block| !block.seats.is_empty());
        self.blocks.sort_by(|a, b| label_order(&a.block, &b.block));
        for block in &mut self.blocks {
            block.seats.sort_by(|a, b| label_order(&a.row, &b.row).then_with(|| label_order(&a.column, &b.column)));
            find_duplicates(block, self.duplicate_remedy, &mut self.faults);
        }
        if self.without_positions {
            place_on_grid(&mut self.blocks);
        }
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for block in self.blocks {
            let neighbours = link_seats(&block, complete, &mut self.faults);
            blocks.push(map_block(block, neighbours));
        }
        let categories = used_categories(self.categories, &blocks, &mut self.warnings);
        let map = VenueMap { categories, blocks }.into_canonical();
        if self.faults.is_empty() {
            for fault in map.check().err().unwrap_or_default() {
                self.faults.add(fault.at, fault.message);
            }
        }
        if !self.faults.is_empty() {
            return Err(ImportFaults { faults: self.faults.kept, more: self.faults.more });
        }
        if self.skipped_more > 0 {
            self.warnings.push(format!("{} more objects are skipped than are listed", self.skipped_more));
        }
        Ok(ImportedMap { map, skipped: self.skipped, warnings: self.warnings })
    }
}

fn find_duplicates(block: &DraftBlock, remedy: &str, faults: &mut Faults) {
    // Seats of one place stand side by side now, in the order of the file, as the sort was stable.
    let mut first: Option<&DraftSeat> = None;
    for seat in &block.seats {
        match first {
            Some(same) if same.row == seat.row && same.column == seat.column => {
                let (label, row, column) = (&block.block, &seat.row, &seat.column);
                let at = &same.origin;
                faults.add(
                    &seat.origin,
                    format!("block {label}, row {row}, column {column} is there already, at {at}: {remedy}"),
                );
            }
            _ => first = Some(seat),
        }
    }
}

fn map_block(block: DraftBlock, neighbours: Vec<Vec<u32>>) -> MapBlock {
    let seats = block.seats.into_iter().zip(neighbours).map(|(seat, neighbours)| MapSeat {
        row: seat.row,
        column: seat.column,
        label: seat.label,
        category: seat.category,
        x: seat.x,
        y: seat.y,
        neighbours,
    });
    MapBlock {
        block: block.block,
        names: block.names.into_iter().map(|(language, (name, _))| (language, name)).collect(),
        tier: block.tier.map(|(tier, _)| tier),
        seats: seats.collect(),
    }
}

fn used_categories(
    categories: BTreeMap<String, Option<(String, Origin)>>,
    blocks: &[MapBlock],
    warnings: &mut Vec<String>,
) -> Vec<MapCategory> {
    let used: HashSet<&str> = blocks.iter().flat_map(|block| &block.seats).map(|seat| seat.category.as_str()).collect();
    let (kept, unused): (Vec<_>, Vec<_>) =
        categories.into_iter().partition(|(category, _)| used.contains(category.as_str()));
    let mut unused: Vec<String> = unused.into_iter().map(|(category, _)| category).collect();
    unused.sort_by(|a, b| natural_order(a, b));
    warnings.extend(unused.iter().map(|category| format!("the category {category:?} has no seats and is left out")));
    kept.into_iter().map(|(category, color)| MapCategory { category, color: color.map(|(color, _)| color) }).collect()
}

/// A colour as maps keep it, `#rrggbb`, from `#RGB` or `#RRGGBB` in either case.
pub(super) fn parse_color(text: &str) -> Option<String> {
    let digits = text.trim().strip_prefix('#').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    let digits = match digits.len() {
        3 => Cow::Owned(digits.chars().flat_map(|digit| [digit, digit]).collect()),
        6 => Cow::Borrowed(digits),
        _ => return None,
    };
    Some(format!("#{}", digits.to_ascii_lowercase()))
}
