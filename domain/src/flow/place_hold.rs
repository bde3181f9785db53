//! Placing a hold: gate in Redis → deadline registered → one Postgres transaction → Redis shows it until the deadline.
//!
//! Crash windows:
//! - after the gate: it opens by itself in seconds;
//! - after the deadline is registered: an orphan in the index, whose expiry finds no reservation and changes nothing;
//! - after the commit: Redis shows the short gate. The index entry, written before, comes due when the gate opens: the
//!   sweep then finds the hold, shows it, and writes its own deadline. Until then a refusal in Postgres heals it.
//!
//! Without Redis the hold goes on from Postgres alone.

mod plan;

use std::sync::Arc;

use crate::event::{Event, EventStatus, SaleState};
use crate::id::{Buyer, EventId, SeatId};
use crate::reservation::Reservation;
use crate::runtime::clock::monotonic_ms;
use crate::seat::{SeatRef, SeatStatus};
use crate::store::pg::PgError;
use crate::store::pg::holds::{HeldTimes, HoldOutcome};
use crate::store::pg::idempotency::KnownKey;
use crate::store::redis::buckets::{BucketOwner, Gate, Showing};
use crate::store::redis::deadlines::MovedDeadline;
use crate::time::{Instant, from_ms, to_ms};

use super::event_book::EventSheet;
use super::hold_lanes::PlaceError;
use super::read_block::{heal_block, heal_some};
use super::show_reservation::show_after_change;
use super::{Answered, FaultPoint, Faults, Idempotent, Stores};
use plan::{Plan, new_hold, plan_hold};

/// What a buyer asks for.
pub struct HoldRequest {
    /// The event.
    pub event: EventId,
    /// For whom.
    pub buyer: Buyer,
    /// Which seats, as the caller names them.
    pub seats: Vec<SeatRef>,
    /// How it is made repeatable.
    pub idempotency: Option<Idempotent<Reservation>>,
}

/// A seat that is not available, and what it is instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatConflict {
    /// The index into the request's seats.
    pub index: usize,
    /// The seat.
    pub seat: SeatId,
    /// Its status.
    pub status: SeatStatus,
}

