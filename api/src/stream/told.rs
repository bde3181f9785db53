//! A topic's history as server-sent events. Everybody who waits for the latest step shares its bytes.
//!
//! Format: <https://html.spec.whatwg.org/multipage/server-sent-events.html>. Ids are `epoch-sequence`; the epoch is
//! another one for each topic of each process, so that nobody continues what it has from somebody else's numbers.

use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::flow::event_book::EventSheet;
use domain::id::EventId;
use domain::seat::SeatStatus;
use serde::Serialize;

use super::history::{BlockChanges, BlockPicture, History, Next};
use crate::mirror::Frame;

/// In which form a viewer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Seats by id and their status in words; the snapshot is the block's answer.
    Json,
    /// Two bits for each seat, in seat order.
    Compact,
}

/// What a viewer has: the id of the last event that it saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventName {
    pub(super) epoch: u64,
    pub(super) sequence: u64,
}

impl EventName {
    /// None where it is no id of ours.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (epoch, sequence) = text.split_once('-')?;
        Some(Self { epoch: u64::from_str_radix(epoch, 16).ok()?, sequence: sequence.parse().ok()? })
    }
}

/// What a viewer had before it is told something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Had {
    /// Nothing: it has just come.
    Nothing,
    /// Something that cannot be continued, whatever it is.
    Unknown,
    /// All up to this.
    UpTo(EventName),
}

/// The bytes of the latest step and of the picture, made when first asked for.
#[derive(Default)]
struct Encoded {
    step: [OnceLock<Bytes>; 2],
    snapshot: [OnceLock<Bytes>; 2],
}

/// A topic as it is told.
pub(super) struct Told {
    epoch: u64,
    sheet: Arc<EventSheet>,
    /// The blocks' parts of an answer that stay, in the topic's order.
    frames: Vec<Arc<Frame>>,
    history: History,
    encoded: Encoded,
}

#[derive(Serialize)]
struct JsonChanges<'a> {
    event: EventId,
    block: &'a str,
    version: u64,
    changes: Vec<JsonChange>,
}

#[derive(Serialize)]
struct JsonChange {
    id: String,
    status: &'static str,
}

#[derive(Serialize)]
struct CompactSnapshot<'a> {
    event: EventId,
    revision: i32,
    blocks: Vec<CompactBlock<'a>>,
}

#[derive(Serialize)]
struct CompactBlock<'a> {
    block: &'a str,
    version: u64,
    count: usize,
    seats: String,
}

#[derive(Serialize)]
struct CompactChanges<'a> {
    blocks: Vec<CompactBlockChanges<'a>>,
}

#[derive(Serialize)]
struct CompactBlockChanges<'a> {
    block: &'a str,
    version: u64,
    changes: Vec<(usize, u8)>,
}

impl Told {
    /// A topic of these blocks.
    pub(super) fn new(epoch: u64, sheet: Arc<EventSheet>, blocks: Vec<(Arc<Frame>, BlockPicture)>) -> Self {
        let mut told = Self {
            epoch,
            sheet: Arc::clone(&sheet),
            frames: Vec::new(),
            history: History::default(),
            encoded: Encoded::default(),
        };
        told.replace(sheet, blocks);
        told
    }

    /// The sequence of the last step.
    pub(super) fn sequence(&self) -> u64 {
        self.history.sequence()
    }

    /// Begins anew: map or prices have changed.
    pub(super) fn replace(&mut self, sheet: Arc<EventSheet>, blocks: Vec<(Arc<Frame>, BlockPicture)>) {
        let pictures;
        (self.frames, pictures) = blocks.into_iter().unzip();
        self.sheet = sheet;
        self.history.replace(pictures);
        self.encoded = Encoded::default();
    }

    /// Takes newer pictures of some blocks; whether any seat changed.
    pub(super) fn advance(&mut self, newer: Vec<(usize, BlockPicture)>) -> bool {
        let changed = self.history.advance(newer);
        if changed {
            self.encoded = Encoded::default();
        }
        changed
    }

