//! An event's sheet as tests want it.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::event::{Event, EventRules, EventStatus};
use domain::flow::event_book::EventSheet;
use domain::id::{BlockId, EventId, SeatId, VenueId};
use domain::label::Label;
use domain::seat_map::{Block, Seat, SeatMap};
use domain::time::{VenueZone, from_ms};

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

/// A sheet of one block; seats by row, column and category.
pub(crate) fn sheet(seats: &[(&str, &str, &str)], prices: &[(&str, i64)]) -> Arc<EventSheet> {
    let zone = VenueZone::parse("Asia/Seoul").unwrap();
    let starts_at = zone.read("2026-12-01T19:00:00").unwrap();
    let event = Event {
        id: EventId("0190b0c4-0000-7000-8000-000000000001".parse().unwrap()),
        venue: VenueId("0190b0c4-0000-7000-8000-000000000002".parse().unwrap()),
        zone,
        title: "A match".to_owned(),
        date_key: "20261201".to_owned(),
        starts_at,
        sales_open_at: None,
        sales_close_at: None,
        currency: "KRW".parse().unwrap(),
        prices: prices.iter().map(|(category, amount)| ((*category).to_owned(), *amount)).collect(),
        rules: EventRules {
            hold_ttl_ms: 600_000,
            payment_window_ms: 300_000,
            extensions_max: 0,
            seats_per_reservation_max: 8,
            seats_per_buyer_max: None,
        },
        status: EventStatus::OnSale,
        revision: 1,
        blocks_prepared: 1,
        blocks_total: 1,
    };
    let block =
        Block { id: BlockId(1), block: label("가 \"1\""), names: BTreeMap::new(), tier: None, seats: 0..seats.len() };
    let seat = |(index, (row, column, category)): (usize, &(&str, &str, &str))| Seat {
        id: SeatId(i64::try_from(index).unwrap() + 7),
        block: 0,
        row: label(row),
        column: label(column),
        label: format!("{row}-{column}").into(),
        category: (*category).into(),
        x: 0.0,
        y: 0.0,
    };
    let map = SeatMap::new(event.venue, vec![block], seats.iter().enumerate().map(seat).collect());
    Arc::new(EventSheet::new(event, Arc::new(map), from_ms(0)))
}
