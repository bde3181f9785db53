//! A block's answer as JSON: everything but version and statuses is written once for each revision of the event.

use std::sync::Arc;

use bytes::Bytes;
use domain::flow::event_book::EventSheet;
use domain::label::Label;
use domain::money::Money;
use domain::seat::SeatStatus;
use domain::seat_map::Block;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::Counts;

/// The parts of a block's answer that stay.
pub(crate) struct Frame {
    /// The block's label.
    pub(crate) block: Label,
    pub(super) sheet: Arc<EventSheet>,
    /// The parts, one after the other.
    fixed: Vec<u8>,
    /// Where each part ends: before the version, before each seat's status, at the end.
    ends: Vec<usize>,
    digest: [u8; 32],
    tariff: Tariff,
}

/// Each seat's price, by few numbers.
struct Tariff {
    of_seat: Vec<u16>,
    amounts: Vec<Option<i64>>,
}

/// A seat of the answer, but for its status, which follows.
#[derive(Serialize)]
struct SeatHead<'a> {
    id: String,
    column: &'a str,
    row: &'a str,
    label: &'a str,
    category: &'a str,
    price: Option<Money>,
}

impl Frame {
    /// Writes the parts that stay.
    pub(crate) fn new(sheet: &Arc<EventSheet>, block: &Block) -> Self {
        let seats = sheet.map.seats_of(block);
        let mut fixed = Vec::with_capacity(128 + seats.len() * 120);
        let mut ends = Vec::with_capacity(seats.len() + 2);
        fixed.extend_from_slice(b"{\"event\":");
        write_json(&mut fixed, &sheet.event.id);
        fixed.extend_from_slice(b",\"block\":");
        write_json(&mut fixed, &block.block);
        fixed.extend_from_slice(b",\"version\":");
        ends.push(fixed.len());
        fixed.extend_from_slice(b",\"seats\":[");
        for (index, seat) in seats.iter().enumerate() {
            if index > 0 {
                fixed.extend_from_slice(b"\"},");
            }
            let head = SeatHead {
                id: seat.id.to_string(),
                column: seat.column.as_str(),
                row: seat.row.as_str(),
                label: &seat.label,
                category: &seat.category,
                price: sheet.price(seat).map(|amount| Money { amount, currency: sheet.event.currency }),
            };
            write_json(&mut fixed, &head);
            fixed.pop();
            fixed.extend_from_slice(b",\"status\":\"");
            ends.push(fixed.len());
        }
        fixed.extend_from_slice(if seats.is_empty() { b"]}" } else { b"\"}]}" });
        ends.push(fixed.len());
        let digest = Sha256::digest(&fixed).into();
        Self {
            block: block.block.clone(),
            sheet: Arc::clone(sheet),
            fixed,
            ends,
            digest,
            tariff: Tariff::new(sheet, block),
        }
    }

    /// Whether it is this sheet's: same map, same revision.
    pub(crate) fn is_of(&self, sheet: &EventSheet) -> bool {
        Arc::ptr_eq(&self.sheet.map, &sheet.map) && self.sheet.event.revision == sheet.event.revision
    }

    /// The answer: its strong entity tag, quoted, and its bytes. Any process makes the same tag for the same bytes,
    /// and another for others.
    pub(crate) fn encode(&self, version: u64, statuses: &[SeatStatus], counts: &Counts) -> (String, Bytes) {
        let version = version.to_string();
        let words = counts.available * SeatStatus::Available.as_str().len()
            + counts.held * SeatStatus::Held.as_str().len()
            + counts.sold * SeatStatus::Sold.as_str().len()
            + counts.blocked * SeatStatus::Blocked.as_str().len();
        let mut body = Vec::with_capacity(self.fixed.len() + version.len() + words);
        let variable = std::iter::once(version.as_str()).chain(statuses.iter().map(|status| status.as_str()));
        let mut start = 0;
        for (end, text) in self.ends.iter().zip(variable) {
            body.extend_from_slice(&self.fixed[start..*end]);
            body.extend_from_slice(text.as_bytes());
            start = *end;
        }
        body.extend_from_slice(&self.fixed[start..]);
        let mut hash = Sha256::new();
        hash.update(self.digest);
        hash.update(version.as_bytes());
        let initials: Vec<u8> = statuses.iter().map(|status| status.as_str().as_bytes()[0]).collect();
        hash.update([0]);
        hash.update(&initials);
        (entity_tag(&hash.finalize()), Bytes::from(body))
    }

    /// Counts statuses, and finds the lowest price among available seats.
    pub(crate) fn count(&self, statuses: &[SeatStatus]) -> Counts {
        let mut counts = Counts::default();
        let mut offered = vec![false; self.tariff.amounts.len()];
        for (status, tariff) in statuses.iter().zip(&self.tariff.of_seat) {
            match status {
                SeatStatus::Available => {
                    counts.available += 1;
                    if let Some(offered) = offered.get_mut(usize::from(*tariff)) {
                        *offered = true;
                    }
                }
                SeatStatus::Held => counts.held += 1,
                SeatStatus::Sold => counts.sold += 1,
                SeatStatus::Blocked => counts.blocked += 1,
            }
        }
        let prices = offered.iter().zip(&self.tariff.amounts);
        counts.from = prices.filter_map(|(offered, amount)| amount.filter(|_| *offered)).min();
        counts
    }
}

