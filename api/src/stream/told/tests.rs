use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::mirror::example::sheet;

const SEATS: [(&str, &str, &str); 6] =
    [("A", "1", "x"), ("A", "2", "x"), ("A", "3", "x"), ("B", "1", "x"), ("B", "2", "x"), ("B", "3", "x")];
const ALL: [SeatStatus; 4] = [SeatStatus::Available, SeatStatus::Held, SeatStatus::Sold, SeatStatus::Blocked];

fn told(epoch: u64, statuses: &[SeatStatus]) -> Told {
    let sheet = sheet(&SEATS, &[("x", 1)]);
    let frame = Arc::new(Frame::new(&sheet, &sheet.map.blocks()[0]));
    Told::new(epoch, sheet, vec![(frame, BlockPicture { version: 1, statuses: statuses.to_vec() })])
}

/// A viewer as a page or an integrator would write one: it knows the documented format and nothing else.
#[derive(Default)]
struct Reader {
    statuses: Vec<SeatStatus>,
    ids: Vec<String>,
    last_event_id: Option<String>,
}

fn status_of(word: &Value) -> SeatStatus {
    SeatStatus::from_word(word.as_str().unwrap()).unwrap()
}

impl Reader {
    fn read(&mut self, form: Form, bytes: &[u8]) {
        for event in std::str::from_utf8(bytes).unwrap().split_terminator("\n\n") {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if let Some(id) = field("id:") {
                self.last_event_id = Some(id.to_owned());
            }
            let data: Value = serde_json::from_str(field("data:").unwrap()).unwrap();
            match (field("event:").unwrap(), form) {
                ("reset", _) => *self = Self::default(),
                ("snapshot", Form::Json) => {
                    let seats = data["seats"].as_array().unwrap();
                    self.ids = seats.iter().map(|seat| seat["id"].as_str().unwrap().to_owned()).collect();
                    self.statuses = seats.iter().map(|seat| status_of(&seat["status"])).collect();
                }
                ("changes", Form::Json) => {
                    for change in data["changes"].as_array().unwrap() {
                        let seat = self.ids.iter().position(|id| id == change["id"].as_str().unwrap()).unwrap();
                        self.statuses[seat] = status_of(&change["status"]);
                    }
                }
                ("snapshot", Form::Compact) => {
                    let block = &data["blocks"][0];
                    let bytes = STANDARD.decode(block["seats"].as_str().unwrap()).unwrap();
                    let count = usize::try_from(block["count"].as_u64().unwrap()).unwrap();
                    let status = |seat: usize| ALL[usize::from(bytes[seat / 4] >> (2 * (seat % 4)) & 3)];
                    self.statuses = (0..count).map(status).collect();
                }
                ("changes", Form::Compact) => {
                    for change in data["blocks"][0]["changes"].as_array().unwrap() {
                        let number = |index: usize| usize::try_from(change[index].as_u64().unwrap()).unwrap();
                        self.statuses[number(0)] = ALL[number(1)];
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A connection: what it has, as the server knows it.
struct Connection(Had);

impl Connection {
    /// What a stream does with the header.
    fn open(reader: &Reader) -> Self {
        Self(match &reader.last_event_id {
            None => Had::Nothing,
            Some(id) => EventName::parse(id).map_or(Had::Unknown, Had::UpTo),
        })
    }

    fn pull(&mut self, told: &Told, form: Form, reader: &mut Reader) {
        while let Some((name, bytes)) = told.next(form, self.0) {
            reader.read(form, &bytes);
            self.0 = Had::UpTo(name);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Seats change.
    Change(Vec<(usize, usize)>),
    /// The viewer takes what there is.
    Take,
    /// The connection drops; it comes back with what it has.
    Reconnect,
    /// It comes back with an id that is nobody's.
    ReconnectWith(String),
    /// It comes back to another process.
    OtherProcess,
    /// Map or prices change.
    Revise,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec((0..SEATS.len(), 0..4_usize), 1..4).prop_map(Step::Change),
        3 => Just(Step::Take),
        2 => Just(Step::Reconnect),
        1 => "[0-9a-f]{0,3}-?[0-9]{0,3}".prop_map(Step::ReconnectWith),
        1 => Just(Step::OtherProcess),
        1 => Just(Step::Revise),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    // I6; A-S1
    #[test]
    fn any_schedule_of_drops_and_reconnects_ends_in_the_same_picture(steps in steps(), compact: bool) {
        let form = if compact { Form::Compact } else { Form::Json };
        let (mut epoch, mut version, mut statuses) = (7, 1, vec![SeatStatus::Available; SEATS.len()]);
        let (mut told, mut reader) = (told(epoch, &statuses), Reader::default());
        let mut connection = Connection::open(&reader);
        for step in steps {
            match step {
                Step::Change(changes) => {
                    for (seat, status) in changes {
                        statuses[seat] = ALL[status];
                    }
                    version += 1;
                    told.advance(vec![(0, BlockPicture { version, statuses: statuses.clone() })]);
                }
                Step::Take => connection.pull(&told, form, &mut reader),
                Step::Reconnect => connection = Connection::open(&reader),
                Step::ReconnectWith(id) => {
                    reader.last_event_id = Some(id);
                    connection = Connection::open(&reader);
                }
                Step::OtherProcess => {
                    epoch += 1;
                    told = super::tests::told(epoch, &statuses);
                    connection = Connection::open(&reader);
                }
                Step::Revise => {
                    let (sheet, frame) = (Arc::clone(&told.sheet), Arc::clone(&told.frames[0]));
                    told.replace(sheet, vec![(frame, BlockPicture { version, statuses: statuses.clone() })]);
                }
            }
        }
        connection.pull(&told, form, &mut reader);
        prop_assert_eq!(reader.statuses, statuses);
        prop_assert!(told.next(form, connection.0).is_none());
    }
}

#[test]
fn a_viewer_that_comes_back_with_a_strange_id_is_told_so() {
    let told = told(7, &[SeatStatus::Held; 6]);
    for (had, is_reset) in [
        (Had::Nothing, false),
        (Had::Unknown, true),
        (Had::UpTo(EventName { epoch: 7, sequence: 99 }), true),
        (Had::UpTo(EventName { epoch: 8, sequence: 1 }), true),
    ] {
        let (_, bytes) = told.next(Form::Json, had).unwrap();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text.starts_with("event: reset\ndata: {}\n\n"), is_reset, "{text}");
        assert!(text.contains("event: snapshot\ndata: {\"event\":"), "{text}");
    }
    assert_eq!(EventName::parse("1f-12"), Some(EventName { epoch: 31, sequence: 12 }));
    for strange in ["", "-", "x-1", "1f", "1f-", "1f-1-1", "ffffffffffffffffff-1"] {
        assert_eq!(EventName::parse(strange), None, "{strange}");
    }
}

#[test]
fn who_waits_for_the_latest_step_shares_its_bytes() {
    let mut told = told(7, &[SeatStatus::Available; 6]);
    let had = Had::UpTo(EventName { epoch: 7, sequence: told.sequence() });
    told.advance(vec![(0, BlockPicture { version: 2, statuses: vec![SeatStatus::Held; 6] })]);
    let (first, second) = (told.next(Form::Compact, had).unwrap().1, told.next(Form::Compact, had).unwrap().1);
    assert_eq!(first.as_ptr(), second.as_ptr());
}
