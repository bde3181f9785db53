//! The chart JSON of seats.io: rows and seats, in sections or not, with categories, zones and positions.
//!
//! A section is a block and its zone the block's tier; rows outside any section are in the block their own
//! `sectionLabel` names, else in [`DEFAULT_BLOCK`]. A section's contents are positioned from the section's corner.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::ImportFaults;
use super::draft::{Draft, DraftSeat, Neighbours, Origin, parse_color};
use super::json;
use crate::label::{Label, normal_text};
use crate::venue::{SEAT_LABEL_CHARS_MAX, parse_name};

/// The block of the rows that are in no section.
const DEFAULT_BLOCK: &str = "Main";
const DUPLICATE_REMEDY: &str = "give one of the two another label";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chart {
    categories: Option<Listed<Category>>,
    zones: Option<Listed<Zone>>,
    sub_chart: Option<SubChart>,
}

#[derive(Deserialize)]
struct Listed<T> {
    list: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Category {
    key: Value,
    label: Value,
    color: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Zone {
    key: Value,
    label: Value,
}

/// A chart's or a section's contents. Every list but rows and sections is of objects that are not seats in rows; which
/// lists there are depends on the chart's version, so that any list that is not known is skipped and named too.
#[derive(Default)]
struct SubChart {
    rows: Vec<Row>,
    sections: Vec<Section>,
    others: Vec<(String, Vec<Value>)>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Section {
    label: Value,
    zone: Value,
    category_key: Value,
    category_label: Value,
    top_left: Option<Point>,
    sub_chart: Option<SubChart>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Point {
    x: Value,
    y: Value,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Row {
    label: Value,
    display_label: Value,
    section_label: Value,
    category_key: Value,
    category_label: Value,
    seats: Option<Vec<Seat>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Seat {
    label: Value,
    display_label: Value,
    x: Value,
    y: Value,
    category_key: Value,
    category_label: Value,
    accessible: Value,
    companion_seat: Value,
    restricted_view: Value,
}

impl<'de> Deserialize<'de> for SubChart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Contents;
        impl<'de> Visitor<'de> for Contents {
            type Value = SubChart;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a chart's contents")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SubChart, A::Error> {
                let mut chart = SubChart::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "rows" => chart.rows = map.next_value::<Option<_>>()?.unwrap_or_default(),
                        "sections" => chart.sections = map.next_value::<Option<_>>()?.unwrap_or_default(),
                        "backgroundImage" | "referenceChart" => drop(map.next_value::<IgnoredAny>()?),
                        _ => {
                            if let Value::Array(objects) = map.next_value()? {
                                chart.others.push((key, objects));
                            }
                        }
                    }
                }
                Ok(chart)
            }
        }
        deserializer.deserialize_map(Contents)
    }
}

/// Reads a chart into a draft.
pub(super) fn read(bytes: &[u8]) -> Result<Draft, ImportFaults> {
    let chart: Chart = json::parse(bytes, "a seats.io chart in JSON")?;
    let Some(contents) = chart.sub_chart else {
        return Err(ImportFaults::one(
            "$.subChart",
            "it is missing: import the chart's own JSON, as the chart's API gives it",
        ));
    };
    let mut reader = Reader {
        draft: Draft::new(DUPLICATE_REMEDY),
        categories: HashMap::new(),
        zones: HashMap::new(),
        strips: 0,
        flagged: 0,
    };
    reader.read_categories(chart.categories.and_then(|categories| categories.list).unwrap_or_default());
    for zone in chart.zones.and_then(|zones| zones.list).unwrap_or_default() {
        if let (Some(key), Some(label)) = (json::text(&zone.key), json::text(&zone.label)) {
            reader.zones.insert(key, label);
        }
    }
    reader.read_contents(
        contents,
        "$.subChart",
        &Place { block: None, x: 0.0, y: 0.0, category: (Value::Null, Value::Null) },
    );
    if reader.flagged > 0 {
        let message = "marks of accessible, companion and restricted-view seats are not kept; seats so marked";
        reader.draft.warnings.push(format!("{message}: {}", reader.flagged));
    }
    Ok(reader.draft)
}

/// Where the contents being read belong.
struct Place {
    /// The section's label; `None` outside sections, an error once the section's label is at fault.
    block: Option<Result<Label, AtFault>>,
    x: f64,
    y: f64,
    /// The section's category, as key and label.
    category: (Value, Value),
}

/// The label of a section or row is at fault and has been named: its seats are read for their own faults only.
#[derive(Clone)]
struct AtFault;

struct Reader {
    draft: Draft,
    /// Category names by key.
    categories: HashMap<String, String>,
    /// Zone labels by key.
    zones: HashMap<String, String>,
    strips: usize,
    flagged: usize,
}

impl Reader {
    fn read_categories(&mut self, list: Vec<Category>) {
        for (index, category) in list.into_iter().enumerate() {
            let path = format!("$.categories.list[{index}]");
            let Some(label) = json::text(&category.label) else {
                self.draft.faults.add(format!("{path}.label"), "the category has no label: give it one");
                continue;
            };
            let name = match parse_name(&label) {
                Ok(name) => name.into_owned(),
                Err(error) => {
                    self.draft.faults.add(format!("{path}.label"), format!("the label of the category {error}"));
                    continue;
                }
            };
            let repeated = self.draft.has_category(&name);
            if repeated {
                self.draft
                    .faults
                    .add(format!("{path}.label"), format!("the category {name:?} is there already: rename one"));
            }
            let color = json::text(&category.color);
            let parsed = color.as_deref().and_then(parse_color);
            if let (Some(color), None) = (color, &parsed) {
                self.draft.warnings.push(format!("{path}.color: {color:?} is not #rrggbb and is left out"));
            }
            if !repeated {
                self.draft.add_category(&name, parsed, &Origin::Path(path.clone()));
            }
            let key = json::text(&category.key).unwrap_or_else(|| label.clone());
            if self.categories.insert(key, name).is_some() {
                self.draft.faults.add(format!("{path}.key"), "another category has this key: give each its own");
            }
        }
    }

