//! Our own table: one seat a line. `docs/venue-files.md` describes it.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use ::csv::{ReaderBuilder, StringRecord};
use encoding_rs::EUC_KR;

use super::ImportFaults;
use super::draft::{Draft, DraftSeat, Neighbours, Origin, parse_color};
use crate::label::{Label, LabelError, normal_text};
use crate::venue::{
    MapBlock, MapSeat, POSITION_MAX, SEAT_LABEL_CHARS_MAX, SEAT_NEIGHBOURS_MAX, VenueMap, is_language, parse_name,
};

const HEADER: &str = "block,row,column,label,category,x,y,neighbours";
/// The most columns a table may have: the known ones and the block's name in a few dozen languages.
const COLUMNS_MAX: usize = 64;
const DUPLICATE_REMEDY: &str = "remove one of the two lines or give it another column (the composed and the decomposed \
    spelling of a name are the same name)";

/// Reads a table into a draft; faults that leave nothing to read end it at once.
pub(super) fn read(bytes: &[u8]) -> Result<Draft, ImportFaults> {
    let mut draft = Draft::new(DUPLICATE_REMEDY);
    let text = decode(bytes, &mut draft)?;
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let mut record = StringRecord::new();
    let broken = |error: ::csv::Error| ImportFaults::one("file", format!("it cannot be read as a table: {error}"));
    if !reader.read_record(&mut record).map_err(broken)? {
        return Err(ImportFaults::one(
            "line 1",
            format!("the file is empty: its first line must be the header {HEADER}"),
        ));
    }
    let mut lines = Lines { text: text.as_bytes(), at: 0, line: 1 };
    let columns = Columns::read(&record, lines.of(&record))?;
    if columns.x.is_none() {
        draft.positions_are_missing();
    }
    let mut positioned = None;
    while !draft.is_full() && reader.read_record(&mut record).map_err(broken)? {
        let line = Line { columns: &columns, record: &record, origin: Origin::Line(lines.of(&record)) };
        if record.len() != columns.count {
            let message = format!(
                "it has {} fields and the header has {}: fill in or remove fields, and put a field that contains a comma in double quotes",
                record.len(),
                columns.count
            );
            draft.faults.add(&line.origin, message);
            continue;
        }
        line.read(&mut draft, &mut positioned);
    }
    if positioned == Some(false) {
        draft.positions_are_missing();
    }
    Ok(draft)
}

/// Counts lines along the text. The reader's own line numbers will not do: it dates a record from the blank lines before
/// it, and does not count lines that end in a lone carriage return.
struct Lines<'a> {
    text: &'a [u8],
    at: usize,
    line: u64,
}

impl Lines<'_> {
    /// The line, from 1, on which a record begins; records come in the order of the text.
    fn of(&mut self, record: &StringRecord) -> u64 {
        let begin = record.position().and_then(|position| usize::try_from(position.byte()).ok()).unwrap_or(self.at);
        while let Some(&byte) = self.text.get(self.at) {
            if self.at >= begin && byte != b'\n' && byte != b'\r' {
                break;
            }
            self.at += 1;
            let ends_line = byte == b'\n' || byte == b'\r' && self.text.get(self.at) != Some(&b'\n');
            self.line += u64::from(ends_line);
        }
        self.line
    }
}

/// The file's text: UTF-8 with or without a byte order mark, else EUC-KR (with the additions of code page 949).
fn decode<'a>(bytes: &'a [u8], draft: &mut Draft) -> Result<std::borrow::Cow<'a, str>, ImportFaults> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(ImportFaults::one("line 1", "the file is UTF-16: save it as CSV in UTF-8"));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let valid_up_to = match std::str::from_utf8(bytes) {
        Ok(text) => return Ok(text.into()),
        Err(error) => error.valid_up_to(),
    };
    let Some(text) = EUC_KR.decode_without_bom_handling_and_without_replacement(bytes) else {
        let line = 1 + bytes[..valid_up_to].iter().filter(|&&byte| byte == b'\n').count();
        return Err(ImportFaults::one(
            format!("line {line}"),
            "the file is neither UTF-8 nor EUC-KR: save it as CSV in UTF-8",
        ));
    };
    draft.warnings.push(String::from("the file is not UTF-8 and was read as EUC-KR: look at its names"));
    Ok(text)
}

/// Where in a line each field stands.
struct Columns {
    count: usize,
    block: usize,
    row: usize,
    column: usize,
    category: usize,
    label: Option<usize>,
    x: Option<usize>,
    y: Option<usize>,
    neighbours: Option<usize>,
    tier: Option<usize>,
    color: Option<usize>,
    names: Vec<(String, usize)>,
}