/// Why a hold is refused. Nothing is held then.
#[derive(Debug, thiserror::Error)]
pub enum PlaceHoldError {
    /// There is no such event.
    #[error("there is no such event")]
    UnknownEvent,
    /// Seats that the event does not have: indices into the request's seats.
    #[error("the event does not have these seats")]
    UnknownSeats(Vec<usize>),
    /// Seats named twice: indices of the repeats.
    #[error("seats are named more than once")]
    RepeatedSeats(Vec<usize>),
    /// No seats.
    #[error("no seat is named")]
    NoSeats,
    /// The sale has not begun.
    #[error("the sale has not begun")]
    NotOnSale(Option<Instant>),
    /// The sale is over.
    #[error("the sale is over")]
    SalesClosed,
    /// The event is called off.
    #[error("the event is called off")]
    EventCancelled,
    /// More seats than one reservation may have.
    #[error("more seats than one reservation may have")]
    TooManySeats {
        /// The limit.
        max: i32,
    },
    /// More seats than one buyer may have.
    #[error("more seats than one buyer may have")]
    BuyerLimit {
        /// The limit.
        max: i32,
        /// Held, being paid for and sold already.
        owned: i64,
    },
    /// Seats in conflict, every one of them (I4).
    #[error("seats are not available")]
    Unavailable(Vec<SeatConflict>),
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// The same request is being worked on.
    #[error("the same request is being worked on")]
    InProgress,
    /// Postgres failed before anything was written.
    #[error(transparent)]
    Pg(#[from] PgError),
    /// The hold could not be placed.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// Places a hold, whole or not at all.
///
/// # Errors
/// [`PlaceHoldError`].
pub async fn place_hold(stores: &Stores, request: HoldRequest) -> Result<Answered<Reservation>, PlaceHoldError> {
    let HoldRequest { event, buyer, seats, idempotency } = request;
    let begun = std::time::Instant::now();
    let asked = (event, &buyer, seats.as_slice());
    let answered = match &idempotency {
        None => match hold(stores, asked, None).await {
            Ok(held) => held.map(Answered::New).ok_or(PlaceError::Refused.into()),
            Err(refusal) => Err(refusal),
        },
        Some(repeat) => hold_once(stores, asked, repeat).await,
    };
    let outcome = outcome_name(&answered);
    metrics::counter!("holdfast_holds_total", "outcome" => outcome).increment(1);
    metrics::histogram!("holdfast_hold_duration_seconds", "outcome" => outcome).record(begun.elapsed());
    answered
}

/// Repeats are marked before the first answer is looked for: whoever is marked later finds the answer of whoever was
/// marked before. Without Redis they run beside each other, and Postgres lets one of them through.
async fn hold_once(
    stores: &Stores,
    asked: (EventId, &Buyer, &[SeatRef]),
    repeat: &Idempotent<Reservation>,
) -> Result<Answered<Reservation>, PlaceHoldError> {
    let marked = stores.redis.begin_request(&repeat.key.caller, &repeat.key.key).await;
    let answered = match known_answer(stores, repeat).await {
        Ok(None) if matches!(marked, Ok(false)) => Err(PlaceHoldError::InProgress),
        Ok(None) => match hold(stores, asked, Some(repeat)).await {
            Ok(Some(held)) => Ok(Answered::New(held)),
            Ok(None) => answer_or(stores, repeat, PlaceHoldError::InProgress).await,
            // What is in the way may be the same request's own hold.
            Err(refusal @ (PlaceHoldError::Unavailable(_) | PlaceHoldError::BuyerLimit { .. })) if marked.is_err() => {
                answer_or(stores, repeat, refusal).await
            }
            Err(refusal) => Err(refusal),
        },
        Ok(Some(answer)) => Ok(answer),
        Err(error) => Err(error),
    };
    if matches!(marked, Ok(true)) {
        let _ends_by_itself = stores.redis.end_request(&repeat.key.caller, &repeat.key.key).await;
    }
    answered
}

async fn answer_or(
    stores: &Stores,
    repeat: &Idempotent<Reservation>,
    refusal: PlaceHoldError,
) -> Result<Answered<Reservation>, PlaceHoldError> {
    known_answer(stores, repeat).await?.ok_or(refusal)
}

async fn known_answer(
    stores: &Stores,
    repeat: &Idempotent<Reservation>,
) -> Result<Option<Answered<Reservation>>, PlaceHoldError> {
    match stores.pg.known_key(&repeat.key).await? {
        KnownKey::New => Ok(None),
        KnownKey::Answered(answer) => Ok(Some(Answered::Replayed(answer))),
        KnownKey::Reused => Err(PlaceHoldError::KeyReused),
    }
}

fn outcome_name(answered: &Result<Answered<Reservation>, PlaceHoldError>) -> &'static str {
    match answered {
        Ok(Answered::New(_)) => "held",
        Ok(Answered::Replayed(_)) => "replayed",
        Err(PlaceHoldError::Unavailable(_)) => "conflict",
        Err(PlaceHoldError::TooManySeats { .. } | PlaceHoldError::BuyerLimit { .. }) => "limit",
        Err(PlaceHoldError::Pg(_) | PlaceHoldError::Place(_)) => "failed",
        Err(_) => "refused",
    }
}

/// None: the idempotency key was answered by another request meanwhile.
async fn hold(
    stores: &Stores,
    (event, buyer, seats): (EventId, &Buyer, &[SeatRef]),
    repeat: Option<&Idempotent<Reservation>>,
) -> Result<Option<Reservation>, PlaceHoldError> {
    let asked_at = std::time::Instant::now();
    let sheet = stores.book.sheet(event).await?.ok_or(PlaceHoldError::UnknownEvent)?;
    let is_old = sheet.is_older_than(asked_at);
    let sheet = match hold_by(stores, sheet, (buyer, seats), repeat).await {
        Ok(Tried::Done(done)) => return Ok(*done),
        // The event has changed since it was looked at.
        Ok(Tried::Stale) => stores.book.fresh_sheet(event).await?,
        // Perhaps it has: who has just read that it is on sale must not be refused by an older look.
        Err(PlaceHoldError::NotOnSale(_) | PlaceHoldError::SalesClosed) if is_old => {
            stores.book.sheet_since(event, asked_at).await?
        }
        Err(error) => return Err(error),
    };
    let sheet = sheet.ok_or(PlaceHoldError::UnknownEvent)?;
    match hold_by(stores, sheet, (buyer, seats), repeat).await? {
        Tried::Done(done) => Ok(*done),
        Tried::Stale => Err(PlaceError::Unavailable.into()),
    }
}

enum Tried {
    Done(Box<Option<Reservation>>),
    Stale,
}

async fn hold_by(
    stores: &Stores,
    sheet: Arc<EventSheet>,
    (buyer, seats): (&Buyer, &[SeatRef]),
    repeat: Option<&Idempotent<Reservation>>,
) -> Result<Tried, PlaceHoldError> {
    let plan = Arc::new(plan_hold(stores, sheet, buyer, seats)?);
    let gate = take_gates(stores, &plan).await?;
    stores.faults.pass(FaultPoint::HoldGateTaken).await;
    if let Some(now_ms) = gate {
        // As long as the gate stands; the commit's own showing writes the deadline itself.
        let deadline = plan.sheet.event.hold_deadline(from_ms(now_ms)).min(from_ms(now_ms + stores.timing.gate_ms));
        if stores.redis.register_deadlines(&[(plan.reservation, to_ms(deadline))]).await.is_err() {
            stores.note_redis_missed();
        }
    } else {
        stores.note_redis_missed();
    }
    stores.faults.pass(FaultPoint::HoldDeadlineRegistered).await;
    let outcome = stores.lanes.place(new_hold(&plan, repeat)).await;
    stores.faults.pass(FaultPoint::HoldCommitted).await;
    match outcome {
        Ok(HoldOutcome::Held(times)) => {
            show_hold(stores, &plan, times).await;
            Ok(Tried::Done(Box::new(Some(plan.reservation_at(times)))))
        }
        Ok(refused) => refuse(stores, &plan, refused).await,
        // Perhaps it is committed: the gate lapses by itself, the deadline ends what there may be.
        Err(PlaceError::Unknown) => Err(PlaceError::Unknown.into()),
        Err(error) => {
            undo_gate(stores, &plan).await;
            Err(error.into())
        }
    }
}

async fn refuse(stores: &Stores, plan: &Arc<Plan>, outcome: HoldOutcome) -> Result<Tried, PlaceHoldError> {
    if !matches!(outcome, HoldOutcome::Conflict(_)) {
        undo_gate(stores, plan).await;
    }
    match outcome {
        HoldOutcome::Conflict(taken) => Err(refuse_taken(stores, plan, taken).await),
        HoldOutcome::Held(_) | HoldOutcome::AnsweredBefore => Ok(Tried::Done(Box::new(None))),
        HoldOutcome::BuyerLimit { owned } => {
            let max = plan.sheet.event.rules.seats_per_buyer_max.unwrap_or(0);
            Err(PlaceHoldError::BuyerLimit { max, owned })
        }
        HoldOutcome::Stale => {
            let now = stores.pg.now().await?;
            let sheet = stores.book.fresh_sheet(plan.sheet.event.id).await?.ok_or(PlaceHoldError::UnknownEvent)?;
            check_sale(&sheet.event, now)?;
            Ok(Tried::Stale)
        }
    }
}

/// Redis let this through: it showed seats as available that Postgres had given to somebody else. They are shown as they
/// are before the gate in front of them is given back: nobody is to see them available in between.
async fn refuse_taken(stores: &Stores, plan: &Arc<Plan>, taken: Vec<(SeatId, SeatStatus)>) -> PlaceHoldError {
    // A task of its own, which a crash of this flow does not end.
    let stores = Stores { faults: Faults::default(), ..stores.clone() };
    let healing = Arc::clone(plan);
    let seats: Vec<SeatId> = taken.iter().map(|(seat, _)| *seat).collect();
    let undone = tokio::spawn(async move {
        for key in &healing.blocks {
            let Some(block) = healing.sheet.map.block(&key.block.block) else { continue };
            if let Err(error) = heal_some(&stores, &healing.sheet, (block, &seats)).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "a taken seat is not healed yet");
            }
        }
        undo_gate(&stores, &healing).await;
        // The rest of the block may be as wrong; nobody waits for that.
        tokio::spawn(async move {
            for key in &healing.blocks {
                heal_block(&stores, &healing.sheet, &key.block).await;
            }
        });
    });
    let _its_panic_is_logged = undone.await;
    let conflicts = taken.into_iter().filter_map(|(seat, status)| {
        let index = plan.seats.iter().position(|planned| planned.id == seat)?;
        Some(SeatConflict { index, seat, status })
    });
    refused(conflicts.collect())
}

