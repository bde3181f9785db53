//! What a hold is made from: the seats that were asked for, resolved against the map, priced, and sorted by block.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::id::{Buyer, ReservationId};
use crate::label::Label;
use crate::money::Money;
use crate::reservation::{Reservation, ReservationState, ReservedSeat};
use crate::runtime::clock::new_uuid;
use crate::seat::SeatRef;
use crate::seat_map::Seat;
use crate::store::pg::holds::{Answer, HeldTimes, NewHold};
use crate::store::redis::keys::BlockKey;

use super::{EventSheet, Idempotent, PlaceHoldError, Stores, check_sale};

/// A hold whose seats are known and priced.
pub(super) struct Plan {
    pub(super) sheet: Arc<EventSheet>,
    pub(super) reservation: ReservationId,
    pub(super) buyer: Buyer,
    pub(super) seats: Vec<Seat>,
    pub(super) prices: Vec<i64>,
    /// Its blocks, in one canonical order.
    pub(super) blocks: Vec<PlanBlock>,
}

pub(super) struct PlanBlock {
    pub(super) block: BlockKey,
    /// Into the plan's seats.
    pub(super) indices: Vec<usize>,
    /// Those seats' keys.
    pub(super) keys: Vec<String>,
}

/// Resolves, prices and sorts what was asked for; refuses what needs no store to be refused.
pub(super) fn plan_hold(
    stores: &Stores,
    sheet: Arc<EventSheet>,
    buyer: &Buyer,
    asked: &[SeatRef],
) -> Result<Plan, PlaceHoldError> {
    check_sale(&sheet.event, sheet.now())?;
    if asked.is_empty() {
        return Err(PlaceHoldError::NoSeats);
    }
    let max = sheet.event.rules.seats_per_reservation_max;
    if asked.len() > usize::try_from(max).unwrap_or(0) {
        return Err(PlaceHoldError::TooManySeats { max });
    }
    let found: Vec<Option<&Seat>> = asked.iter().map(|seat| sheet.map.resolve(seat)).collect();
    let priced = |seat: &&Seat| sheet.price(seat).is_some();
    let unknown = |(index, seat): (usize, &Option<&Seat>)| seat.filter(priced).is_none().then_some(index);
    let unknown: Vec<usize> = found.iter().enumerate().filter_map(unknown).collect();
    if !unknown.is_empty() {
        return Err(PlaceHoldError::UnknownSeats(unknown));
    }
    let seats: Vec<Seat> = found.into_iter().flatten().cloned().collect();
    let repeats =
        |(index, seat): (usize, &Seat)| seats[..index].iter().any(|earlier| earlier.id == seat.id).then_some(index);
    let repeated: Vec<usize> = seats.iter().enumerate().filter_map(repeats).collect();
    if !repeated.is_empty() {
        return Err(PlaceHoldError::RepeatedSeats(repeated));
    }
    let prices = seats.iter().filter_map(|seat| sheet.price(seat)).collect();
    Ok(Plan {
        blocks: blocks_of(stores, &sheet, &seats),
        reservation: ReservationId(new_uuid()),
        buyer: buyer.clone(),
        prices,
        seats,
        sheet,
    })
}

/// Seats by block: blocks are always taken in the order of their labels, so that two holds never wait for each other.
fn blocks_of(stores: &Stores, sheet: &EventSheet, seats: &[Seat]) -> Vec<PlanBlock> {
    let mut blocks: BTreeMap<Label, PlanBlock> = BTreeMap::new();
    for (index, seat) in seats.iter().enumerate() {
        let block = sheet.map.block_of(seat);
        let entry = blocks.entry(block.block.clone()).or_insert_with(|| PlanBlock {
            block: sheet.block_key(block),
            indices: Vec::new(),
            keys: Vec::new(),
        });
        entry.indices.push(index);
        entry.keys.push(stores.redis.keys().seat(&entry.block, &seat.column, &seat.row));
    }
    blocks.into_values().collect()
}

/// What Postgres is asked for.
pub(super) fn new_hold(plan: &Arc<Plan>, repeat: Option<&Idempotent<Reservation>>) -> NewHold {
    let event = &plan.sheet.event;
    let idempotency = repeat.map(|repeat| {
        let (plan, respond) = (Arc::clone(plan), Arc::clone(&repeat.respond));
        let answer: Answer = Box::new(move |times: &HeldTimes| respond(&plan.reservation_at(*times)));
        (repeat.key.clone(), answer)
    });
    NewHold {
        reservation: plan.reservation,
        event: event.id,
        revision: event.revision,
        buyer: plan.buyer.clone(),
        seats_per_buyer_max: event.rules.seats_per_buyer_max,
        seats: plan.seats.iter().zip(&plan.prices).map(|(seat, price)| (seat.id, *price)).collect(),
        currency: event.currency,
        idempotency,
    }
}

impl Plan {
    /// The reservation that this becomes.
    pub(super) fn reservation_at(&self, times: HeldTimes) -> Reservation {
        let map = &self.sheet.map;
        let mut seats: Vec<(&Seat, i64)> = self.seats.iter().zip(self.prices.iter().copied()).collect();
        seats.sort_by_key(|(seat, _)| (seat.block, seat.id));
        let seats: Vec<ReservedSeat> = seats
            .into_iter()
            .map(|(seat, price)| ReservedSeat {
                id: seat.id,
                block: map.block_of(seat).block.clone(),
                row: seat.row.clone(),
                column: seat.column.clone(),
                label: seat.label.to_string(),
                category: seat.category.to_string(),
                price,
            })
            .collect();
        Reservation {
            id: self.reservation,
            event: self.sheet.event.id,
            buyer: self.buyer.clone(),
            state: ReservationState::Pending,
            is_tidy: true,
            seats,
            amount: Money { amount: self.prices.iter().sum(), currency: self.sheet.event.currency },
            created_at: times.created_at,
            expires_at: times.expires_at,
            extends_until: times.extends_until,
            generation: 1,
            payments: Vec::new(),
            refunds: Vec::new(),
            read_at: times.created_at,
        }
    }
}
