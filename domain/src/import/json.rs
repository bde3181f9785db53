//! What the JSON formats have in common: lenient leaves, so that a wrong value is a fault with its path and not the
//! end of the reading.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ImportFaults;
use super::draft::{Draft, Origin};
use crate::label::Label;
use crate::venue::POSITION_MAX;

/// Parses a JSON file into the skeleton of its format.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, ImportFaults> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    // serde would read an array as the skeleton's fields by position.
    if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(ImportFaults::one("line 1", format!("the file is not {what}: it is not a JSON object")));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let at = format!("line {}, column {}", error.line(), error.column());
        ImportFaults::one(at, format!("the file is not {what}: {error}"))
    })
}

/// The text of a leaf: a string, or a number as it is written. `None` for anything else and for blank text.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A label that must be there; else a fault.
pub(super) fn label(value: &Value, what: &str, at: impl Fn() -> String, draft: &mut Draft) -> Option<Label> {
    // Charts write a question mark where their author has not yet given a label.
    let Some(text) = text(value).filter(|text| text.trim() != "?") else {
        draft.faults.add(at(), format!("the {what} has no label: give it one"));
        return None;
    };
    Label::parse(&text).map_err(|error| draft.faults.add(at(), format!("the label of the {what} {error}"))).ok()
}

/// A coordinate that must be there; else a fault.
pub(super) fn coordinate(value: &Value, offset: f64, origin: &Origin, name: &str, draft: &mut Draft) -> Option<f64> {
    let number = value
        .as_f64()
        .map(|number| number + offset)
        .filter(|number| number.is_finite() && number.abs() <= POSITION_MAX);
    if number.is_none() {
        let message = format!(
            "the position is {value}: it must be a number that puts the seat within {POSITION_MAX} of the origin"
        );
        draft.faults.add(format!("{origin}.{name}"), message);
    }
    number
}
