//! THE key scheme: every key is built here and parsed here, side by side.
//!
//! Without prefix and tags the seat keys are byte for byte the source layout, `seat:{date}:{block}:{column}:{row}` and
//! `seatKeys:{date}:{block}` (the braces are placeholders). Labels may hold any Unicode text; what would make a key
//! ambiguous is percent-encoded, byte by byte in UTF-8: `:`, `%`, `{`, `}`, white space and control characters. So a key
//! parses back to the same seat, and `101` stays `101`.

use std::fmt::Write as _;
use std::str::FromStr as _;
use std::sync::Arc;

use crate::id::ReservationId;
use crate::label::Label;

/// The longest prefix, in bytes.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Where one installation's keys are, and in which mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyScheme {
    prefix: Arc<str>,
    cluster_tags: bool,
}

/// A prefix that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a Redis prefix is at most {PREFIX_BYTES_MAX} visible ASCII characters without braces, such as `qa:`")]
pub struct PrefixError;

/// The block of one event, as its keys name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// The event's `date_key`.
    pub date: Arc<str>,
    /// The block.
    pub block: Label,
}

/// The seat of one event, as its key names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SeatKey {
    /// Its event and block.
    pub block: BlockKey,
    /// Its column.
    pub column: Label,
    /// Its row.
    pub row: Label,
}

impl KeyScheme {
    /// A scheme with a prefix (may be empty) and, for a cluster, a hash tag round `date:block`.
    ///
    /// # Errors
    /// [`PrefixError`].
    pub fn new(prefix: &str, cluster_tags: bool) -> Result<Self, PrefixError> {
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(plain) {
            return Err(PrefixError);
        }
        Ok(Self { prefix: prefix.into(), cluster_tags })
    }

    /// The prefix.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The mode in words, as it is written down so that a database is never used in two modes.
    #[must_use]
    pub fn mode(&self) -> String {
        format!("prefix={} cluster_tags={}", self.prefix, self.cluster_tags)
    }

    /// `seat:{date}:{block}:{column}:{row}`: the seat bucket.
    #[must_use]
    pub fn seat(&self, block: &BlockKey, column: &Label, row: &Label) -> String {
        let mut key = self.of_block("seat", block);
        key.push(':');
        escape(column.as_str(), &mut key);
        key.push(':');
        escape(row.as_str(), &mut key);
        key
    }

    /// Reads a seat key; none where it is not one of ours, spelled as we spell it.
    #[must_use]
    pub fn parse_seat(&self, key: &str) -> Option<SeatKey> {
        let rest = key.strip_prefix(&*self.prefix)?.strip_prefix("seat:")?;
        let (place, rest) = if self.cluster_tags {
            rest.strip_prefix('{')?.split_once("}:")?
        } else {
            let date_end = rest.find(':')?;
            let block_end = date_end + 1 + rest[date_end + 1..].find(':')?;
            (&rest[..block_end], &rest[block_end + 1..])
        };
        let (date, block) = place.split_once(':')?;
        let (column, row) = rest.split_once(':')?;
        let parsed = SeatKey {
            block: BlockKey { date: date.into(), block: unescape(block)? },
            column: unescape(column)?,
            row: unescape(row)?,
        };
        // One spelling only: another escape of the same seat would be a second key for it.
        (self.seat(&parsed.block, &parsed.column, &parsed.row) == key).then_some(parsed)
    }

    /// `seatKeys:{date}:{block}`: the block's seat list.
    #[must_use]
    pub fn seat_list(&self, block: &BlockKey) -> String {
        self.of_block("seatKeys", block)
    }

    /// A place to build a block's list before it is put in place whole; in the same slot.
    #[must_use]
    pub fn seat_list_draft(&self, block: &BlockKey, nonce: &str) -> String {
        format!("{}:{nonce}", self.of_block("seatKeysDraft", block))
    }

    /// The block's version counter.
    #[must_use]
    pub fn version(&self, block: &BlockKey) -> String {
        self.of_block("seatVersion", block)
    }

    /// The channel of the block's seat changes.
    #[must_use]
    pub fn channel(&self, block: &BlockKey) -> String {
        self.of_block("seatChanges", block)
    }

    /// `expired:reservation:{id}`: dies at the deadline.
    #[must_use]
    pub fn expired(&self, reservation: ReservationId) -> String {
        format!("{}expired:reservation:{reservation}", self.prefix)
    }

    /// Reads the key of an expiry; none where it is another feature's or another installation's.
    #[must_use]
    pub fn parse_expired(&self, key: &[u8]) -> Option<ReservationId> {
        let key = std::str::from_utf8(key).ok()?;
        let id = key.strip_prefix(&*self.prefix)?.strip_prefix("expired:reservation:")?;
        ReservationId::from_str(id).ok()
    }

    /// The deadline index: a sorted set of reservations by deadline in ms.
    #[must_use]
    pub fn deadlines(&self) -> String {
        self.of_installation("deadlines")
    }

    /// The warm-up epoch: absent = this Redis has been lost.
    #[must_use]
    pub fn epoch(&self) -> String {
        self.of_installation("epoch")
    }

    /// Who warms up now.
    #[must_use]
    pub fn warm_up_lease(&self) -> String {
        self.of_installation("warm-up")
    }

    /// How far the warm-up is that runs now.
    #[must_use]
    pub fn warm_up_progress(&self) -> String {
        self.of_installation("warm-up-progress")
    }

    /// The mode in which this Redis is written.
    #[must_use]
    pub fn layout(&self) -> String {
        format!("{}holdfast:layout", self.prefix)
    }

