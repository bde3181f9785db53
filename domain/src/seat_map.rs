//! A venue's seats as a process keeps them: shared, immutable, small (about 80 bytes a seat).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::id::{BlockId, SeatId, VenueId};
use crate::label::Label;
use crate::seat::SeatRef;

/// A block and where its seats stand in [`SeatMap::seats`].
#[derive(Debug, Clone)]
pub struct Block {
    /// Its id.
    pub id: BlockId,
    /// Its label.
    pub block: Label,
    /// Its name by language code.
    pub names: BTreeMap<String, String>,
    /// Its tier, if the house has tiers.
    pub tier: Option<String>,
    /// Its seats, in seat order.
    pub seats: Range<usize>,
}

/// A seat.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Its id.
    pub id: SeatId,
    /// The index of its block in [`SeatMap::blocks`].
    pub block: u32,
    /// Its row.
    pub row: Label,
    /// Its column.
    pub column: Label,
    /// What is printed on it.
    pub label: Arc<str>,
    /// Its category.
    pub category: Arc<str>,
    /// Position, in the map's own unit.
    pub x: f32,
    /// Position, in the map's own unit.
    pub y: f32,
}

/// All blocks and seats of one venue.
#[derive(Debug)]
pub struct SeatMap {
    venue: VenueId,
    blocks: Vec<Block>,
    seats: Vec<Seat>,
    by_label: HashMap<Label, usize>,
    by_id: Vec<u32>,
    by_place: Vec<u32>,
}

impl SeatMap {
    /// Takes the blocks in their order and their seats, each block's together and in seat order.
    #[must_use]
    pub fn new(venue: VenueId, blocks: Vec<Block>, seats: Vec<Seat>) -> Self {
        let by_label = blocks.iter().enumerate().map(|(index, block)| (block.block.clone(), index)).collect();
        let indices = || 0..u32::try_from(seats.len()).unwrap_or(u32::MAX);
        let mut by_id: Vec<u32> = indices().collect();
        by_id.sort_unstable_by_key(|&index| seats[index as usize].id);
        let mut by_place: Vec<u32> = indices().collect();
        by_place.sort_unstable_by(|&a, &b| place(&seats[a as usize]).cmp(&place(&seats[b as usize])));
        Self { venue, blocks, seats, by_label, by_id, by_place }
    }

    /// The venue.
    #[must_use]
    pub fn venue(&self) -> VenueId {
        self.venue
    }

    /// The blocks, in the venue's order.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// All seats, block by block.
    #[must_use]
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// The block with that label.
    #[must_use]
    pub fn block(&self, block: &Label) -> Option<&Block> {
        self.by_label.get(block).map(|&index| &self.blocks[index])
    }

    /// The block that a seat is in.
    #[must_use]
    pub fn block_of(&self, seat: &Seat) -> &Block {
        &self.blocks[seat.block as usize]
    }

    /// The seats of a block, in seat order.
    #[must_use]
    pub fn seats_of(&self, block: &Block) -> &[Seat] {
        &self.seats[block.seats.clone()]
    }

    /// The seat with that id.
    #[must_use]
    pub fn seat(&self, id: SeatId) -> Option<&Seat> {
        let found = self.by_id.binary_search_by_key(&id, |&index| self.seats[index as usize].id).ok()?;
        Some(&self.seats[self.by_id[found] as usize])
    }

    /// The seat at that place.
    #[must_use]
    pub fn seat_at(&self, block: &Label, column: &Label, row: &Label) -> Option<&Seat> {
        self.index_at(block, column, row).map(|index| &self.seats[index])
    }

    /// The index in [`SeatMap::seats`] of the seat at that place.
    #[must_use]
    pub fn index_at(&self, block: &Label, column: &Label, row: &Label) -> Option<usize> {
        let block = u32::try_from(*self.by_label.get(block)?).ok()?;
        let wanted = (block, row.as_str(), column.as_str());
        let found = self.by_place.binary_search_by(|&index| place(&self.seats[index as usize]).cmp(&wanted)).ok()?;
        Some(self.by_place[found] as usize)
    }

    /// The seat that a caller means: identity is resolved against the map, never taken from the caller.
    #[must_use]
    pub fn resolve(&self, seat: &SeatRef) -> Option<&Seat> {
        match seat {
            SeatRef::Id(id) => self.seat(*id),
            SeatRef::Place { block, column, row } => self.seat_at(block, column, row),
        }
    }
}

fn place(seat: &Seat) -> (u32, &str, &str) {
    (seat.block, seat.row.as_str(), seat.column.as_str())
}
