//! The seating plan JSON of pretix: zones with rows of seats.
//!
//! A zone is a block. A seat is known by its zone, row number and seat number: the plan's `seat_guid` is not used, as
//! plans that their schema accepts repeat it. Positions add up: zone, row, seat.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::ImportFaults;
use super::draft::{Draft, DraftSeat, Neighbours, Origin, parse_color};
use super::json;
use crate::label::Label;
use crate::venue::parse_name;

const DUPLICATE_REMEDY: &str = "number one of the two rows or seats otherwise, or make each stand a zone of its own";

#[derive(Deserialize)]
struct Plan {
    categories: Option<Vec<Category>>,
    zones: Option<Vec<Zone>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Category {
    name: Value,
    color: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Zone {
    name: Value,
    zone_id: Value,
    position: Option<Point>,
    rows: Option<Vec<Row>>,
    areas: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Row {
    row_number: Value,
    position: Option<Point>,
    seats: Option<Vec<Seat>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Seat {
    seat_number: Value,
    category: Value,
    position: Option<Point>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Point {
    x: Value,
    y: Value,
}

/// Reads a plan into a draft.
pub(super) fn read(bytes: &[u8]) -> Result<Draft, ImportFaults> {
    let plan: Plan = json::parse(bytes, "a pretix seating plan in JSON")?;
    let Some(zones) = plan.zones else {
        return Err(ImportFaults::one(
            "$.zones",
            "it is missing: import the seating plan's own JSON, as the plan editor saves it",
        ));
    };
    let mut draft = Draft::new(DUPLICATE_REMEDY);
    for (index, category) in plan.categories.unwrap_or_default().iter().enumerate() {
        read_category(category, &format!("$.categories[{index}]"), &mut draft);
    }
    let mut strips = 0;
    for (index, zone) in zones.into_iter().enumerate() {
        let path = format!("$.zones[{index}]");
        let name = if json::text(&zone.name).is_some() { &zone.name } else { &zone.zone_id };
        let block = json::label(name, "zone", || format!("{path}.name"), &mut draft);
        let corner = point(zone.position.as_ref(), (0.0, 0.0), &path, &mut draft);
        let rows_of = Arc::from(path.as_str());
        for (number, row) in zone.rows.unwrap_or_default().iter().enumerate() {
            strips += 1;
            read_row(
                row,
                &RowPlace { rows_of: &rows_of, number, strip: strips, block: block.as_ref(), corner },
                &mut draft,
            );
        }
        for (number, area) in zone.areas.unwrap_or_default().iter().enumerate() {
            let shape = area.get("shape").and_then(json::text).unwrap_or_else(|| String::from("shape"));
            draft.skip(format!("{path}.areas[{number}]"), "areas", format!("the {shape} only decorates the plan"));
        }
    }
    Ok(draft)
}

fn read_category(category: &Category, path: &str, draft: &mut Draft) {
    let Some(name) = json::text(&category.name) else {
        return draft.faults.add(format!("{path}.name"), "the category has no name: give it one");
    };
    match parse_name(&name) {
        Ok(name) if draft.has_category(&name) => {
            draft.faults.add(format!("{path}.name"), format!("the category {name:?} is there already: rename one"));
        }
        Ok(name) => {
            let color = json::text(&category.color);
            let parsed = color.as_deref().and_then(parse_color);
            if let (Some(color), None) = (color, &parsed) {
                draft.warnings.push(format!("{path}.color: {color:?} is not #rrggbb and is left out"));
            }
            draft.add_category(&name, parsed, &Origin::Path(path.to_owned()));
        }
        Err(error) => draft.faults.add(format!("{path}.name"), format!("the name of the category {error}")),
    }
}

/// Where a row stands in the file and in the house.
struct RowPlace<'a> {
    rows_of: &'a Arc<str>,
    number: usize,
    strip: usize,
    block: Option<&'a Label>,
    corner: (f64, f64),
}

/// A point's position from an outer corner; a point that is missing is the corner, a wrong one is a fault.
fn point(point: Option<&Point>, corner: (f64, f64), path: &str, draft: &mut Draft) -> (f64, f64) {
    let Some(point) = point else { return corner };
    let origin = Origin::Path(format!("{path}.position"));
    let x = json::coordinate(&point.x, corner.0, &origin, "x", draft);
    let y = json::coordinate(&point.y, corner.1, &origin, "y", draft);
    (x.unwrap_or(corner.0), y.unwrap_or(corner.1))
}

fn read_row(row: &Row, place: &RowPlace<'_>, draft: &mut Draft) {
    let path = format!("{}.rows[{}]", place.rows_of, place.number);
    let seats = row.seats.as_deref().unwrap_or_default();
    if seats.is_empty() {
        return;
    }
    let label = json::label(&row.row_number, "row", || format!("{path}.row_number"), draft);
    let corner = point(row.position.as_ref(), place.corner, &path, draft);
    for (number, seat) in seats.iter().enumerate() {
        let origin = Origin::Seat { rows_of: Arc::clone(place.rows_of), row: place.number, seat: number };
        let column = json::label(&seat.seat_number, "seat", || format!("{origin}.seat_number"), draft);
        let category = category(seat, &origin, draft);
        let (x, y) = point(seat.position.as_ref(), corner, &origin.to_string(), draft);
        let (Some(block), Some(row), Some(column), Some(category)) = (place.block, &label, column, category) else {
            continue;
        };
        let printed = format!("{row}-{column}");
        let (row, neighbours, strip) = (row.clone(), Neighbours::Unsaid, (place.strip, number));
        draft.add_seat(block, DraftSeat { row, column, label: printed, category, x, y, neighbours, strip, origin });
    }
}

fn category(seat: &Seat, origin: &Origin, draft: &mut Draft) -> Option<String> {
    let Some(name) = json::text(&seat.category) else {
        draft.faults.add(format!("{origin}.category"), "the seat has no category: give it one");
        return None;
    };
    let known = parse_name(&name).ok().filter(|name| draft.has_category(name)).map(std::borrow::Cow::into_owned);
    if known.is_none() {
        draft.faults.add(
            format!("{origin}.category"),
            format!("the category {name:?} is not in $.categories: add it or choose another"),
        );
    }
    known
}