    /// An idempotency key that is being worked on.
    #[must_use]
    pub fn in_progress(&self, caller: &str, key: &str) -> String {
        let mut name = format!("{}holdfast:in-progress:", self.prefix);
        escape(caller, &mut name);
        name.push(':');
        escape(key, &mut name);
        name
    }

    /// One tag for all of these: scripts look at the epoch together with the index, or with the lease.
    fn of_installation(&self, name: &str) -> String {
        let word = if self.cluster_tags { "{holdfast}" } else { "holdfast" };
        format!("{}{word}:{name}", self.prefix)
    }

    fn of_block(&self, kind: &str, block: &BlockKey) -> String {
        let mut key = String::with_capacity(self.prefix.len() + kind.len() + block.date.len() + 24);
        key.push_str(&self.prefix);
        key.push_str(kind);
        key.push_str(if self.cluster_tags { ":{" } else { ":" });
        key.push_str(&block.date);
        key.push(':');
        escape(block.block.as_str(), &mut key);
        if self.cluster_tags {
            key.push('}');
        }
        key
    }
}

fn escape(label: &str, key: &mut String) {
    for character in label.chars() {
        let ambiguous =
            matches!(character, ':' | '%' | '{' | '}') || character.is_whitespace() || character.is_control();
        if ambiguous {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                let _infallible = write!(key, "%{byte:02X}");
            }
        } else {
            key.push(character);
        }
    }
}

fn unescape(text: &str) -> Option<Label> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    Label::parse(std::str::from_utf8(&bytes).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(date: &str, block: &str) -> BlockKey {
        BlockKey { date: date.into(), block: Label::parse(block).unwrap() }
    }

    fn label(text: &str) -> Label {
        Label::parse(text).unwrap()
    }

    #[test]
    fn the_default_is_byte_for_byte_the_source_layout() {
        let keys = KeyScheme::new("", false).unwrap();
        let place = block("20250410", "101");
        assert_eq!(keys.seat(&place, &label("1"), &label("12")), "seat:20250410:101:1:12");
        assert_eq!(keys.seat_list(&place), "seatKeys:20250410:101");
        let id = "0190b0c4-0000-7000-8000-000000000001";
        assert_eq!(keys.expired(id.parse().unwrap()), format!("expired:reservation:{id}"));
    }

    #[test]
    fn prefix_and_tags_are_put_round_the_source_layout() {
        let keys = KeyScheme::new("qa:", true).unwrap();
        let place = block("20250410-2", "가 구역");
        assert_eq!(keys.seat(&place, &label("1"), &label("1")), "qa:seat:{20250410-2:가%20구역}:1:1");
        assert_eq!(keys.seat_list(&place), "qa:seatKeys:{20250410-2:가%20구역}");
    }

    #[test]
    fn foreign_keys_are_not_ours() {
        let keys = KeyScheme::new("qa:", false).unwrap();
        for foreign in
            ["seat:20250410:101:1:1", "qa:seat", "qa:seat:1:2:3", "qa:hold:%%%", "qa:seat:20250410:10%31:1:1"]
        {
            assert_eq!(keys.parse_seat(foreign), None, "{foreign}");
        }
        for foreign in
            [&b"expired:reservation:1"[..], b"qa:expired:reservation:1", b"qa:expired:reservation:", &[0xff; 9]]
        {
            assert_eq!(keys.parse_expired(foreign), None);
        }
    }

    #[test]
    fn a_prefix_is_short_visible_ascii_without_braces() {
        for bad in ["{a}", "a b", "é", &"x".repeat(65)] {
            assert_eq!(KeyScheme::new(bad, false), Err(PrefixError), "{bad}");
        }
    }

    fn any_label() -> impl Strategy<Value = Label> {
        let odd = proptest::sample::select(vec![
            ":", "%", "{", "}", " ", "%3A", "가", "😀", "a:b", "\u{a0}", "é", "e\u{301}",
        ]);
        prop_oneof![any::<String>(), proptest::collection::vec(odd, 1..6).prop_map(|parts| parts.concat())]
            .prop_filter_map("not a label", |text| Label::parse(&text).ok())
    }

    proptest! {
        #[test]
        fn a_seat_key_parses_back_to_the_same_seat(
            place in any_label(), column in any_label(), row in any_label(), tags: bool, prefixed: bool,
        ) {
            let keys = KeyScheme::new(if prefixed { "qa:" } else { "" }, tags).unwrap();
            let seat = SeatKey { block: BlockKey { date: "20250410-2".into(), block: place }, column, row };
            let key = keys.seat(&seat.block, &seat.column, &seat.row);
            prop_assert_eq!(keys.parse_seat(&key), Some(seat));
        }

        #[test]
        fn no_two_seats_share_a_key(a in [any_label(), any_label(), any_label()], b in [any_label(), any_label(), any_label()]) {
            let keys = KeyScheme::new("", false).unwrap();
            let key = |labels: &[Label; 3]| {
                keys.seat(&BlockKey { date: "20250410".into(), block: labels[0].clone() }, &labels[1], &labels[2])
            };
            prop_assert_eq!(a == b, key(&a) == key(&b));
        }

        #[test]
        fn any_bytes_can_be_parsed_without_harm(bytes: Vec<u8>) {
            let keys = KeyScheme::new("", true).unwrap();
            let _not_ours = keys.parse_expired(&bytes);
            let _not_ours = keys.parse_seat(&String::from_utf8_lossy(&bytes));
        }
    }
}
