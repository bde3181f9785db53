//! What viewers of a topic have been told, as a state machine without clock or connection: pictures go in, and what a
//! viewer is to be told next comes out, however far behind it is.

use std::collections::{BTreeMap, VecDeque};

use domain::seat::SeatStatus;

/// The most steps that a viewer can be behind and still be told changes only.
const STEPS_MAX: usize = 512;
/// The most changes that are kept, for each seat of the topic: beyond it a snapshot is shorter.
const CHANGES_PER_SEAT_MAX: usize = 2;

/// A block's seats, in seat order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockPicture {
    pub(super) version: u64,
    pub(super) statuses: Vec<SeatStatus>,
}

/// What changed in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockChanges {
    /// Its index among the topic's blocks.
    pub(super) block: usize,
    pub(super) version: u64,
    /// Seats by their index in the block, each once, in seat order.
    pub(super) seats: Vec<(usize, SeatStatus)>,
}

/// What a viewer has to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// Nothing: it has everything.
    Nothing,
    /// The latest step, which most viewers are waiting for.
    Latest(&'a [BlockChanges]),
    /// Several steps in one.
    Merged(Vec<BlockChanges>),
    /// All of it: what it has cannot be continued.
    Snapshot,
}

/// A topic's picture and how it came about.
#[derive(Debug, Default)]
pub(super) struct History {
    blocks: Vec<BlockPicture>,
    sequence: u64,
    /// The last steps; the newest is the one that made `sequence`.
    steps: VecDeque<Vec<BlockChanges>>,
    changes: usize,
}

impl History {
    /// The picture.
    pub(super) fn blocks(&self) -> &[BlockPicture] {
        &self.blocks
    }

    /// Grows with every step.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Another picture, that continues nothing: the map or the prices have changed.
    pub(super) fn replace(&mut self, blocks: Vec<BlockPicture>) {
        self.blocks = blocks;
        self.sequence += 1;
        self.steps.clear();
        self.changes = 0;
    }

    /// Takes newer pictures of some blocks; whether any seat changed. Each has as many seats as before.
    pub(super) fn advance(&mut self, newer: Vec<(usize, BlockPicture)>) -> bool {
        let mut step = Vec::new();
        for (index, picture) in newer {
            let Some(known) = self.blocks.get_mut(index) else { continue };
            let pairs = known.statuses.iter().zip(&picture.statuses).enumerate();
            let seats: Vec<(usize, SeatStatus)> =
                pairs.filter(|(_, (old, new))| old != new).map(|(seat, (_, new))| (seat, *new)).collect();
            if !seats.is_empty() {
                step.push(BlockChanges { block: index, version: picture.version, seats });
            }
            *known = picture;
        }
        if step.is_empty() {
            return false;
        }
        self.sequence += 1;
        self.changes += count(&step);
        self.steps.push_back(step);
        let seats: usize = self.blocks.iter().map(|block| block.statuses.len()).sum();
        while self.steps.len() > STEPS_MAX || self.changes > seats * CHANGES_PER_SEAT_MAX {
            let Some(oldest) = self.steps.pop_front() else { break };
            self.changes -= count(&oldest);
        }
        true
    }

    /// What a viewer that was told everything up to `sequence` is to be told.
    pub(super) fn after(&self, sequence: u64) -> Next<'_> {
        let Some(behind) = self.sequence.checked_sub(sequence) else { return Next::Snapshot };
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        if behind == 0 {
            return Next::Nothing;
        }
        let Some(first) = self.steps.len().checked_sub(behind) else { return Next::Snapshot };
        match self.steps.back() {
            Some(latest) if behind == 1 => Next::Latest(latest),
            _ => Next::Merged(merge(self.steps.range(first..))),
        }
    }
}

fn count(step: &[BlockChanges]) -> usize {
    step.iter().map(|block| block.seats.len()).sum()
}

/// Several steps as one: of each seat its last status, of each block its last version.
fn merge<'a>(steps: impl Iterator<Item = &'a Vec<BlockChanges>>) -> Vec<BlockChanges> {
    let mut blocks: BTreeMap<usize, (u64, BTreeMap<usize, SeatStatus>)> = BTreeMap::new();
    for changes in steps.flatten() {
        let (version, seats) = blocks.entry(changes.block).or_default();
        *version = changes.version;
        seats.extend(changes.seats.iter().copied());
    }
    let merged = blocks.into_iter();
    merged
        .map(|(block, (version, seats))| BlockChanges { block, version, seats: seats.into_iter().collect() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(version: u64, statuses: &[SeatStatus]) -> BlockPicture {
        BlockPicture { version, statuses: statuses.to_vec() }
    }

    #[test]
    fn who_is_far_behind_is_told_each_seat_once() {
        use SeatStatus::{Available, Held, Sold};
        let mut history = History::default();
        history.replace(vec![picture(1, &[Available, Available])]);
        let seen = history.sequence();
        assert!(history.advance(vec![(0, picture(2, &[Held, Available]))]));
        assert!(!history.advance(vec![(0, picture(3, &[Held, Available]))]), "a version alone is no news");
        assert!(history.advance(vec![(0, picture(4, &[Sold, Available]))]));
        let expected = vec![BlockChanges { block: 0, version: 4, seats: vec![(0, Sold)] }];
        assert_eq!(history.after(seen), Next::Merged(expected.clone()));
        assert_eq!(history.after(seen + 1), Next::Latest(&expected));
        assert_eq!(history.after(seen + 2), Next::Nothing);
        assert_eq!(history.after(seen + 3), Next::Snapshot, "of a time to come");
        history.replace(vec![picture(5, &[Sold])]);
        assert_eq!(history.after(seen + 2), Next::Snapshot);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut history = History::default();
        history.replace(vec![picture(1, &[SeatStatus::Available; 4])]);
        let seen = history.sequence();
        for version in 0..10 {
            let status = if version % 2 == 0 { SeatStatus::Held } else { SeatStatus::Available };
            history.advance(vec![(0, picture(version, &[status; 4]))]);
        }
        assert!(history.changes <= 8 && history.steps.len() <= 2);
        assert_eq!(history.after(seen), Next::Snapshot);
    }
}
