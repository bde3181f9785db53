//! Labels: the text that names a block, a row or a column.
//!
//! A label is never a number: `"01"` and `"1"` are two seats, `"AA"` and `"가"` are rows like any other. What is
//! made one is only the spelling: Hangul typed on one system arrives composed (NFC), from another decomposed (NFD),
//! and both must reach the same seat, so every label is brought to NFC where it enters.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use unicode_normalization::UnicodeNormalization;

/// The longest label, in characters (Unicode scalar values) after normalisation.
pub const LABEL_CHARS_MAX: usize = 64;

/// The name of a block, a row or a column: NFC text of 1 to [`LABEL_CHARS_MAX`] characters, without white space at
/// its ends and without control characters.
///
/// Equality, hash and `Ord` are those of the text (byte order). For the order in which people expect seats to stand
/// use [`label_order`]. A clone shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Arc<str>);

/// Why a text cannot be a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Nothing is left once the white space at the ends is gone.
    #[error("is empty: give it at least one character that is not white space")]
    Empty,
    /// More than [`LABEL_CHARS_MAX`] characters.
    #[error("has {chars} characters: shorten it to {LABEL_CHARS_MAX}")]
    TooLong {
        /// How many characters it has after normalisation and trimming.
        chars: usize,
    },
    /// It contains a control character, a line break for example.
    #[error("contains the control character U+{code:04X}: remove it")]
    ControlCharacter {
        /// The character's code point.
        code: u32,
    },
}

impl Label {
    /// Makes a label of any text: normalises it to NFC, trims white space at both ends, and refuses what is then
    /// empty, longer than [`LABEL_CHARS_MAX`] characters or contains a control character.
    pub fn parse(text: &str) -> Result<Self, LabelError> {
        Ok(Self(Arc::from(normal_text(text, LABEL_CHARS_MAX)?.as_ref())))
    }

    /// The label's text, in NFC.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Brings a text to the one form in which it is kept (NFC, trimmed) and checks it as [`Label::parse`] does, with a
/// limit of its own: printed seat labels, category names and block names are longer than labels may be.
pub(crate) fn normal_text(text: &str, chars_max: usize) -> Result<Cow<'_, str>, LabelError> {
    // Almost every label of almost every venue is ASCII, which is NFC as it stands.
    let normal = if text.is_ascii() {
        Cow::Borrowed(text.trim())
    } else {
        Cow::Owned(text.nfc().collect::<String>().trim().to_owned())
    };
    if normal.is_empty() {
        return Err(LabelError::Empty);
    }
    if let Some(control) = normal.chars().find(|character| character.is_control()) {
        return Err(LabelError::ControlCharacter { code: u32::from(control) });
    }
    let chars = normal.chars().count();
    if chars > chars_max {
        return Err(LabelError::TooLong { chars });
    }
    Ok(normal)
}

/// Compares two labels in natural order, the order in which blocks, rows and seats are listed.
///
/// A label is read as runs of digits and runs of everything else. Numbers compare by value (`2` before `10`), and
/// stand before text. Among the text runs those of one to three ASCII letters come first, the shorter before the
/// longer, as rows are lettered (`A` … `Z`, `AA`, `BB`); all other text compares by code point, which puts Hangul
/// syllables in dictionary order. Labels that are alike so far, `1` and `01`, are ordered by their text. The order is
/// therefore total, depends on nothing but the two labels, and says `Equal` for equal labels only.
pub fn label_order(a: &Label, b: &Label) -> Ordering {
    natural_order(a.as_str(), b.as_str())
}

/// [`label_order`] for texts that are not labels, category names for example.
pub(crate) fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (Runs(a), Runs(b));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return a.cmp(b),
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a_run), Some(b_run)) => match a_run.cmp(&b_run) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
        }
    }
}

