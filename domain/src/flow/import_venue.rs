//! Importing a venue from a file: whole or not at all; the same file again changes nothing.

use crate::import::{ImportFaults, ImportedMap, MapFormat, Skipped, import_map};
use crate::store::pg::PgError;
use crate::store::pg::venues::{StoredMap, TakenSeat, Venue};
use crate::time::{VenueZone, WallClockError};
use crate::venue::VenueMap;

use super::Stores;

/// The longest name of a venue, in characters.
pub const NAME_CHARS_MAX: usize = 200;

/// A file and what it is to become.
pub struct VenueFile {
    /// Its format.
    pub format: MapFormat,
    /// The venue's name: the same name is the same venue.
    pub name: String,
    /// The venue's IANA zone.
    pub time_zone: String,
    /// The file.
    pub bytes: Vec<u8>,
    /// Whether it is stored, or only looked at.
    pub mode: ImportMode,
}

/// What is done with a file that has no fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportMode {
    /// It is stored.
    Store,
    /// Nothing is stored: a look at what an import would find.
    DryRun,
}

/// What an import found and did.
#[derive(Debug, Clone)]
pub struct VenueImport {
    /// The venue; none after a dry run of a new one.
    pub venue: Option<Venue>,
    /// Whether anything is stored now that was not before.
    pub is_changed: bool,
    /// The map.
    pub map: VenueMap,
    /// What of the file has no counterpart here.
    pub skipped: Vec<Skipped>,
    /// What deserves a look.
    pub warnings: Vec<String>,
}

/// Why a file is not imported. Nothing is stored then.
#[derive(Debug, thiserror::Error)]
pub enum ImportVenueError {
    /// The name.
    #[error("a venue's name has 1 to {NAME_CHARS_MAX} characters")]
    Name,
    /// The zone.
    #[error(transparent)]
    Zone(#[from] WallClockError),
    /// Faults in the file, each with its place.
    #[error("the file has faults")]
    Faults(ImportFaults),
    /// Events use the venue with another map.
    #[error(
        "events use the venue {name} with another map, and {} of its seats that somebody owns would change: import this one under another name",
        taken.len()
    )]
    InUse {
        /// Its name.
        name: String,
        /// The owned seats that this map would drop or sell under another category. There may be none.
        taken: Vec<TakenSeat>,
    },
    /// The venue is in another zone.
    #[error("the venue {name} is in {zone}: a venue does not move")]
    OtherZone {
        /// Its name.
        name: String,
        /// Where it is.
        zone: String,
    },
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
    /// A fault of ours while reading the file.
    #[error("the file could not be read to its end")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl std::fmt::Display for TakenSeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id: _, block, row, column, status, new_category } = self;
        let (block, row, column) = (block.as_str(), row.as_str(), column.as_str());
        write!(f, "block {block}, row {row}, column {column} is {}: ", status.as_str())?;
        match new_category {
            Some(category) => write!(f, "the file moves it to category {category}"),
            None => f.write_str("the file leaves it out"),
        }
    }
}

/// Imports a venue.
///
/// # Errors
/// [`ImportVenueError`].
pub async fn import_venue(stores: &Stores, file: VenueFile) -> Result<VenueImport, ImportVenueError> {
    let VenueFile { format, name, time_zone, bytes, mode } = file;
    let name = name.trim().to_owned();
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || name.chars().any(char::is_control) {
        return Err(ImportVenueError::Name);
    }
    let zone = VenueZone::parse(&time_zone)?;
    // Reading 200,000 seats takes long enough to keep others waiting.
    let imported = tokio::task::spawn_blocking(move || import_map(format, &bytes)).await?;
    let imported = imported.map_err(ImportVenueError::Faults)?;
    let (venue, is_changed) = match mode {
        ImportMode::DryRun => (None, false),
        ImportMode::Store => match stores.pg.store_map(&name, &zone, &imported.map).await? {
            StoredMap::Created(venue) | StoredMap::Replaced(venue) => (Some(venue), true),
            StoredMap::Unchanged(venue) => (Some(venue), false),
            StoredMap::InUse(venue, taken) => return Err(ImportVenueError::InUse { name: venue.name, taken }),
            StoredMap::OtherZone(venue) => {
                return Err(ImportVenueError::OtherZone { name: venue.name, zone: venue.zone.name().to_owned() });
            }
        },
    };
    let ImportedMap { map, skipped, warnings } = imported;
    Ok(VenueImport { venue, is_changed, map, skipped, warnings })
}