    fn read_contents(&mut self, contents: SubChart, path: &str, place: &Place) {
        let rows_of: Arc<str> = Arc::from(path);
        for (index, row) in contents.rows.into_iter().enumerate() {
            self.read_row(&row, &rows_of, index, place);
        }
        for (kind, objects) in contents.others {
            for (index, object) in objects.iter().enumerate() {
                self.draft.skip(format!("{path}.{kind}[{index}]"), &kind, skip_reason(&kind, object));
            }
        }
        for (index, section) in contents.sections.into_iter().enumerate() {
            self.read_section(section, &format!("{path}.sections[{index}]"), place);
        }
    }

    fn read_section(&mut self, section: Section, path: &str, outer: &Place) {
        let Some(contents) = section.sub_chart else {
            return self.draft.skip(path.to_owned(), "sections", String::from("the section has no contents"));
        };
        let block = json::label(&section.label, "section", || format!("{path}.label"), &mut self.draft);
        let corner = section.top_left.unwrap_or_default();
        let mut offset = |value: &Value, outer: f64, name: &str| match value {
            Value::Null => outer,
            value => json::coordinate(value, outer, &Origin::Path(format!("{path}.topLeft")), name, &mut self.draft)
                .unwrap_or(outer),
        };
        let (x, y) = (offset(&corner.x, outer.x, "x"), offset(&corner.y, outer.y, "y"));
        if let (Some(block), Some(zone)) = (&block, json::text(&section.zone)) {
            self.read_tier(block, &zone, path);
        }
        let place =
            Place { block: Some(block.ok_or(AtFault)), x, y, category: (section.category_key, section.category_label) };
        self.read_contents(contents, &format!("{path}.subChart"), &place);
    }

    fn read_tier(&mut self, block: &Label, zone: &str, path: &str) {
        let tier = self.zones.get(zone).map_or(zone, String::as_str);
        match parse_name(tier) {
            Ok(tier) => {
                let origin = Origin::Path(format!("{path}.zone"));
                let known =
                    self.draft.block(block).tier.get_or_insert_with(|| (tier.clone().into_owned(), origin)).clone();
                if known.0 != tier {
                    self.draft.warnings.push(format!(
                        "{path}.zone: block {block} is in the zone {:?} at {} already",
                        known.0, known.1
                    ));
                }
            }
            Err(error) => self.draft.faults.add(format!("{path}.zone"), format!("the label of the zone {error}")),
        }
    }

