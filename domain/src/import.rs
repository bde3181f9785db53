//! Reading a venue's map from a file: our own CSV, a seats.io chart or a pretix seating plan.
//!
//! `docs/venue-files.md` describes the formats for people. Whatever the format, an import is all or nothing: a file
//! with a fault gives no map but the list of its faults, each with the line or the JSON path where it stands and
//! the remedy; what a format can say and a venue cannot hold (general admission, tables, shapes) is listed as skipped.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::venue::{MapFault, VenueMap};

mod csv;
mod draft;
mod json;
mod neighbours;
mod pretix;
mod seatsio;

pub use self::csv::export_csv;

/// The largest file an import reads, in bytes: 200,000 seats in the most talkative of the formats.
pub const MAP_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most faults one refusal names; the rest is counted.
pub const IMPORT_FAULTS_MAX: usize = 100;
/// The most skipped objects one import names; the rest is counted in a warning.
pub const IMPORT_SKIPPED_MAX: usize = 1_000;

/// The formats a map can be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MapFormat {
    /// Our own table, one seat a line.
    Csv,
    /// The chart JSON of seats.io.
    Seatsio,
    /// The seating plan JSON of pretix.
    Pretix,
}

/// A format name that is none of [`MapFormat::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the format {0:?} is not known: use csv, seatsio or pretix")]
pub struct UnknownFormatError(pub String);

impl MapFormat {
    /// Every format, in the order in which help texts list them.
    pub const ALL: [Self; 3] = [Self::Csv, Self::Seatsio, Self::Pretix];

    /// The format's name in queries and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Seatsio => "seatsio",
            Self::Pretix => "pretix",
        }
    }
}

impl fmt::Display for MapFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for MapFormat {
    type Err = UnknownFormatError;

    fn from_str(name: &str) -> Result<Self, UnknownFormatError> {
        Self::ALL.into_iter().find(|format| format.as_str() == name).ok_or_else(|| UnknownFormatError(name.to_owned()))
    }
}

/// What an import made of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportedMap {
    /// The map, checked and in canonical order.
    pub map: VenueMap,
    /// The objects of the file that are not in the map, the first [`IMPORT_SKIPPED_MAX`].
    pub skipped: Vec<Skipped>,
    /// What the importer decided by itself and a person may want to look at.
    pub warnings: Vec<String>,
}

/// One object of the file that is not in the map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its JSON path.
    pub path: String,
    /// What it is, in the format's own word: `generalAdmissionAreas`, `tables`, `shapes`, …
    pub kind: String,
    /// Why it is left out and what that means.
    pub reason: String,
}

/// Why a file gives no map: its faults, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportFaults {
    /// The faults in the order in which they were found, the first [`IMPORT_FAULTS_MAX`].
    pub faults: Vec<MapFault>,
    /// How many more there are.
    pub more: usize,
}

impl ImportFaults {
    pub(crate) fn one(at: impl fmt::Display, message: impl Into<String>) -> Self {
        Self { faults: vec![MapFault { at: at.to_string(), message: message.into() }], more: 0 }
    }
}

impl fmt::Display for ImportFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if number == 0 { "" } else { "\n" })?;
        }
        if self.more > 0 { write!(f, "\nand {} more faults", self.more) } else { Ok(()) }
    }
}

impl std::error::Error for ImportFaults {}

/// Reads a venue's map from a file of the given format.
///
/// The map comes in canonical order and has passed [`VenueMap::check`]; categories without a seat are left out of it
/// with a warning, since an event could not sensibly set a price for them. Refuses a file of more than
/// [`MAP_BYTES_MAX`] bytes and any file with a fault, naming its faults.
pub fn import_map(format: MapFormat, bytes: &[u8]) -> Result<ImportedMap, ImportFaults> {
    if bytes.len() > MAP_BYTES_MAX {
        let message = format!("it has {} bytes: at most {MAP_BYTES_MAX} are read, split the venue", bytes.len());
        return Err(ImportFaults::one("file", message));
    }
    match format {
        MapFormat::Csv => csv::read(bytes),
        MapFormat::Seatsio => seatsio::read(bytes),
        MapFormat::Pretix => pretix::read(bytes),
    }?
    .finish()
}

#[cfg(test)]
mod tests;