fn check_sale(event: &Event, now: Instant) -> Result<(), PlaceHoldError> {
    match event.sale_at(now) {
        SaleState::Open => Ok(()),
        SaleState::NotYet(opens) => Err(PlaceHoldError::NotOnSale(opens)),
        SaleState::Over if event.status == EventStatus::Cancelled => Err(PlaceHoldError::EventCancelled),
        SaleState::Over => Err(PlaceHoldError::SalesClosed),
    }
}

/// Takes the gate of every block, in one order for all; gives all back where one is refused. Some(Redis's clock), or
/// none where Redis is away: then Postgres alone decides.
async fn take_gates(stores: &Stores, plan: &Plan) -> Result<Option<i64>, PlaceHoldError> {
    let mut conflicts = Vec::new();
    let mut now = None;
    let hold = (&plan.buyer, plan.sheet.event.id, plan.reservation);
    for block in &plan.blocks {
        match stores.redis.take_gate(&block.block, &block.keys, hold, stores.timing).await {
            Ok(Gate::Taken { now_ms }) => now = Some(now_ms),
            Ok(Gate::Refused(refused)) => {
                let conflict = |(at, status): (usize, SeatStatus)| {
                    let index = *block.indices.get(at)?;
                    Some(SeatConflict { index, seat: plan.seats[index].id, status })
                };
                conflicts.extend(refused.into_iter().filter_map(conflict));
            }
            Err(_away) => return if conflicts.is_empty() { Ok(None) } else { Err(refused(conflicts)) },
        }
    }
    if conflicts.is_empty() {
        return Ok(now);
    }
    if now.is_some() {
        release_gate(stores, plan).await;
    }
    Err(refused(conflicts))
}