    /// What a viewer is to be told, and the sequence that it has then; none where it has everything.
    pub(super) fn next(&self, form: Form, had: Had) -> Option<(EventName, Bytes)> {
        let name = EventName { epoch: self.epoch, sequence: self.history.sequence() };
        let next = match had {
            Had::UpTo(had) if had.epoch == self.epoch => self.history.after(had.sequence),
            Had::Nothing | Had::Unknown | Had::UpTo(_) => Next::Snapshot,
        };
        let bytes = match next {
            Next::Nothing => return None,
            Next::Latest(step) => {
                self.encoded.step[form as usize].get_or_init(|| self.changes(form, name, step)).clone()
            }
            Next::Merged(changes) => self.changes(form, name, &changes),
            Next::Snapshot => {
                let made = self.encoded.snapshot[form as usize].get_or_init(|| self.snapshot(form, name));
                if had == Had::Nothing { made.clone() } else { Bytes::from([RESET, made].concat()) }
            }
        };
        Some((name, bytes))
    }

    fn label(&self, index: usize) -> &str {
        self.frames.get(index).map_or("", |frame| frame.block.as_str())
    }

    fn snapshot(&self, form: Form, name: EventName) -> Bytes {
        let mut blocks = self.frames.iter().zip(self.history.blocks());
        let data = match form {
            // A topic of the JSON form has one block.
            Form::Json => blocks.next().map_or_else(Vec::new, |(frame, picture)| {
                let counts = frame.count(&picture.statuses);
                frame.encode(picture.version, &picture.statuses, &counts).1.to_vec()
            }),
            Form::Compact => {
                let blocks = blocks.map(|(frame, picture)| CompactBlock {
                    block: frame.block.as_str(),
                    version: picture.version,
                    count: picture.statuses.len(),
                    seats: STANDARD.encode(pack(&picture.statuses)),
                });
                let (event, revision) = (self.sheet.event.id, self.sheet.event.revision);
                json(&CompactSnapshot { event, revision, blocks: blocks.collect() })
            }
        };
        event("snapshot", name, &data)
    }

    fn changes(&self, form: Form, name: EventName, changes: &[BlockChanges]) -> Bytes {
        let data = match form {
            Form::Json => json(&changes.last().map(|changes| self.json_changes(changes))),
            Form::Compact => {
                let blocks = changes.iter().map(|changes| CompactBlockChanges {
                    block: self.label(changes.block),
                    version: changes.version,
                    changes: changes.seats.iter().map(|(seat, status)| (*seat, code(*status))).collect(),
                });
                json(&CompactChanges { blocks: blocks.collect() })
            }
        };
        event("changes", name, &data)
    }

    fn json_changes<'a>(&'a self, changes: &BlockChanges) -> JsonChanges<'a> {
        let block = self.label(changes.block);
        let frame = self.frames.get(changes.block);
        let seats =
            frame.and_then(|frame| self.sheet.map.block(&frame.block)).map(|block| self.sheet.map.seats_of(block));
        let id =
            |index: usize| seats.and_then(|seats| seats.get(index)).map_or_else(String::new, |it| it.id.to_string());
        let seats = changes.seats.iter();
        let changed = seats.map(|(index, status)| JsonChange { id: id(*index), status: status.as_str() }).collect();
        JsonChanges { event: self.sheet.event.id, block, version: changes.version, changes: changed }
    }
}

/// Told before a snapshot that replaces what the viewer had.
const RESET: &[u8] = b"event: reset\ndata: {}\n\n";

/// A status in two bits: 0 available, 1 held, 2 sold, 3 blocked.
fn code(status: SeatStatus) -> u8 {
    match status {
        SeatStatus::Available => 0,
        SeatStatus::Held => 1,
        SeatStatus::Sold => 2,
        SeatStatus::Blocked => 3,
    }
}

/// Four seats a byte, the first in the lowest bits.
fn pack(statuses: &[SeatStatus]) -> Vec<u8> {
    let four = |four: &[SeatStatus]| four.iter().rev().fold(0, |byte, status| byte << 2 | code(*status));
    statuses.chunks(4).map(four).collect()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Text, numbers and lists of them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// One server-sent event. JSON has no line breaks of its own, so its data is one line.
fn event(kind: &str, name: EventName, data: &[u8]) -> Bytes {
    let head = format!("id: {:x}-{}\nevent: {kind}\ndata: ", name.epoch, name.sequence);
    Bytes::from([head.as_bytes(), data, b"\n\n"].concat())
}

#[cfg(test)]
mod tests;
