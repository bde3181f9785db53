//! The map of a venue: its blocks, their seats with positions and neighbours, and the categories seats belong to.
//!
//! A map is what an import makes of a file and what the store writes as rows. It is in **canonical order** when
//! categories and blocks stand in natural order ([`label_order`]) and the seats of a block by row, then by column;
//! importers and the demo generator hand out maps in that order, so that the same house gives the same map and the
//! same [`VenueMap::content_hash`] whatever the order of its file's lines.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::label::{Label, label_order, natural_order, normal_text};

mod check;

pub(crate) use check::is_language;

/// The most seats one venue may have.
pub const VENUE_SEATS_MAX: usize = 200_000;
/// The most blocks one venue may have.
pub const VENUE_BLOCKS_MAX: usize = 5_000;
/// The most categories one venue may have.
pub const VENUE_CATEGORIES_MAX: usize = 500;
/// The most neighbours one seat may have.
pub const SEAT_NEIGHBOURS_MAX: usize = 16;
/// The longest printed seat label, in characters: a row label, a hyphen and a column label always fit.
pub const SEAT_LABEL_CHARS_MAX: usize = 2 * crate::label::LABEL_CHARS_MAX + 1;
/// The longest category name, tier name and block name in a language, in characters.
pub const NAME_CHARS_MAX: usize = 100;
/// How far from the origin a seat may stand, in the map's own units, in each direction.
pub const POSITION_MAX: f64 = 10_000_000.0;

/// A venue's map. Deserialising does not check it: call [`VenueMap::check`] on a map that comes from outside.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VenueMap {
    /// The categories seats refer to by name.
    pub categories: Vec<MapCategory>,
    /// The blocks, each with its seats.
    pub blocks: Vec<MapBlock>,
}

/// A category of seats: what an event sets a price for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapCategory {
    /// The category's name, unique in the map: NFC text of 1 to [`NAME_CHARS_MAX`] characters.
    pub category: String,
    /// The colour to draw it in, as `#rrggbb`, if the file names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub color: Option<String>,
}

/// A block: a section of the house.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapBlock {
    /// The block's label, unique in the map.
    pub block: Label,
    /// The block's name by language (`"ko"`, `"en"`); empty where the label says it all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
    /// The tier, stand or floor the block belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The block's seats, in seat order: by row, then by column, each in natural order.
    pub seats: Vec<MapSeat>,
}

/// One seat of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapSeat {
    /// The row's label; with `column` it is unique in the block.
    pub row: Label,
    /// The column's label: the seat's own in its row.
    pub column: Label,
    /// What is printed on the ticket, at most [`SEAT_LABEL_CHARS_MAX`] characters.
    pub label: String,
    /// The name of one of the map's categories.
    pub category: String,
    /// Position from the left, in the map's own units, to a thousandth.
    pub x: f64,
    /// Position from the top, in the map's own units, to a thousandth.
    pub y: f64,
    /// The seats right beside this one, as ascending indices into the block's `seats`. Symmetric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<u32>,
}

/// One thing that is wrong with a map or a file, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapFault {
    /// Where: `line 17`, a JSON path, or block, row and column.
    pub at: String,
    /// What is wrong there and how to mend it.
    pub message: String,
}

impl fmt::Display for MapFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

impl VenueMap {
    /// How many seats the map has.
    pub fn seat_count(&self) -> usize {
        self.blocks.iter().map(|block| block.seats.len()).sum()
    }

    /// The block with this label.
    pub fn block(&self, label: &Label) -> Option<&MapBlock> {
        self.blocks.iter().find(|block| block.block == *label)
    }

    /// The names of the categories that have at least one seat.
    pub fn used_categories(&self) -> HashSet<&str> {
        self.blocks.iter().flat_map(|block| &block.seats).map(|seat| seat.category.as_str()).collect()
    }

    /// Brings the map into canonical order: categories and blocks in natural order, seats in seat order with their
    /// neighbours' indices following them, positions rounded to a thousandth.
    pub fn into_canonical(mut self) -> Self {
        self.categories.sort_by(|a, b| natural_order(&a.category, &b.category));
        self.blocks.sort_by(|a, b| label_order(&a.block, &b.block));
        for block in &mut self.blocks {
            block.order_seats();
        }
        self
    }

