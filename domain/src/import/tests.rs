//! Imports, format by format. Files that others made are read at test time and are no part of this repository.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::*;
use crate::label::Label;
use crate::venue::{MapBlock, MapSeat};

mod csv;
mod pretix;
mod seatsio;

/// A file of other people's making, from the folder HOLDFAST_SHARED_VENUES or `shared/venues` beside the workspace.
/// `None`, said aloud, where there is no folder beside the workspace; a folder or a file that ought to be there and is
/// not fails the test.
fn shared_venue(name: &str) -> Option<Vec<u8>> {
    let named = std::env::var_os("HOLDFAST_SHARED_VENUES").map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/venues");
    let folder = named.clone().unwrap_or_else(beside);
    if named.is_none() && !folder.is_dir() {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        let remedy = "set HOLDFAST_SHARED_VENUES to the folder of sample venues";
        // Not by a macro, whose output the test harness would keep to itself.
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {name} is not in {}; {remedy}", folder.display());
        return None;
    }
    Some(std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name} in {}: {error}", folder.display())))
}

fn import(format: MapFormat, text: impl AsRef<[u8]>) -> ImportedMap {
    import_map(format, text.as_ref()).unwrap_or_else(|faults| panic!("refused:\n{faults}"))
}

fn refused(format: MapFormat, text: impl AsRef<[u8]>) -> Vec<String> {
    let faults = import_map(format, text.as_ref()).map(|imported| imported.map).unwrap_err();
    assert_eq!(faults.more, 0, "{faults}");
    faults.faults.iter().map(ToString::to_string).collect()
}

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

fn block<'a>(imported: &'a ImportedMap, block: &str) -> &'a MapBlock {
    imported.map.block(&label(block)).unwrap_or_else(|| panic!("no block {block}"))
}

fn seat<'a>(block: &'a MapBlock, row: &str, column: &str) -> &'a MapSeat {
    &block.seats[block.seat_index(&label(row), &label(column)).unwrap_or_else(|| panic!("no seat {row}/{column}"))]
}

/// The block's seats as `row/column: neighbour neighbour`, in their order.
fn neighbours(block: &MapBlock) -> Vec<String> {
    let name = |seat: &MapSeat| format!("{}/{}", seat.row, seat.column);
    let beside = |seat: &MapSeat| {
        seat.neighbours.iter().map(|&index| format!(" {}", name(&block.seats[index as usize]))).collect::<String>()
    };
    block.seats.iter().map(|seat| format!("{}:{}", name(seat), beside(seat))).collect()
}

#[test]
fn a_format_is_known_by_its_name() {
    for format in MapFormat::ALL {
        assert_eq!(format.to_string().parse::<MapFormat>(), Ok(format));
        assert_eq!(serde_json::to_value(format).unwrap(), format.as_str());
    }
    assert!("xlsx".parse::<MapFormat>().unwrap_err().to_string().contains("use csv, seatsio or pretix"));
}

#[test]
fn a_file_that_is_no_map_is_refused_in_every_format() {
    for format in MapFormat::ALL {
        for file in [
            &b""[..],
            b"\xff\xfe\x00",
            b"\x00\x01\xfe\xff",
            b"null",
            b"[]",
            b"{}",
            b"{\"zones\":[]}",
            b"{\"subChart\":{}}",
        ] {
            let faults = import_map(format, file).unwrap_err();
            assert!(!faults.faults.is_empty() && !faults.faults[0].message.is_empty(), "{format} {file:?}");
        }
    }
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let faults = import_map(MapFormat::Seatsio, &vec![b' '; MAP_BYTES_MAX + 1]).unwrap_err();
    assert!(faults.faults[0].message.contains("at most 67108864"), "{faults}");
}