    fn read_row(&mut self, row: &Row, rows_of: &Arc<str>, index: usize, place: &Place) {
        self.strips += 1;
        let path = || format!("{rows_of}.rows[{index}]");
        let seats = row.seats.as_deref().unwrap_or_default();
        if seats.is_empty() {
            return;
        }
        let label = json::label(&row.label, "row", || format!("{}.label", path()), &mut self.draft);
        let block = match (&place.block, json::text(&row.section_label)) {
            (Some(block), _) => block.clone().ok(),
            (None, named) => {
                let named = named.unwrap_or_else(|| String::from(DEFAULT_BLOCK));
                json::label(&Value::String(named), "section", || format!("{}.sectionLabel", path()), &mut self.draft)
            }
        };
        for (number, seat) in seats.iter().enumerate() {
            let origin = Origin::Seat { rows_of: Arc::clone(rows_of), row: index, seat: number };
            let column = json::label(&seat.label, "seat", || format!("{origin}.label"), &mut self.draft);
            let category = self.category(seat, row, place, &origin);
            let x = json::coordinate(&seat.x, place.x, &origin, "x", &mut self.draft);
            let y = json::coordinate(&seat.y, place.y, &origin, "y", &mut self.draft);
            let flags = [&seat.accessible, &seat.companion_seat, &seat.restricted_view];
            self.flagged += usize::from(flags.contains(&&Value::Bool(true)));
            let (Some(block), Some(row_label), Some(column)) = (&block, &label, column) else { continue };
            let (Some(category), Some(x), Some(y)) = (category, x, y) else { continue };
            let printed = self.printed(seat, row, row_label, &column, &origin);
            let seat = DraftSeat {
                row: row_label.clone(),
                column,
                label: printed,
                category,
                x,
                y,
                neighbours: Neighbours::Unsaid,
                strip: (self.strips, number),
                origin,
            };
            self.draft.add_seat(block, seat);
        }
    }

    /// The name of the seat's category: its own, else its row's, else its section's.
    fn category(&mut self, seat: &Seat, row: &Row, place: &Place, origin: &Origin) -> Option<String> {
        let levels = [
            (&seat.category_key, &seat.category_label),
            (&row.category_key, &row.category_label),
            (&place.category.0, &place.category.1),
        ];
        for (key, label) in levels {
            if let Some(key) = json::text(key) {
                let name = self.categories.get(&key).cloned();
                if name.is_none() {
                    let message = format!(
                        "the category with the key {key} is not in $.categories.list: add it or choose another"
                    );
                    self.draft.faults.add(format!("{origin}.categoryKey"), message);
                }
                return name;
            }
            if let Some(label) = json::text(label) {
                let name = parse_name(&label)
                    .ok()
                    .filter(|name| self.draft.has_category(name))
                    .map(std::borrow::Cow::into_owned);
                if name.is_none() {
                    let message =
                        format!("the category {label:?} is not in $.categories.list: add it or choose another");
                    self.draft.faults.add(format!("{origin}.categoryLabel"), message);
                }
                return name;
            }
        }
        self.draft.faults.add(format!("{origin}.categoryKey"), "the seat has no category: give it one, or its section");
        None
    }

    /// What is printed on the ticket: the labels to be displayed where the chart has such, joined by a hyphen.
    fn printed(&mut self, seat: &Seat, row: &Row, row_label: &Label, column: &Label, origin: &Origin) -> String {
        let shown = |value: &Value, label: &Label| json::text(value).unwrap_or_else(|| label.to_string());
        let printed = format!("{}-{}", shown(&row.display_label, row_label), shown(&seat.display_label, column));
        match normal_text(&printed, SEAT_LABEL_CHARS_MAX) {
            Ok(normal) => normal.into_owned(),
            Err(error) => {
                self.draft.faults.add(format!("{origin}.displayLabel"), format!("the label {error}"));
                printed
            }
        }
    }
}

fn skip_reason(kind: &str, object: &Value) -> String {
    let label =
        object.get("label").or_else(|| object.get("text")).and_then(json::text).map(|label| format!(" {label:?}"));
    let label = label.unwrap_or_default();
    match kind {
        "generalAdmissionAreas" => {
            let capacity = object.get("capacity").and_then(json::text).unwrap_or_else(|| String::from("unnumbered"));
            format!("the general admission area{label} has no seats of its own: its {capacity} places are not imported")
        }
        "tables" => {
            let seats = object.get("seats").and_then(Value::as_array).map_or(0, Vec::len);
            format!("the table{label} is not a row: its {seats} seats are not imported")
        }
        "booths" => format!("the booth{label} is not a seat"),
        "shapes" | "texts" | "icons" | "imageObjects" => format!("it only decorates the chart{label}"),
        _ => format!("objects of this kind are not imported{label}"),
    }
}
