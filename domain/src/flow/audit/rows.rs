//! What Postgres says of itself: claims, reservations, their seats and money, kept answers. Each page is one snapshot,
//! so a contradiction is one: nothing here is motion.

use crate::event::{Event, EventStatus};
use crate::id::{OutboxId, SeatId};
use crate::store::pg::PgError;
use crate::store::pg::audit::{MisclaimedSeat, MispaidReservation};
use crate::time::rfc3339_ms;

use super::finding::{Finding, FindingCode, Place, Repair};
use super::{Audit, AuditError, Gap};

impl Audit<'_> {
    /// An event's reservations, page by page: their claims, seats and money, and their deadlines in Redis.
    pub(super) async fn reservations(&mut self, event: &Event) -> Result<(), AuditError> {
        self.preparing(event).await?;
        let mut after = None;
        loop {
            let page = self.stores.pg.audit_reservations(event.id, after, self.plan.page).await?;
            if page.last.is_none() {
                return Ok(());
            }
            after = page.last;
            self.report.looked_at.reservations += page.count;
            for seat in &page.misclaimed {
                let place = self.place_of(event, seat.seat).await?;
                self.report.add(misclaimed_finding(seat, place));
            }
            for miscounted in &page.miscounted {
                let place =
                    Place { event: Some(event.id), reservation: Some(miscounted.reservation), ..Place::default() };
                let words = |(seats, sum): (i64, i64)| format!("{seats} seats for {sum}");
                let detail = "the reservation's row does not agree with its seats";
                self.report.add(Finding::new(FindingCode::ReservationSeatsDiffer, place, detail).found(
                    "postgres",
                    format!("{}, its seats are {}", words(miscounted.row), words(miscounted.seats)),
                ));
            }
            for mispaid in &page.mispaid {
                let place = Place {
                    event: Some(event.id),
                    reservation: Some(mispaid.reservation),
                    payment: mispaid.payment,
                    ..Place::default()
                };
                if let Some(finding) = mispaid_finding(mispaid, place) {
                    self.report.add(finding);
                }
            }
            self.has_live |= !page.deadlines.is_empty();
            if self.compares_redis() && !page.deadlines.is_empty() {
                let part = async {
                    let differences = self.look_at_deadlines(&page.deadlines).await?;
                    self.doubt_or_gap(differences).await
                };
                let part: Result<(), Gap> = part.await;
                self.go_on(part)?;
            }
            self.breathe(&event.title).await;
        }
    }

    /// An event's claims, page by page: a reservation that is alive stands behind each.
    pub(super) async fn claims(&mut self, event: &Event) -> Result<(), AuditError> {
        let mut after = None;
        loop {
            let (last, count, stray) = self.stores.pg.audit_claims(event.id, after, self.plan.page).await?;
            if last.is_none() {
                return Ok(());
            }
            after = last;
            self.report.looked_at.claims += count;
            for claim in stray {
                let place = Place { reservation: claim.reservation, ..self.place_of(event, claim.seat).await? };
                let owner = match &claim.status {
                    None => "no reservation".to_owned(),
                    Some(status) => format!("a {status} reservation that does not have the seat"),
                };
                let finding = Finding::new(
                    FindingCode::ClaimWithoutReservation,
                    place,
                    "a claim keeps the seat for a reservation that is missing, over, or has other seats",
                );
                self.report.add(finding.found("postgres", format!("{} by {owner}", claim.state)));
            }
            self.breathe(&event.title).await;
        }
    }

    /// An event that is being prepared has the row that opens it.
    async fn preparing(&mut self, event: &Event) -> Result<(), AuditError> {
        if event.status != EventStatus::Preparing {
            return Ok(());
        }
        let rows = self.stores.pg.audit_open_rows(&[OutboxId(event.id.0)]).await?;
        // It may have been opened since it was read.
        let now = self.stores.pg.find_event(event.id).await?;
        if rows.is_empty() && now.is_some_and(|now| now.status == EventStatus::Preparing) {
            let place = Place { event: Some(event.id), ..Place::default() };
            self.report.add(
                Finding::new(FindingCode::PreparingWithoutJob, place, "the event is preparing, and nothing opens it")
                    .found("postgres", "preparing, no open row")
                    .repair(Repair::OpenEvent(event.id)),
            );
        }
        Ok(())
    }

    /// Answers that were kept for a repeat: what they tell is there.
    pub(super) async fn answers(&mut self) -> Result<(), AuditError> {
        let mut after = (String::new(), String::new());
        loop {
            let (last, stray) =
                self.stores.pg.audit_answers(self.plan.event, (&after.0, &after.1), self.plan.page).await?;
            let Some(last) = last else { return Ok(()) };
            after = last;
            for answer in stray {
                let place = Place {
                    event: Some(answer.event),
                    reservation: Some(crate::id::ReservationId(answer.resource)),
                    ..Place::default()
                };
                let detail = "a buyer was answered that this reservation was made, and it is not there";
                let mut finding = Finding::new(FindingCode::AnswerWithoutEffect, place, detail)
                    .found("postgres", format!("answered {}", rfc3339_ms(answer.created_at)));
                finding.since = Some(answer.created_at);
                self.report.add(finding);
            }
            self.breathe("kept answers").await;
        }
    }

    /// The seat's place, as people name it.
    async fn place_of(&mut self, event: &Event, seat: SeatId) -> Result<Place, PgError> {
        let unnamed = Place { event: Some(event.id), seat: Some(seat), ..Place::default() };
        let map = match self.map_of(event).await {
            Ok(map) => map,
            Err(Gap::Pg(error)) => return Err(error),
            Err(Gap::Redis(_) | Gap::Queue(_)) => return Ok(unnamed),
        };
        Ok(match map.seat(seat) {
            Some(found) => Place {
                block: Some(map.block_of(found).block.clone()),
                column_row: Some((found.column.clone(), found.row.clone())),
                ..unnamed
            },
            None => unnamed,
        })
    }
}

