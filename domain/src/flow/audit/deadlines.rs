//! The deadline index and the keys that die at a deadline, beside the reservations that can expire.

use uuid::Uuid;

use crate::id::ReservationId;
use crate::store::pg::audit::AuditedDeadline;
use crate::store::redis::deadlines::ClaimedDeadline;
use crate::time::{from_ms, rfc3339_ms, to_ms};

use super::doubt::{About, Difference};
use super::finding::{Finding, FindingCode, Place, Repair};
use super::{Audit, Gap};

/// What is overdue for longer than this is not being tidied up: a lease or two.
const OVERDUE_MS: i64 = 10_000;
/// A key that dies within so much of its deadline is right.
const KEY_SLACK_MS: i64 = 1_000;

impl Audit<'_> {
    /// Reservations that can expire, each beside its entry and its key.
    pub(super) async fn look_at_deadlines(&self, deadlines: &[AuditedDeadline]) -> Result<Vec<Difference>, Gap> {
        let ids: Vec<ReservationId> = deadlines.iter().map(|deadline| deadline.reservation).collect();
        let (now_ms, registered) = self.stores.redis.registered_deadlines(&ids).await?;
        let mut differences = Vec::new();
        for (deadline, registered) in deadlines.iter().zip(registered) {
            let at_ms = to_ms(deadline.expires_at);
            let overdue_ms = to_ms(deadline.read_at) - at_ms;
            let key_ms = registered.key_ms;
            let key_is_wrong = at_ms - now_ms > 2 * KEY_SLACK_MS && (key_ms - (at_ms - now_ms)).abs() > KEY_SLACK_MS;
            let (code, detail) = match registered.score_ms {
                None => (FindingCode::DeadlineNotRegistered, "nothing would end the reservation at its deadline"),
                Some(score) if overdue_ms < 0 && score > at_ms + KEY_SLACK_MS => {
                    (FindingCode::DeadlineRegisteredLate, "the deadline index has a later time than the deadline")
                }
                Some(_) if overdue_ms > OVERDUE_MS => {
                    (FindingCode::ExpiredNotCancelled, "the reservation is dead, and no worker has tidied it up")
                }
                Some(_) if overdue_ms < 0 && key_is_wrong => (
                    FindingCode::ExpiryKeyWrong,
                    "its key does not die at its deadline: the sweep ends it all the same",
                ),
                Some(_) => continue,
            };
            let key = match key_ms {
                -2 => "no key".to_owned(),
                -1 => "a key for ever".to_owned(),
                _ => "a key that dies".to_owned(),
            };
            let entry = registered.score_ms.map_or("no entry".to_owned(), |score| rfc3339_ms(from_ms(score)));
            let place =
                Place { event: Some(deadline.event), reservation: Some(deadline.reservation), ..Place::default() };
            let mut finding = Finding::new(code, place, detail)
                .found("postgres", format!("PENDING until {}", rfc3339_ms(deadline.expires_at)))
                .found("redis", format!("{entry}, {key}"))
                .repair(Repair::ShowReservation(deadline.reservation));
            finding.since = (overdue_ms > 0).then_some(deadline.expires_at);
            let sides = format!("{code:?} {} {key} {:?}", deadline.generation, registered.score_ms);
            // Leases move an overdue entry on and on, though nothing comes of it.
            let sides = if overdue_ms > 0 { format!("{code:?} {}", deadline.generation) } else { sides };
            differences.push(self.unless_warming_up(About::Deadline(deadline.reservation), sides, finding));
        }
        Ok(differences)
    }

    /// The whole index: what stands there needs to.
    pub(super) async fn index(&mut self) -> Result<(), Gap> {
        let page = usize::try_from(self.plan.page).unwrap_or(500);
        let mut cursor = 0;
        loop {
            let (next, members) = self.stores.redis.index_page(cursor, page).await?;
            self.report.looked_at.deadlines += u64::try_from(members.len()).unwrap_or(0);
            let differences = self.compare_members(&members).await?;
            self.doubt_or_gap(differences).await?;
            self.breathe("the deadline index").await;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    pub(super) async fn look_at_members(&self, members: &[String]) -> Result<Vec<Difference>, Gap> {
        let known: Vec<(String, ReservationId)> =
            members.iter().filter_map(|member| Some((member.clone(), member.parse().ok()?))).collect();
        let ids: Vec<ReservationId> = known.iter().map(|(_, id)| *id).collect();
        let (_, registered) = self.stores.redis.registered_deadlines(&ids).await?;
        let mut again: Vec<(String, i64)> = known
            .into_iter()
            .zip(registered)
            .filter_map(|((member, _), registered)| Some((member, registered.score_ms?)))
            .collect();
        let unreadable = members.iter().filter(|member| member.parse::<ReservationId>().is_err());
        // A member that nobody can read moves nowhere: it was there.
        again.extend(unreadable.map(|member| (member.clone(), 0)));
        self.compare_members(&again).await
    }

    async fn compare_members(&self, members: &[(String, i64)]) -> Result<Vec<Difference>, Gap> {
        let mut differences = Vec::new();
        let mut entries: Vec<ClaimedDeadline> = Vec::new();
        for (member, score_ms) in members {
            match member.parse() {
                Ok(id) => entries.push((id, *score_ms)),
                Err(_) => {
                    let shown: String = member.chars().take(80).collect();
                    let detail = format!("the deadline index has a member that is no id: {shown:?}");
                    let finding = Finding::new(FindingCode::DeadlineUnreadable, Place::default(), detail);
                    let about = About::Member(member.clone());
                    differences.push(Difference { about, sides: String::new(), finding });
                }
            }
        }
        let ids: Vec<Uuid> = entries.iter().map(|(id, _)| id.0).collect();
        let needed = self.stores.pg.audit_index_ids(&ids).await?;
        let (now_ms, _) = self.stores.redis.registered_deadlines(&[]).await?;
        let soon_ms = now_ms + self.stores.timing.gate_ms + self.stores.timing.lease_ms;
        for (id, score_ms) in entries {
            // What is due soon is looked at soon: a hold on its way, a change that is being shown.
            let is_looked_at = (now_ms - OVERDUE_MS..=soon_ms).contains(&score_ms);
            if is_looked_at || needed.contains(&id.0) {
                continue;
            }
            let place = Place { reservation: Some(id), ..Place::default() };
            let detail = "the deadline index has an entry of something that needs none: it leaves when it is due";
            let finding = Finding::new(FindingCode::DeadlineOfNothing, place, detail)
                .found("redis", rfc3339_ms(from_ms(score_ms)))
                .found("postgres", "no reservation that can expire")
                .repair(Repair::ShowReservation(id));
            let sides = format!("{score_ms}");
            differences.push(self.unless_warming_up(About::Member(id.to_string()), sides, finding));
        }
        Ok(differences)
    }

    fn unless_warming_up(&self, about: About, sides: String, finding: Finding) -> Difference {
        let finding = match self.redis.explanation() {
            Some(by) => finding.explained(by),
            None => finding,
        };
        Difference { about, sides, finding }
    }
}