    /// SHA-256 of the map in canonical order, in lower-case hex.
    ///
    /// It covers everything the map says and nothing else: two files with the same seats in another order of lines
    /// hash alike, and any other label, position, neighbour, category or colour hashes differently. An import
    /// whose hash is already stored changes nothing.
    pub fn content_hash(&self) -> String {
        let canonical =
            if self.is_canonical() { Cow::Borrowed(self) } else { Cow::Owned(self.clone().into_canonical()) };
        let mut hash = Fields(Sha256::new_with_prefix(b"holdfast venue map 1"));
        hash.count(canonical.categories.len());
        for category in &canonical.categories {
            hash.text(&category.category);
            hash.optional(category.color.as_deref());
        }
        hash.count(canonical.blocks.len());
        for block in &canonical.blocks {
            hash.block(block);
        }
        hash.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn is_canonical(&self) -> bool {
        self.categories.is_sorted_by(|a, b| natural_order(&a.category, &b.category).is_le())
            && self.blocks.is_sorted_by(|a, b| label_order(&a.block, &b.block).is_le())
            && self.blocks.iter().all(MapBlock::is_ordered)
    }
}

impl MapBlock {
    /// Where the block's seat with these labels stands in `seats`.
    pub fn seat_index(&self, row: &Label, column: &Label) -> Option<usize> {
        self.seats.iter().position(|seat| seat.row == *row && seat.column == *column)
    }

    fn is_ordered(&self) -> bool {
        self.seats.is_sorted_by(|a, b| seat_order(a, b).is_le())
            && self
                .seats
                .iter()
                .all(|seat| seat.neighbours.is_sorted() && seat.x == rounded(seat.x) && seat.y == rounded(seat.y))
    }

    fn order_seats(&mut self) {
        let mut order: Vec<usize> = (0..self.seats.len()).collect();
        order.sort_by(|&a, &b| seat_order(&self.seats[a], &self.seats[b]));
        let mut moved_to = vec![0_u32; order.len()];
        for (new, &old) in (0_u32..).zip(&order) {
            moved_to[old] = new;
        }
        let mut old_seats: Vec<Option<MapSeat>> = std::mem::take(&mut self.seats).into_iter().map(Some).collect();
        self.seats = order.iter().filter_map(|&old| old_seats[old].take()).collect();
        for seat in &mut self.seats {
            seat.x = rounded(seat.x);
            seat.y = rounded(seat.y);
            for neighbour in &mut seat.neighbours {
                // An index that points nowhere stays as it is, for `check` to find.
                let moved = usize::try_from(*neighbour).ok().and_then(|old| moved_to.get(old));
                *neighbour = moved.copied().unwrap_or(*neighbour);
            }
            seat.neighbours.sort_unstable();
        }
    }
}

fn seat_order(a: &MapSeat, b: &MapSeat) -> std::cmp::Ordering {
    label_order(&a.row, &b.row).then_with(|| label_order(&a.column, &b.column))
}

/// A position to a thousandth, without a negative zero: text, JSON and SQL then all give back the same number.
pub(crate) fn rounded(position: f64) -> f64 {
    (position * 1000.0).round() / 1000.0 + 0.0
}

/// Checks a name (category, tier, a block's name in a language) and gives it in its normal form.
pub(crate) fn parse_name(text: &str) -> Result<Cow<'_, str>, crate::label::LabelError> {
    normal_text(text, NAME_CHARS_MAX)
}

/// Writes fields into a hash so that no two maps give the same bytes: each text is preceded by its length, each list
/// by its count.
struct Fields(Sha256);

impl Fields {
    fn count(&mut self, count: usize) {
        self.0.update((count as u64).to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.update(text.as_bytes());
    }

    fn optional(&mut self, text: Option<&str>) {
        self.count(usize::from(text.is_some()));
        self.text(text.unwrap_or_default());
    }

    fn block(&mut self, block: &MapBlock) {
        self.text(block.block.as_str());
        self.count(block.names.len());
        for (language, name) in &block.names {
            self.text(language);
            self.text(name);
        }
        self.optional(block.tier.as_deref());
        self.count(block.seats.len());
        for seat in &block.seats {
            for text in [seat.row.as_str(), seat.column.as_str(), &seat.label, &seat.category] {
                self.text(text);
            }
            self.0.update(rounded(seat.x).to_bits().to_be_bytes());
            self.0.update(rounded(seat.y).to_bits().to_be_bytes());
            self.count(seat.neighbours.len());
            for neighbour in &seat.neighbours {
                self.0.update(neighbour.to_be_bytes());
            }
        }
    }
}