fn refused(mut conflicts: Vec<SeatConflict>) -> PlaceHoldError {
    conflicts.sort_unstable_by_key(|conflict| conflict.index);
    PlaceHoldError::Unavailable(conflicts)
}

async fn undo_gate(stores: &Stores, plan: &Plan) {
    release_gate(stores, plan).await;
    let _orphan_is_harmless = stores.redis.forget_deadlines(&[plan.reservation]).await;
}

async fn release_gate(stores: &Stores, plan: &Plan) {
    let event = (plan.sheet.event.id, &plan.sheet.event.zone);
    let showing = Showing::Released(plan.reservation);
    for block in &plan.blocks {
        // If this fails, the gate opens by itself in seconds.
        let grace = stores.timing.bucket_grace_ms;
        let _lapses = stores.redis.show_seats(&block.block, &block.keys, event, &showing, grace).await;
    }
}

async fn show_hold(stores: &Stores, plan: &Plan, times: HeldTimes) {
    let owner = BucketOwner {
        reservation: plan.reservation,
        buyer: plan.buyer.clone(),
        created_at: times.created_at,
        deadline: Some(times.expires_at),
    };
    let showing = Showing::Owned(SeatStatus::Held, owner);
    let event = (plan.sheet.event.id, &plan.sheet.event.zone);
    let mut shown = Ok(());
    let mut foreign = 0;
    for block in &plan.blocks {
        let grace = stores.timing.bucket_grace_ms;
        let changed = stores.redis.show_seats(&block.block, &block.keys, event, &showing, grace).await;
        foreign += changed.as_ref().map_or(0, |shown| shown.foreign);
        shown = shown.and(changed.map(|_| ()));
    }
    stores.faults.pass(FaultPoint::HoldShown).await;
    // Until all of it is shown, the index entry of before the commit has the sweep look at it again.
    let mut is_registered = true;
    if shown.is_ok() {
        let deadline_ms = to_ms(times.expires_at);
        let moved = MovedDeadline { reservation: plan.reservation, deadline_ms, over_at_ms: monotonic_ms() };
        let moved = stores.redis.move_deadlines(&[moved]).await;
        shown = moved.map(|missing| is_registered = missing.is_empty());
    }
    if shown.is_err() {
        stores.note_redis_missed();
    } else if foreign > 0 || !is_registered {
        // The commit took longer than the gate stood: somebody else's gate, a healing or a loss of Redis came between. Or
        // it is over already, by a buyer who learned of the commit before its own answer: what is over must not be
        // registered again.
        show_after_change(stores, plan.reservation).await;
    }
}
