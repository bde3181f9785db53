//! Which seats stand side by side: from what the file says, else from where the seats stand.

use std::collections::HashMap;

use super::draft::{DraftBlock, DraftSeat, Faults, Neighbours};
use crate::label::{Label, label_order};

/// A gap wider than this many times the row's usual spacing is an aisle: the seats on its sides are no neighbours.
const AISLE: f64 = 1.75;
/// The distance between two seats of the default grid.
const GRID_SEAT: f64 = 20.0;
/// The distance between two blocks of the default grid.
const GRID_AISLE: f64 = 60.0;

/// Gives every seat a position on a grid: a block is a rectangle with a line for each of its rows and a place for each
/// of its columns, so that a column a row lacks leaves a hole; blocks stand in natural order, line by line, in about a
/// square.
pub(super) fn place_on_grid(blocks: &mut [DraftBlock]) {
    let mut per_line = 1;
    while per_line * per_line < blocks.len() {
        per_line += 1;
    }
    let mut top = 0.0;
    for line in blocks.chunks_mut(per_line) {
        let (mut left, mut height) = (0.0, 0.0_f64);
        for block in line {
            let rows = places(block.seats.iter().map(|seat| &seat.row));
            let columns = places(block.seats.iter().map(|seat| &seat.column));
            for seat in &mut block.seats {
                seat.x = left + GRID_SEAT * columns[&seat.column];
                seat.y = top + GRID_SEAT * rows[&seat.row];
            }
            left += GRID_SEAT * extent(&columns) + GRID_AISLE;
            height = height.max(GRID_SEAT * extent(&rows));
        }
        top += height + GRID_AISLE;
    }
}

/// The place of each distinct label in natural order: 0, 1, 2, …
fn places<'a>(labels: impl Iterator<Item = &'a Label>) -> HashMap<Label, f64> {
    let mut distinct: Vec<Label> = labels.cloned().collect::<std::collections::HashSet<_>>().into_iter().collect();
    distinct.sort_by(label_order);
    distinct.into_iter().zip(0_u32..).map(|(label, place)| (label, f64::from(place))).collect()
}

fn extent(places: &HashMap<Label, f64>) -> f64 {
    places.values().copied().fold(0.0, f64::max)
}

/// The neighbours of each of the block's seats, as indices into its seats, which are in seat order.
///
/// Two seats are linked if either names the other and the other says nothing; if both name each other; or if both say
/// nothing, stand next to each other in their row, and no aisle is between them. `complete` says that every seat of
/// the file could be read: only then is a neighbour that does not exist a fault.
pub(super) fn link_seats(block: &DraftBlock, complete: bool, faults: &mut Faults) -> Vec<Vec<u32>> {
    let mut links: Vec<Vec<u32>> = block.seats.iter().map(|_| Vec::new()).collect();
    link_strips(&block.seats, &mut links);
    if block.seats.iter().any(|seat| matches!(seat.neighbours, Neighbours::Said(_))) {
        link_said(block, complete, &mut links, faults);
    }
    for link in &mut links {
        link.sort_unstable();
        link.dedup();
    }
    links
}

fn link(links: &mut [Vec<u32>], a: usize, b: usize) {
    // A block has at most 200,000 seats: their indices fit.
    if let (Ok(a_index), Ok(b_index)) = (u32::try_from(a), u32::try_from(b)) {
        links[a].push(b_index);
        links[b].push(a_index);
    }
}

fn link_strips(seats: &[DraftSeat], links: &mut [Vec<u32>]) {
    let mut order: Vec<usize> = (0..seats.len()).collect();
    // Rows are contiguous in seat order, so that a stable sort within a row keeps that order where a file has no other.
    for row in order.chunk_by_mut(|&a, &b| seats[a].row == seats[b].row) {
        row.sort_by_key(|&index| seats[index].strip);
        for strip in row.chunk_by(|&a, &b| seats[a].strip.0 == seats[b].strip.0) {
            let gaps: Vec<f64> = strip.windows(2).map(|pair| distance(&seats[pair[0]], &seats[pair[1]])).collect();
            let mut sorted = gaps.clone();
            sorted.sort_by(f64::total_cmp);
            // The lower median: in a row of pairs the usual spacing is that within a pair.
            let Some(usual) = sorted.get(sorted.len().saturating_sub(1) / 2) else { continue };
            for (pair, gap) in strip.windows(2).zip(&gaps) {
                let unsaid = pair.iter().all(|&index| matches!(seats[index].neighbours, Neighbours::Unsaid));
                if unsaid && *gap <= usual * AISLE {
                    link(links, pair[0], pair[1]);
                }
            }
        }
    }
}

fn distance(a: &DraftSeat, b: &DraftSeat) -> f64 {
    (a.x - b.x).hypot(a.y - b.y)
}

fn link_said(block: &DraftBlock, complete: bool, links: &mut [Vec<u32>], faults: &mut Faults) {
    let places: HashMap<(&Label, &Label), usize> =
        block.seats.iter().enumerate().map(|(index, seat)| ((&seat.row, &seat.column), index)).collect();
    for (index, seat) in block.seats.iter().enumerate() {
        let Neighbours::Said(said) = &seat.neighbours else { continue };
        for (row, column) in said {
            let Some(&other) = places.get(&(row, column)) else {
                if complete {
                    let message = format!(
                        "the neighbour row {row}, column {column} is not in block {}: name a seat of it",
                        block.block
                    );
                    faults.add(&seat.origin, message);
                }
                continue;
            };
            if other == index {
                faults.add(&seat.origin, "the seat is its own neighbour: leave it out");
                continue;
            }
            let names_back = match &block.seats[other].neighbours {
                Neighbours::Unsaid => true,
                Neighbours::Said(back) => {
                    back.iter().any(|(back_row, back_column)| *back_row == seat.row && *back_column == seat.column)
                }
            };
            if names_back {
                link(links, index, other);
            } else {
                let at = &block.seats[other].origin;
                let message = format!(
                    "row {row}, column {column} is named as a neighbour, but names its own without this seat at {at}: name each other or neither"
                );
                faults.add(&seat.origin, message);
            }
        }
    }
}