/// One run of a label; the derived order is the natural one, since variants and fields compare from first to last.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Run<'a> {
    /// A number of any length: its digits without leading zeros, first how many, then which.
    Number(usize, &'a str),
    /// One to three ASCII letters: first how many, then which.
    Letters(usize, &'a str),
    /// Anything else.
    Text(&'a str),
}

/// The runs of the text that is left.
struct Runs<'a>(&'a str);

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        let numeric = self.0.chars().next()?.is_ascii_digit();
        let end = self.0.find(|character: char| character.is_ascii_digit() != numeric).unwrap_or(self.0.len());
        let (run, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(if numeric {
            let value = run.trim_start_matches('0');
            Run::Number(value.len(), value)
        } else if run.len() <= 3 && run.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            Run::Letters(run.len(), run)
        } else {
            Run::Text(run)
        })
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl AsRef<str> for Label {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Label {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Label {
    type Error = LabelError;

    fn try_from(text: String) -> Result<Self, LabelError> {
        Self::parse(&text)
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.0.as_ref().to_owned()
    }
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Label;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a label (text; write \"12\", not 12)")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Label, E> {
                Label::parse(text).map_err(|error| E::custom(format!("the label {text:?} {error}")))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label(text: &str) -> Label {
        Label::parse(text).unwrap()
    }

    #[test]
    fn composed_and_decomposed_spellings_are_one_label() {
        let composed = "가구역";
        let decomposed: String = composed.nfd().collect();
        assert_ne!(composed, decomposed);
        assert_eq!(label(composed), label(&decomposed));
        assert_eq!(label(&decomposed).as_str(), composed);
        assert_eq!(serde_json::from_value::<Label>(decomposed.into()).unwrap(), label(composed));
    }

    #[test]
    fn a_label_is_text_and_never_a_number() {
        assert_ne!(label("1"), label("01"));
        assert_eq!(label("020A").as_str(), "020A");
        assert!(serde_json::from_str::<Label>("12").unwrap_err().to_string().contains("write \"12\", not 12"));
    }

    #[test]
    fn what_cannot_be_read_on_a_ticket_is_refused() {
        assert_eq!(Label::parse(" \u{a0}\t"), Err(LabelError::Empty));
        assert_eq!(Label::parse("A\nB"), Err(LabelError::ControlCharacter { code: 10 }));
        assert_eq!(Label::parse(&"가".repeat(64)).unwrap().as_str().chars().count(), 64);
        assert_eq!(Label::parse(&"가".repeat(65)), Err(LabelError::TooLong { chars: 65 }));
        assert_eq!(label("  Goal Stand 4 ").as_str(), "Goal Stand 4");
        assert_eq!(label("A:B/:1%{x}").as_str(), "A:B/:1%{x}");
    }

    #[test]
    fn seats_are_listed_by_value_and_equal_values_by_their_text() {
        let in_order = [
            "0",
            "001",
            "01",
            "1",
            "1A",
            "2",
            "10",
            "99999999999999999999999999",
            "A",
            "A1",
            "A2",
            "A10",
            "B",
            "Z",
            "AA",
            "BB",
            "AAA",
            "Goal Stand 3",
            "Goal Stand 4",
            "가",
            "나",
            "나2",
            "나10",
        ];
        let mut shuffled: Vec<Label> = in_order.iter().rev().map(|text| label(text)).collect();
        shuffled.sort_by(label_order);
        assert_eq!(shuffled.iter().map(Label::as_str).collect::<Vec<_>>(), in_order);
    }

    /// Texts in which the rules of the order meet: digits, zeros, short and long letter runs, Hangul, separators.
    fn texts() -> impl Strategy<Value = String> {
        prop_oneof!["[0-9A-Ca가 :]{1,6}", "[ -~]{1,8}", "\\PC{1,8}"]
            .prop_filter("is a label", |text| Label::parse(text).is_ok())
    }

    proptest! {
        #[test]
        fn a_label_survives_being_written_and_read(text in texts()) {
            let once = label(&text);
            prop_assert_eq!(&label(once.as_str()), &once);
            prop_assert_eq!(&serde_json::from_str::<Label>(&serde_json::to_string(&once).unwrap()).unwrap(), &once);
        }

        #[test]
        fn the_natural_order_is_total(a in texts(), b in texts(), c in texts()) {
            let (a, b, c) = (label(&a), label(&b), label(&c));
            prop_assert_eq!(label_order(&a, &b), label_order(&b, &a).reverse());
            prop_assert_eq!(label_order(&a, &b) == Ordering::Equal, a == b);
            if label_order(&a, &b) != Ordering::Greater && label_order(&b, &c) != Ordering::Greater {
                prop_assert_ne!(label_order(&a, &c), Ordering::Greater);
            }
        }
    }
}
