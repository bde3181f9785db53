//! Doubts: differences between the stores that may be motion. Each is looked at again until it is gone or has stood
//! still for longer than the plan's patience.

use std::collections::BTreeMap;
use std::time::{Duration, Instant as Monotonic};

use crate::id::{EventId, ReservationId};
use crate::label::Label;
use crate::queue::Queue;
use crate::store::pg::outbox::OutboxRow;

use super::finding::Finding;
use super::picture::SeatPlace;
use super::{Audit, AuditError, Gap};

/// Doubts that are kept at once; then they are settled before the audit goes on.
const DOUBTS_MAX: usize = 2_000;
/// The first wait before a second look; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// What a doubt is about.
#[derive(Debug, Clone)]
pub(super) enum About {
    Seat(Box<SeatPlace>),
    List(EventId, Label),
    Deadline(ReservationId),
    Member(String),
    Row(Box<OutboxRow>),
    Job(Queue, String),
}

impl About {
    /// A name of its own, by which two looks at the same thing are compared.
    fn name(&self) -> String {
        match self {
            Self::Seat(place) => format!("seat {} {}", place.event, place.seat),
            Self::List(event, block) => format!("list {event} {}", block.as_str()),
            Self::Deadline(id) => format!("deadline {id}"),
            Self::Member(member) => format!("member {member}"),
            Self::Row(row) => format!("row {} {}", row.event, row.id),
            Self::Job(queue, id) => format!("job {queue} {id}"),
        }
    }
}

/// A difference between two stores.
#[derive(Debug, Clone)]
pub(super) struct Difference {
    pub about: About,
    /// Both sides, with whatever grows when they change: the same again means that nothing moved.
    pub sides: String,
    pub finding: Finding,
}

struct Doubt {
    difference: Difference,
    since: Monotonic,
}

/// The doubts of an audit.
#[derive(Default)]
pub(super) struct Doubts(BTreeMap<String, Doubt>);

impl Audit<'_> {
    /// Keeps differences for a second look. Once the report is full, more would only be counted: they are not kept.
    pub(super) async fn doubt(&mut self, differences: Vec<Difference>) -> Result<(), AuditError> {
        if self.doubts.0.len() + differences.len() > DOUBTS_MAX {
            self.settle(Some(DOUBTS_MAX / 2)).await?;
        }
        let since = Monotonic::now();
        for difference in differences {
            if self.report.is_full() {
                self.report
                    .skip("there are more findings than are kept: what differed after them was not looked at twice");
                continue;
            }
            self.doubts.0.insert(difference.about.name(), Doubt { difference, since });
        }
        Ok(())
    }

    /// Looks at the doubts again until none, or no more than `enough`, are left.
    pub(super) async fn settle(&mut self, enough: Option<usize>) -> Result<(), AuditError> {
        let began = Monotonic::now();
        let mut wait = FIRST_WAIT.min(self.plan.patience);
        while self.doubts.0.len() > enough.unwrap_or(0) {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT).min(self.plan.patience.max(FIRST_WAIT));
            (self.watch)("looking again", &self.report.looked_at);
            let again = match self.look_again().await {
                Ok(again) => again,
                Err(Gap::Pg(error)) => return Err(error.into()),
                Err(gap) => {
                    self.skip(&gap);
                    self.doubts.0.clear();
                    return Ok(());
                }
            };
            self.compare(again);
            // What moves for so long is motion: the seat is being fought over.
            if began.elapsed() > 3 * self.plan.patience + 2 * LONGEST_WAIT {
                self.report.in_motion += u64::try_from(self.doubts.0.len()).unwrap_or(0);
                self.doubts.0.clear();
            }
        }
        Ok(())
    }

    fn compare(&mut self, again: Vec<Difference>) {
        let mut before = std::mem::take(&mut self.doubts.0);
        for difference in again {
            let name = difference.about.name();
            let Some(doubt) = before.remove(&name) else { continue };
            if doubt.difference.sides != difference.sides {
                let doubt = Doubt { difference, since: Monotonic::now() };
                self.doubts.0.insert(name, doubt);
                continue;
            }
            if doubt.since.elapsed() >= self.plan.patience {
                self.report.add(difference.finding);
            } else {
                self.doubts.0.insert(name, Doubt { difference, since: doubt.since });
            }
        }
        self.report.in_motion += u64::try_from(before.len()).unwrap_or(0);
    }

    async fn look_again(&mut self) -> Result<Vec<Difference>, Gap> {
        self.look_at_redis_again().await?;
        let mut seats: BTreeMap<(EventId, Label), Vec<SeatPlace>> = BTreeMap::new();
        let (mut lists, mut deadlines, mut members) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rows, mut jobs) = (Vec::new(), Vec::new());
        for doubt in self.doubts.0.values() {
            match doubt.difference.about.clone() {
                About::Seat(place) => seats.entry((place.event, place.block.block.clone())).or_default().push(*place),
                About::List(event, block) => lists.push((event, block)),
                About::Deadline(id) => deadlines.push(id),
                About::Member(member) => members.push(member),
                About::Row(row) => rows.push(*row),
                About::Job(queue, id) => jobs.push((queue, id)),
            }
        }
        let mut again = Vec::new();
        let page = usize::try_from(self.plan.page).unwrap_or(500).max(1);
        for places in seats.values() {
            for places in places.chunks(page) {
                again.extend(self.look_at_seats(places).await?);
            }
        }
        for (event, block) in lists {
            again.extend(self.look_at_list_again(event, &block).await?);
        }
        for ids in deadlines.chunks(page) {
            let registered = self.stores.pg.audited_deadlines(ids).await?;
            again.extend(self.look_at_deadlines(&registered).await?);
        }
        for members in members.chunks(page) {
            again.extend(self.look_at_members(members).await?);
        }
        for rows in rows.chunks(page) {
            again.extend(self.look_at_rows_again(rows).await?);
        }
        again.extend(self.look_at_jobs(&jobs).await?);
        Ok(again)
    }
}