fn misclaimed_finding(seat: &MisclaimedSeat, place: Place) -> Finding {
    let place = Place { reservation: Some(seat.reservation), ..place };
    let is_own = seat.owner == Some(seat.reservation);
    let claim = match (&seat.claim, seat.owner) {
        (None, _) => "no claim".to_owned(),
        (Some(claim), None) => format!("a claim {claim} by an operator"),
        (Some(claim), Some(owner)) => format!("a claim {claim} by {owner}"),
    };
    let (code, detail) = if !is_own && seat.is_owner_alive {
        (FindingCode::SeatOwnedTwice, "two reservations that are alive have the seat")
    } else if !is_own {
        (FindingCode::ClaimMissing, "the reservation is alive and does not have the claim on its seat")
    } else if seat.claim.as_deref() == Some("held") && seat.status == "PENDING" && !seat.is_committed {
        (FindingCode::ClaimDeadlineDiffers, "the claim dies at another time than its reservation")
    } else {
        (FindingCode::ClaimStateDiffers, "the claim is in another state than its reservation")
    };
    let committed = if seat.is_committed && seat.status == "PENDING" { ", committed" } else { "" };
    Finding::new(code, place, detail).found("postgres", format!("{}{committed}, {claim}", seat.status))
}

/// None where the money is on its way back already.
fn mispaid_finding(mispaid: &MispaidReservation, place: Place) -> Option<Finding> {
    let MispaidReservation { status, amount, kept, currency, .. } = mispaid;
    let says = format!("{status} for {amount} {currency}, {kept} {currency} kept");
    if status == "CONFIRMED" {
        let detail = "the reservation is CONFIRMED, and not exactly its price is kept";
        return Some(Finding::new(FindingCode::ConfirmedNotPaid, place, detail).found("postgres", says));
    }
    if mispaid.has_refund {
        // Its payment's own check tells whether the refund has a row.
        return None;
    }
    let finding = Finding::new(
        FindingCode::MoneyKeptWithoutSeats,
        place,
        "money is kept for a reservation that is not CONFIRMED, and no refund of it is asked for",
    );
    let finding = finding.found("postgres", says);
    Some(if mispaid.has_row { finding.explained("its payment's job has not ended") } else { finding })
}