impl Columns {
    fn read(header: &StringRecord, line: u64) -> Result<Self, ImportFaults> {
        let at = format!("line {line}");
        let fault = |message: String| ImportFaults::one(&at, message);
        let fields: Vec<String> = header.iter().map(|field| field.trim().to_ascii_lowercase()).collect();
        if fields.len() == 1 && fields[0].contains([';', '\t']) {
            return Err(fault(String::from(
                "the fields are not separated by commas: save the file as CSV with commas",
            )));
        }
        if fields.len() > COLUMNS_MAX {
            return Err(fault(format!(
                "it has {} columns: at most {COLUMNS_MAX} are possible, remove some",
                fields.len()
            )));
        }
        let mut names = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            if fields[..index].contains(field) {
                return Err(fault(format!("the column {field:?} is there twice: remove one")));
            }
            match field.strip_prefix("block_") {
                Some(language) if is_language(language) => names.push((language.to_owned(), index)),
                _ if HEADER.split(',').chain(["tier", "color"]).any(|known| known == field) => {}
                _ => {
                    let known = format!("{HEADER},tier,color and block_ with a language (block_ko)");
                    return Err(fault(format!("the column {field:?} is not known: the columns are {known}")));
                }
            }
        }
        let find = |name: &str| fields.iter().position(|field| field == name);
        let need = |name: &str| {
            find(name).ok_or_else(|| fault(format!("the column {name:?} is missing: the header is {HEADER}")))
        };
        let (x, y) = (find("x"), find("y"));
        if x.is_some() != y.is_some() {
            return Err(fault(String::from("a position needs both columns, x and y: add the other or remove both")));
        }
        Ok(Self {
            count: fields.len(),
            block: need("block")?,
            row: need("row")?,
            column: need("column")?,
            category: need("category")?,
            label: find("label"),
            x,
            y,
            neighbours: find("neighbours"),
            tier: find("tier"),
            color: find("color"),
            names,
        })
    }
}

/// One line of the table.
struct Line<'a> {
    columns: &'a Columns,
    record: &'a StringRecord,
    origin: Origin,
}

impl Line<'_> {
    /// Reads the line's seat into the draft, or its faults: all of them, not only the first.
    fn read(&self, draft: &mut Draft, positioned: &mut Option<bool>) {
        let columns = self.columns;
        let block = self.take(draft, "block", Label::parse(&self.record[columns.block]));
        let row = self.take(draft, "row", Label::parse(&self.record[columns.row]));
        let column = self.take(draft, "column", Label::parse(&self.record[columns.column]));
        let category = self.take(draft, "category", parse_name(&self.record[columns.category]));
        let color = self.field(columns.color).map(parse_color);
        if color == Some(None) {
            draft.faults.add(&self.origin, "the color is not understood: write it as #rrggbb");
        }
        let label =
            self.field(columns.label).map(|text| self.take(draft, "label", normal_text(text, SEAT_LABEL_CHARS_MAX)));
        let position = self.position(draft, positioned);
        let (Some(block), Some(row), Some(column), Some(category)) = (block, row, column, category) else { return };
        self.read_block(draft, &block);
        draft.add_category(&category, color.flatten(), &self.origin);
        let neighbours =
            self.field(columns.neighbours).map_or(Ok(Neighbours::Unsaid), |cell| parse_neighbours(cell, &row));
        let neighbours = match neighbours {
            Ok(neighbours) => neighbours,
            Err(message) => return draft.faults.add(&self.origin, message),
        };
        let label = label.flatten().map_or_else(|| format!("{row}-{column}"), std::borrow::Cow::into_owned);
        let (x, y) = position.unwrap_or_default();
        let category = category.into_owned();
        let origin = self.origin.clone();
        draft.add_seat(&block, DraftSeat { row, column, label, category, x, y, neighbours, strip: (0, 0), origin });
    }

    /// A field that may be missing or blank.
    fn field(&self, index: Option<usize>) -> Option<&str> {
        self.record.get(index?).filter(|text| !text.trim().is_empty())
    }

    fn take<T>(&self, draft: &mut Draft, what: &str, parsed: Result<T, LabelError>) -> Option<T> {
        parsed.map_err(|error| draft.faults.add(&self.origin, format!("the {what} {error}"))).ok()
    }

    /// The seat's position, if the file has any: then every line must have one.
    fn position(&self, draft: &mut Draft, positioned: &mut Option<bool>) -> Option<(f64, f64)> {
        let (x, y) = (self.field(self.columns.x), self.field(self.columns.y));
        let both = x.is_some() && y.is_some();
        if x.is_some() != y.is_some() || *positioned.get_or_insert(both) != both {
            let message = "either every line has a position or none: fill in x and y here or leave both columns blank";
            draft.faults.add(&self.origin, message);
            return None;
        }
        let mut number = |what: &str, text: &str| {
            let parsed =
                text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && number.abs() <= POSITION_MAX);
            if parsed.is_none() {
                let message = format!("{what} is {text:?}: write a number with a point, within {POSITION_MAX} of 0");
                draft.faults.add(&self.origin, message);
            }
            parsed
        };
        let (x, y) = (number("x", x?), number("y", y?));
        Some((x?, y?))
    }

    /// What the line says about its block: the first to say it decides, another text later is a fault.
    fn read_block(&self, draft: &mut Draft, label: &Label) {
        let names = self.columns.names.iter().map(|(language, index)| (Some(language), Some(*index)));
        for (language, index) in names.chain([(None, self.columns.tier)]) {
            let Some(text) = self.field(index) else { continue };
            let what = language.map_or_else(|| String::from("tier"), |language| format!("block_{language}"));
            let Some(text) = self.take(draft, &what, parse_name(text)) else { continue };
            let block = draft.block(label);
            let known = match language {
                Some(language) => block.names.get(language),
                None => block.tier.as_ref(),
            };
            match known {
                Some((first, at)) if *first != text => {
                    let message = format!("{what} of block {label} is {text:?} here and {first:?} at {at}: choose one");
                    draft.faults.add(&self.origin, message);
                }
                Some(_) => {}
                None => {
                    let said = (text.into_owned(), self.origin.clone());
                    match language {
                        Some(language) => drop(block.names.insert(language.clone(), said)),
                        None => block.tier = Some(said),
                    }
                }
            }
        }
    }
}