impl Tariff {
    fn new(sheet: &EventSheet, block: &Block) -> Self {
        let mut amounts: Vec<Option<i64>> = Vec::new();
        let seats = sheet.map.seats_of(block).iter();
        let of_seat = seats.map(|seat| {
            let amount = sheet.price(seat);
            let known = amounts.iter().position(|other| *other == amount);
            let index = known.unwrap_or_else(|| {
                amounts.push(amount);
                amounts.len() - 1
            });
            // A venue has at most 500 categories.
            u16::try_from(index).unwrap_or(u16::MAX)
        });
        let of_seat = of_seat.collect();
        Self { of_seat, amounts }
    }
}

/// The first sixteen hexadecimal digits of a hash, as a strong entity tag.
pub(super) fn entity_tag(hash: &[u8]) -> String {
    let digits: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

/// Writes a value whose JSON cannot fail: text, numbers, flat structs of them.
fn write_json(out: &mut Vec<u8>, value: &impl Serialize) {
    let written = serde_json::to_writer(&mut *out, value);
    debug_assert!(written.is_ok(), "{written:?}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::super::example::sheet;
    use super::*;

    fn frame(sheet: &Arc<EventSheet>) -> Frame {
        Frame::new(sheet, &sheet.map.blocks()[0])
    }

    fn encode(frame: &Frame, version: u64, statuses: &[SeatStatus]) -> (String, Bytes) {
        frame.encode(version, statuses, &frame.count(statuses))
    }

    #[test]
    fn the_answer_is_the_contract_s_json() {
        let sheet = sheet(&[("A\\", "01", "프라임"), ("A\\", "2", "free")], &[("프라임", 55_000)]);
        let (_, json) = encode(&frame(&sheet), 1_700_000_000_000_007, &[SeatStatus::Held, SeatStatus::Available]);
        let answer: Value = serde_json::from_slice(&json).unwrap();
        let expected = json!({
            "event": "0190b0c4-0000-7000-8000-000000000001",
            "block": "가 \"1\"",
            "version": 1_700_000_000_000_007_u64,
            "seats": [
                {"id": "7", "column": "01", "row": "A\\", "label": "A\\-01", "category": "프라임",
                 "price": {"amount": 55_000, "currency": "KRW"}, "status": "held"},
                {"id": "8", "column": "2", "row": "A\\", "label": "A\\-2", "category": "free",
                 "price": null, "status": "available"},
            ],
        });
        assert_eq!(answer, expected);
        assert_eq!(json.len(), serde_json::to_vec(&expected).unwrap().len(), "not a byte more");
    }

    #[test]
    fn a_block_without_seats_is_an_empty_list() {
        let (_, json) = encode(&frame(&sheet(&[], &[])), 1, &[]);
        assert_eq!(serde_json::from_slice::<Value>(&json).unwrap()["seats"], json!([]));
    }

    #[test]
    fn answers_share_a_tag_exactly_where_they_share_all_bytes() {
        let seats = [("A", "1", "x"), ("A", "2", "x")];
        let all = [SeatStatus::Available, SeatStatus::Held, SeatStatus::Sold, SeatStatus::Blocked];
        let mut seen: BTreeMap<String, Bytes> = BTreeMap::new();
        for prices in [[("x", 1)], [("x", 2)]] {
            // A process of its own each time: frames that were built apart.
            for _ in 0..2 {
                let frame = frame(&sheet(&seats, &prices));
                for (version, a, b) in (1..=11).flat_map(|version| {
                    all.into_iter().flat_map(move |a| all.into_iter().map(move |b| (version, a, b)))
                }) {
                    let (tag, json) = encode(&frame, version, &[a, b]);
                    assert!(tag.len() == 18 && tag.starts_with('"') && tag.ends_with('"'), "{tag}");
                    let first = seen.entry(tag).or_insert_with(|| json.clone());
                    assert_eq!(first, &json);
                }
            }
        }
        assert_eq!(seen.len(), 2 * 11 * 16);
    }

    #[test]
    fn the_lowest_price_is_that_of_an_available_seat() {
        let sheet =
            sheet(&[("A", "1", "cheap"), ("A", "2", "dear"), ("A", "3", "unpriced")], &[("cheap", 1), ("dear", 9)]);
        let frame = frame(&sheet);
        let free = SeatStatus::Available;
        let counts = frame.count(&[free, free, SeatStatus::Blocked]);
        assert_eq!(counts, Counts { available: 2, held: 0, sold: 0, blocked: 1, from: Some(1) });
        let counts = frame.count(&[SeatStatus::Sold, free, free]);
        assert_eq!(counts, Counts { available: 2, held: 0, sold: 1, blocked: 0, from: Some(9) });
        let counts = frame.count(&[SeatStatus::Held, SeatStatus::Held, free]);
        assert_eq!(counts, Counts { available: 1, held: 2, sold: 0, blocked: 0, from: None });
    }
}
