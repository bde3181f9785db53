//! The queues beside the outbox: every open row has its job, or will get it; what is dead; what waits for nothing.

use std::collections::HashMap;

use crate::id::{OutboxId, PaymentId, ReservationId};
use crate::queue::{JobState, JobView, PAGE_MAX, Queue, list_dead, list_jobs, lost_jobs, read_jobs};
use crate::store::pg::outbox::{JobKind, OutboxRow};
use crate::time::from_ms;

use super::doubt::{About, Difference};
use super::finding::{Finding, FindingCode, Place, Repair};
use super::{Audit, Gap};

/// A job that is ready for so long may stand in no list, ms.
const READY_LONG_MS: i64 = 10_000;
/// Jobs that are searched for in their queue's list, of each page: that reads the list.
const SEARCHED_MAX: usize = 20;

impl Audit<'_> {
    /// Every queue, and every open row.
    pub(super) async fn jobs(&mut self) -> Result<(), Gap> {
        let mut after = None;
        loop {
            let rows = self.stores.pg.outbox_page(after, self.plan.page).await?;
            let Some(last) = rows.last() else { break };
            after = Some((last.event, last.id));
            let of_event = |row: &OutboxRow| self.plan.event.is_none_or(|event| event == row.event);
            let rows: Vec<OutboxRow> = rows.into_iter().filter(of_event).collect();
            self.report.looked_at.rows += u64::try_from(rows.len()).unwrap_or(0);
            let differences = self.look_at_rows(&rows).await?;
            self.doubt_or_gap(differences).await?;
            self.breathe("the outbox").await;
        }
        if self.plan.event.is_none() {
            for queue in Queue::ALL {
                self.dead_jobs(queue).await?;
                self.waiting_jobs(queue).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn look_at_rows_again(&self, rows: &[OutboxRow]) -> Result<Vec<Difference>, Gap> {
        let ids: Vec<OutboxId> = rows.iter().map(|row| row.id).collect();
        let open = self.stores.pg.audit_open_rows(&ids).await?;
        let rows: Vec<OutboxRow> = rows.iter().filter(|row| open.contains(&row.id)).cloned().collect();
        self.look_at_rows(&rows).await
    }

    async fn look_at_rows(&self, rows: &[OutboxRow]) -> Result<Vec<Difference>, Gap> {
        let mut differences = Vec::new();
        for queue in Queue::ALL {
            let of_queue: Vec<&OutboxRow> = rows.iter().filter(|row| row.queue == queue).collect();
            if of_queue.is_empty() {
                continue;
            }
            let ids: Vec<String> = of_queue.iter().map(|row| row.job().id.as_str().to_owned()).collect();
            let jobs = read_jobs(self.stores.jobs.redis(), queue, &ids).await?;
            let lost = self.lost_among(queue, &jobs).await?;
            let jobs: HashMap<&str, &JobView> = jobs.iter().map(|job| (job.id.as_str(), job)).collect();
            for (row, id) in of_queue.into_iter().zip(&ids) {
                let job = jobs.get(id.as_str()).copied();
                if let Some(difference) = self.row_difference(row, job, lost.contains(id)).await? {
                    differences.push(difference);
                }
            }
        }
        Ok(differences)
    }

    async fn lost_among(&self, queue: Queue, jobs: &[JobView]) -> Result<Vec<String>, Gap> {
        let now_ms = crate::runtime::clock::system_ms();
        let long = |job: &&JobView| {
            job.state == JobState::Ready && job.ready_ms.is_none_or(|ready| ready < now_ms - READY_LONG_MS)
        };
        let ids: Vec<String> = jobs.iter().filter(long).take(SEARCHED_MAX).map(|job| job.id.clone()).collect();
        Ok(lost_jobs(self.stores.jobs.redis(), queue, &ids).await?)
    }

    async fn row_difference(
        &self,
        row: &OutboxRow,
        job: Option<&JobView>,
        is_lost: bool,
    ) -> Result<Option<Difference>, Gap> {
        let state = job.map(|job| job.state);
        let (code, detail) = match state {
            _ if is_lost => (FindingCode::JobLost, "the queue knows the job, and no worker would ever get it"),
            None | Some(JobState::Done) => {
                (FindingCode::RowWithoutJob, "a row of the outbox waits for a job that is nowhere")
            }
            Some(JobState::Dead) if self.plan.event.is_some() => {
                (FindingCode::JobDead, "the job of an open row is in the dead list")
            }
            Some(JobState::Dead | JobState::Ready | JobState::Delayed | JobState::Retrying | JobState::Running) => {
                return Ok(None);
            }
        };
        let id = row.job().id.as_str().to_owned();
        let mut place = Place { event: Some(row.event), job: Some((row.queue, id)), ..Place::default() };
        let mut marked = ReservationId(row.event.0);
        if row.kind == JobKind::FinalizePayment {
            place.payment = Some(PaymentId(row.id.0));
            if let Some(payment) = self.stores.pg.find_payment(PaymentId(row.id.0)).await? {
                place.reservation = Some(payment.reservation);
                marked = payment.reservation;
            }
        }
        let found = state.map_or("no job", |_| "a job that ended");
        let mut finding = Finding::new(code, place, detail).found("postgres", "an open row");
        finding = match (code, job) {
            (FindingCode::JobLost, _) => finding.found("queue", "known, in no list"),
            (FindingCode::JobDead, Some(job)) => finding.found("queue", job.reason.as_deref().unwrap_or("dead")),
            _ => finding.found("queue", found).repair(Repair::QueueRow(row.event, row.id)),
        };
        if code == FindingCode::RowWithoutJob {
            finding = self.explain_row(finding, marked).await;
        }
        let sides = format!("{code:?} {}", job.map_or(0, |job| job.starts));
        Ok(Some(Difference { about: About::Row(Box::new(row.clone())), sides, finding }))
    }

    /// The sweep pushes the jobs of whatever is due in the deadline index; a warm-up pushes all.
    async fn explain_row(&self, finding: Finding, marked: ReservationId) -> Finding {
        let Ok((now_ms, registered)) = self.stores.redis.registered_deadlines(&[marked]).await else { return finding };
        let soon_ms = now_ms + self.stores.timing.gate_ms;
        let is_due = registered.iter().any(|entry| entry.score_ms.is_some_and(|score| score <= soon_ms));
        match self.redis.explanation() {
            Some(by) => finding.explained(by),
            None if is_due => finding.explained("the sweep will push it"),
            None => finding,
        }
    }

    async fn dead_jobs(&mut self, queue: Queue) -> Result<(), Gap> {
        let mut offset = 0;
        loop {
            let page = list_dead(self.stores.jobs.redis(), queue, offset, PAGE_MAX).await?;
            if page.jobs.is_empty() {
                return Ok(());
            }
            offset += PAGE_MAX;
            for job in &page.jobs {
                self.report.looked_at.jobs += 1;
                let place = Place { job: Some((queue, job.id.clone())), ..Place::default() };
                let mut finding = Finding::new(FindingCode::JobDead, place, "a job failed for good")
                    .found("queue", job.reason.as_deref().unwrap_or("dead"));
                finding.since = job.ended_ms.map(from_ms);
                self.report.add(finding);
            }
            self.breathe("dead jobs").await;
        }
    }

    /// Jobs that wait, of the kinds that have a row.
    async fn waiting_jobs(&mut self, queue: Queue) -> Result<(), Gap> {
        let prefix = match queue {
            Queue::Payments => "pay-",
            Queue::Events => "open-",
            Queue::Expiries | Queue::WarmUp => return Ok(()),
        };
        for state in [JobState::Ready, JobState::Delayed, JobState::Retrying] {
            let mut offset = 0;
            loop {
                let page = list_jobs(self.stores.jobs.redis(), queue, state, offset, PAGE_MAX).await?;
                if page.jobs.is_empty() {
                    break;
                }
                offset += PAGE_MAX;
                self.report.looked_at.jobs += u64::try_from(page.jobs.len()).unwrap_or(0);
                let ids: Vec<String> =
                    page.jobs.into_iter().map(|job| job.id).filter(|id| id.starts_with(prefix)).collect();
                let differences = self.without_row(queue, &ids).await?;
                self.doubt_or_gap(differences).await?;
                self.breathe("waiting jobs").await;
            }
        }
        Ok(())
    }

    pub(super) async fn look_at_jobs(&self, jobs: &[(Queue, String)]) -> Result<Vec<Difference>, Gap> {
        let mut differences = Vec::new();
        for queue in Queue::ALL {
            let ids: Vec<String> = jobs.iter().filter(|(of, _)| *of == queue).map(|(_, id)| id.clone()).collect();
            if ids.is_empty() {
                continue;
            }
            let waits = |state| matches!(state, JobState::Ready | JobState::Delayed | JobState::Retrying);
            let known = read_jobs(self.stores.jobs.redis(), queue, &ids).await?;
            let ids: Vec<String> = known.into_iter().filter(|job| waits(job.state)).map(|job| job.id).collect();
            differences.extend(self.without_row(queue, &ids).await?);
        }
        Ok(differences)
    }

    async fn without_row(&self, queue: Queue, ids: &[String]) -> Result<Vec<Difference>, Gap> {
        let row_of = |id: &str| Some(OutboxId(id.split_once('-')?.1.parse().ok()?));
        let rows: Vec<OutboxId> = ids.iter().filter_map(|id| row_of(id)).collect();
        let open = self.stores.pg.audit_open_rows(&rows).await?;
        let stray = ids.iter().filter(|id| row_of(id).is_some_and(|row| !open.contains(&row)));
        let differences = stray.map(|id| {
            let place = Place { job: Some((queue, id.clone())), ..Place::default() };
            let detail = "the job's row is closed: it will run and change nothing";
            let finding = Finding::new(FindingCode::JobWithoutRow, place, detail)
                .found("queue", "waiting")
                .found("postgres", "no open row");
            Difference { about: About::Job(queue, id.clone()), sides: String::new(), finding }
        });
        Ok(differences.collect())
    }
}