/// Reads a `neighbours` cell: `-` for none, else seats separated by `;`, each `column` of the same row or
/// `row/column`. A backslash takes the next character as it is.
fn parse_neighbours(cell: &str, own_row: &Label) -> Result<Neighbours, String> {
    if cell.trim() == "-" {
        return Ok(Neighbours::Said(Vec::new()));
    }
    let mut seats = Vec::new();
    let (mut row, mut text) = (None, String::new());
    let part = |text: &str| Label::parse(text).map_err(|error| format!("in neighbours a label {error}"));
    let mut characters = cell.chars();
    loop {
        match characters.next() {
            Some('\\') => {
                text.push(characters.next().ok_or("neighbours ends in a backslash: write \\\\ for a backslash")?)
            }
            Some('/') if row.is_some() => {
                return Err(String::from("a neighbour has two slashes: write \\/ for a slash in a label"));
            }
            Some('/') => row = Some(part(&std::mem::take(&mut text))?),
            end @ (Some(';') | None) => {
                seats.push((row.take().unwrap_or_else(|| own_row.clone()), part(&std::mem::take(&mut text))?));
                if end.is_none() {
                    break;
                }
            }
            Some(character) => text.push(character),
        }
    }
    if seats.len() > SEAT_NEIGHBOURS_MAX {
        return Err(format!("the seat has {} neighbours: at most {SEAT_NEIGHBOURS_MAX} are possible", seats.len()));
    }
    Ok(Neighbours::Said(seats))
}

/// Writes a map as our own table, in UTF-8 without a byte order mark: reading it again gives the same map.
///
/// Categories without a seat are not in the table, since no line names them.
pub fn export_csv(map: &VenueMap) -> String {
    let languages: BTreeSet<&str> =
        map.blocks.iter().flat_map(|block| block.names.keys()).map(String::as_str).collect();
    let with_tier = map.blocks.iter().any(|block| block.tier.is_some());
    let colors: HashMap<&str, Option<&str>> =
        map.categories.iter().map(|category| (category.category.as_str(), category.color.as_deref())).collect();
    let with_color = colors.values().any(Option::is_some);
    let mut table = String::from(HEADER);
    table.push_str(if with_tier { ",tier" } else { "" });
    table.push_str(if with_color { ",color" } else { "" });
    for language in &languages {
        let _ = write!(table, ",block_{language}");
    }
    table.push('\n');
    for block in &map.blocks {
        for seat in &block.seats {
            let color = colors.get(seat.category.as_str()).copied().flatten();
            let (x, y, neighbours) = (seat.x.to_string(), seat.y.to_string(), neighbours_cell(block, seat));
            let mut cells = vec![
                block.block.as_str(),
                seat.row.as_str(),
                seat.column.as_str(),
                &seat.label,
                &seat.category,
                &x,
                &y,
                &neighbours,
            ];
            cells.extend(with_tier.then(|| block.tier.as_deref().unwrap_or_default()));
            cells.extend(with_color.then(|| color.unwrap_or_default()));
            cells.extend(languages.iter().map(|&language| block.names.get(language).map_or("", String::as_str)));
            push_line(&mut table, &cells);
        }
    }
    table
}

fn push_line(table: &mut String, cells: &[&str]) {
    for (number, cell) in cells.iter().enumerate() {
        table.push_str(if number == 0 { "" } else { "," });
        if cell.contains([',', '"', '\n', '\r']) {
            let _ = write!(table, "\"{}\"", cell.replace('"', "\"\""));
        } else {
            table.push_str(cell);
        }
    }
    table.push('\n');
}

fn neighbours_cell(block: &MapBlock, seat: &MapSeat) -> String {
    let mut cell = String::new();
    let others = seat.neighbours.iter().filter_map(|&index| block.seats.get(usize::try_from(index).ok()?));
    for (number, other) in others.enumerate() {
        cell.push_str(if number == 0 { "" } else { ";" });
        if other.row != seat.row {
            push_escaped(&mut cell, &other.row);
            cell.push('/');
        }
        push_escaped(&mut cell, &other.column);
    }
    match cell.as_str() {
        "" => String::from("-"),
        "-" => String::from("\\-"),
        _ => cell,
    }
}

fn push_escaped(cell: &mut String, label: &Label) {
    for character in label.as_str().chars() {
        if matches!(character, ';' | '/' | '\\') {
            cell.push('\\');
        }
        cell.push(character);
    }
}
