use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const SEATS: usize = 6;
const SPANS: Spans = Spans {
    standby: Duration::from_millis(250),
    standby_grace: Duration::from_millis(1_000),
    refresh: Duration::from_secs(30),
};

fn held(deadline_ms: i64) -> SeatReading {
    SeatReading { status: SeatStatus::Held, deadline_ms: Some(deadline_ms) }
}

fn change(version: u64, seat: SeatReading, indices: &[u32]) -> Change {
    Change { version, what: What::Now { seat, indices: indices.to_vec() } }
}

fn reading(version: u64, seats: &[SeatReading]) -> BlockReading {
    BlockReading { version, now_ms: 0, seats: seats.to_vec() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A followed block of two available seats at version 10, whose store's clock says 0 at the returned instant.
fn followed() -> (BlockState, Monotonic) {
    let mut state = BlockState::new(SPANS);
    let at = Monotonic::now();
    state.subscribed();
    state.begin_reading();
    assert!(state.end_reading(reading(10, &[SeatReading::AVAILABLE; 2]), StoreClock { now_ms: 0, at, offset_ms: 0 }));
    (state, at)
}

#[test]
fn a_change_is_applied_once_and_only_in_order() {
    let (mut state, at) = followed();
    assert_eq!(state.apply(change(11, held(500), &[1])), Applied::Yes);
    assert_eq!(state.statuses(at, 0).0, [SeatStatus::Available, SeatStatus::Held]);
    assert_eq!(state.apply(change(11, SeatReading::AVAILABLE, &[1])), Applied::Known);
    assert_eq!(state.apply(change(3, SeatReading::AVAILABLE, &[1])), Applied::Known);
    assert_eq!(state.statuses(at, 0).0, [SeatStatus::Available, SeatStatus::Held]);
    assert_eq!(state.standing(at), Standing::Good);
    assert_eq!(state.apply(change(13, held(500), &[0])), Applied::ReadAgain);
    assert_eq!(state.standing(at), Standing::Missing);
}

#[test]
fn a_reload_a_loss_and_an_unreadable_message_ask_for_a_reading() {
    for spoil in [
        (|state| assert_eq!(state.apply(Change { version: 11, what: What::Reload }), Applied::ReadAgain))
            as fn(&mut BlockState),
        BlockState::lost,
        BlockState::distrust,
    ] {
        let (mut state, at) = followed();
        spoil(&mut state);
        assert_eq!(state.standing(at), Standing::Missing);
    }
    let (mut state, at) = followed();
    assert_eq!(state.apply(Change { version: 10, what: What::Reload }), Applied::Known, "it is in the reading");
    assert_eq!(state.standing(at), Standing::Good);
}

#[test]
fn a_held_seat_is_available_from_its_deadline_on_without_any_message() {
    let (mut state, at) = followed();
    state.apply(change(11, held(500), &[0]));
    state.apply(change(12, held(700), &[1]));
    let (statuses, until) = state.statuses(at, 0);
    assert_eq!((statuses, until), (vec![SeatStatus::Held; 2], at + ms(500)));
    assert_eq!(state.statuses(at + ms(499), 0).0, [SeatStatus::Held; 2]);
    let (statuses, until) = state.statuses(at + ms(500), 0);
    assert_eq!((statuses, until), (vec![SeatStatus::Available, SeatStatus::Held], at + ms(700)));
    assert_eq!(state.statuses(at + ms(700), 0), (vec![SeatStatus::Available; 2], at + SPANS.refresh));
}

#[test]
fn moved_time_moves_deadlines() {
    let (mut state, at) = followed();
    state.apply(change(11, held(5_000), &[0]));
    assert_eq!(state.statuses(at, 4_999), (vec![SeatStatus::Held, SeatStatus::Available], at + ms(1)));
    assert_eq!(state.statuses(at, 5_000).0, [SeatStatus::Available; 2]);
}

#[test]
fn what_nothing_follows_is_good_for_a_moment_and_shown_a_little_longer() {
    for (subscribed, version) in [(false, 10), (true, 0)] {
        let mut state = BlockState::new(SPANS);
        let at = Monotonic::now();
        if subscribed {
            state.subscribed();
        }
        assert_eq!(state.standing(at), Standing::Missing);
        state.begin_reading();
        let clock = StoreClock { now_ms: 0, at, offset_ms: 0 };
        assert!(state.end_reading(reading(version, &[SeatReading::AVAILABLE]), clock));
        assert_eq!(state.standing(at + ms(249)), Standing::Good);
        assert_eq!(state.standing(at + ms(250)), Standing::Ageing);
        assert_eq!(state.standing(at + ms(1_250)), Standing::Missing);
        assert_eq!(state.statuses(at, 0).1, at + ms(250));
        assert_eq!(state.statuses(at + ms(250), 0).1, at + ms(250) + AGEING_STEP, "not encoded for every reader");
        assert_eq!(state.apply(change(version + 1, held(1), &[0])), Applied::ReadAgain);
        assert_eq!(state.standing(at), Standing::Missing);
    }
}

#[test]
fn a_subscription_ends_what_was_read_without_one() {
    let mut state = BlockState::new(SPANS);
    let at = Monotonic::now();
    state.begin_reading();
    state.end_reading(reading(10, &[]), StoreClock { now_ms: 0, at, offset_ms: 0 });
    assert_eq!(state.standing(at), Standing::Good);
    state.subscribed();
    assert_eq!(state.standing(at), Standing::Missing);
}

#[test]
fn more_changes_than_are_remembered_during_a_reading_repeat_it() {
    let (mut state, at) = followed();
    state.begin_reading();
    for version in (11..).take(WAITING_MAX) {
        state.apply(change(version, held(1), &[0]));
    }
    let clock = StoreClock { now_ms: 0, at, offset_ms: 0 };
    assert!(!state.end_reading(reading(10, &[SeatReading::AVAILABLE; 2]), clock));
    assert_eq!(state.standing(at), Standing::Missing);
}

#[test]
fn a_failed_reading_leaves_a_followed_block_followed() {
    let (mut state, at) = followed();
    assert_eq!(state.standing(at + SPANS.refresh), Standing::Ageing);
    state.begin_reading();
    assert_eq!(state.apply(change(11, held(1), &[0])), Applied::Yes);
    state.abandon_reading(at + SPANS.refresh);
    assert_eq!(state.standing(at + SPANS.refresh), Standing::Good);
    assert_eq!(state.apply(change(12, held(1), &[1])), Applied::Yes);
}

/// What can happen between a block in Redis and its mirror.
#[derive(Debug, Clone)]
enum Step {
    /// Seats get one status and deadline, and a message says so.
    Change(Vec<u32>, SeatReading),
    /// Seats are healed one by one, and a message asks for a reading.
    Heal(Vec<(u32, SeatReading)>),
    /// The next message arrives.
    Deliver,
    /// It arrives, and will arrive again.
    DeliverTwice,
    /// It never arrives.
    Drop,
    /// A message cannot be read.
    Garble,
    BeginReading,
    /// Redis answers for some more seats.
    ReadSome(usize),
    EndReading,
    FailReading,
    Lose,
    Subscribe,
}

fn any_seat() -> impl Strategy<Value = SeatReading> {
    prop_oneof![
        Just(SeatReading::AVAILABLE),
        (1_i64..100).prop_map(held),
        Just(SeatReading { status: SeatStatus::Held, deadline_ms: None }),
        Just(SeatReading { status: SeatStatus::Sold, deadline_ms: None }),
        Just(SeatReading { status: SeatStatus::Blocked, deadline_ms: None }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let index = 0..u32::try_from(SEATS).unwrap();
    prop_oneof![
        8 => (proptest::collection::vec(index.clone(), 1..4), any_seat()).prop_map(|(seats, now)| Step::Change(seats, now)),
        1 => proptest::collection::vec((index, any_seat()), 1..4).prop_map(Step::Heal),
        10 => Just(Step::Deliver),
        2 => Just(Step::DeliverTwice),
        1 => Just(Step::Drop),
        1 => Just(Step::Garble),
        3 => Just(Step::BeginReading),
        5 => (1..SEATS).prop_map(Step::ReadSome),
        4 => Just(Step::EndReading),
        1 => Just(Step::FailReading),
        1 => Just(Step::Lose),
        3 => Just(Step::Subscribe),
    ]
}

/// A block in Redis, the wire, and its mirror.
struct World {
    seats: Vec<SeatReading>,
    version: u64,
    wire: VecDeque<Change>,
    subscribed: bool,
    /// The last version whose message was lost, until a later one arrives or a reading has it: nobody can know.
    unnoticed: Option<u64>,
    reading: Option<(u64, Vec<SeatReading>)>,
    state: BlockState,
    began: Monotonic,
}

impl World {
    fn new() -> Self {
        Self {
            seats: vec![SeatReading::AVAILABLE; SEATS],
            version: 10,
            wire: VecDeque::new(),
            subscribed: false,
            unnoticed: None,
            reading: None,
            state: BlockState::new(SPANS),
            began: Monotonic::now(),
        }
    }

    fn publish(&mut self, what: What) {
        self.version += 1;
        if self.subscribed {
            self.wire.push_back(Change { version: self.version, what });
        }
    }

    fn deliver(&mut self) {
        if let Some(change) = self.wire.pop_front() {
            self.notice(change.version);
            self.state.apply(change);
        }
    }

    fn notice(&mut self, version: u64) {
        self.unnoticed = self.unnoticed.filter(|lost| *lost > version);
    }

    fn read_some(&mut self, count: usize) {
        if let Some((_, read)) = &mut self.reading {
            let from = read.len();
            read.extend(self.seats.iter().skip(from).take(count));
        }
    }

    fn begin_reading(&mut self) {
        self.state.begin_reading();
        self.reading = Some((self.version, Vec::new()));
    }

    fn end_reading(&mut self) {
        self.read_some(SEATS);
        let Some((version, seats)) = self.reading.take() else { return };
        self.notice(version);
        self.state.end_reading(reading(version, &seats), StoreClock { now_ms: 0, at: self.began, offset_ms: 0 });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Change(indices, seat) => {
                for index in &indices {
                    self.seats[*index as usize] = seat;
                }
                self.publish(What::Now { seat, indices });
            }
            Step::Heal(seats) => {
                for (index, seat) in seats {
                    self.seats[index as usize] = seat;
                }
                self.publish(What::Reload);
            }
            Step::Deliver => self.deliver(),
            Step::DeliverTwice => {
                self.wire.extend(self.wire.front().cloned().into_iter().collect::<Vec<_>>());
                self.deliver();
            }
            Step::Drop => self.unnoticed = self.wire.pop_front().map(|change| change.version).max(self.unnoticed),
            Step::Garble => {
                if let Some(change) = self.wire.pop_front() {
                    self.notice(change.version);
                    self.state.distrust();
                }
            }
            Step::BeginReading if self.reading.is_none() => self.begin_reading(),
            Step::BeginReading => {}
            Step::ReadSome(count) => self.read_some(count),
            Step::EndReading => self.end_reading(),
            Step::FailReading => {
                if self.reading.take().is_some() {
                    self.state.abandon_reading(self.began);
                }
            }
            Step::Lose => {
                self.wire.clear();
                (self.subscribed, self.unnoticed) = (false, None);
                self.state.lost();
            }
            Step::Subscribe => {
                if !self.subscribed {
                    self.subscribed = true;
                    self.state.subscribed();
                }
            }
        }
    }

    /// With all that was sent here, and nothing lost that nobody knows of, a followed block is as Redis has it.
    fn check(&self) -> Result<(), TestCaseError> {
        if !self.state.is_followed() || !self.wire.is_empty() || self.unnoticed.is_some() {
            return Ok(());
        }
        prop_assert_eq!(self.state.version(), self.version);
        for at in [0, 1, 50, 100] {
            let fresh: Vec<SeatStatus> = self.seats.iter().map(|seat| seat.status_at(at)).collect();
            let now = self.began + ms(u64::try_from(at).unwrap());
            prop_assert_eq!(self.state.statuses(now, 0).0, fresh);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_reading_and_the_changes_after_it_end_as_a_fresh_reading(steps in proptest::collection::vec(any_step(), 0..60)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check()?;
        }
        // Whatever was lost shows with the next change, and then at most two readings put it right.
        world.step(Step::Subscribe);
        world.step(Step::Change(vec![0], held(60)));
        while !world.wire.is_empty() {
            world.deliver();
        }
        world.end_reading();
        if !world.state.is_followed() {
            world.begin_reading();
            world.end_reading();
        }
        prop_assert!(world.state.is_followed());
        world.check()?;
    }
}
