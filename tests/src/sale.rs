//! An event on sale, its seats named as people name them.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::event::EventRules;
use domain::flow::event_book::EventSheet;
use domain::flow::expire_reservations::expire_reservations;
use domain::flow::import_venue::{ImportMode, VenueFile, import_venue};
use domain::flow::open_event::open_event;
use domain::flow::place_hold::{HoldRequest, PlaceHoldError, place_hold};
use domain::flow::read_block::{BlockReading, read_block};
use domain::flow::set_up_event::{EventPlan, create_event, start_sale};
use domain::flow::start_payment::{PaymentOrder, StartPaymentError, start_payment};
use domain::flow::{Access, Answered, Stores};
use domain::id::{Buyer, EventId, ReservationId};
use domain::import::{MapFormat, export_csv};
use domain::label::Label;
use domain::payment::{Payment, Provider};
use domain::reservation::Reservation;
use domain::seat::{SeatRef, SeatStatus};
use domain::venue::VenueMap;

use crate::stores::TestStores;

/// What an event is made from; [`SalePlan::default`] is block `B1` with rows A, B, C of ten seats at 50,000 won.
#[derive(Debug, Clone)]
pub struct SalePlan {
    /// The venue's file.
    pub csv: String,
    /// The venue's name.
    pub venue: String,
    /// Minor units, the same for every category.
    pub price: i64,
    /// ISO 4217.
    pub currency: &'static str,
    /// The rules.
    pub rules: EventRules,
    /// When holds begin, as an organiser writes it.
    pub sales_open_at: Option<String>,
    /// When holds end.
    pub sales_close_at: Option<String>,
}

impl Default for SalePlan {
    fn default() -> Self {
        Self::of_rows(&[("B1", "A", 10), ("B1", "B", 10), ("B1", "C", 10)])
    }
}

impl SalePlan {
    /// A venue of rows: block, row, and how many seats, numbered from 1.
    #[must_use]
    pub fn of_rows(rows: &[(&str, &str, usize)]) -> Self {
        let seats = rows.iter().flat_map(|&(block, row, seats)| {
            (1..=seats).map(move |seat| (block.to_owned(), row.to_owned(), seat.to_string()))
        });
        Self::of_seats(seats)
    }

    /// A venue of seats: block, row, column.
    #[must_use]
    pub fn of_seats(seats: impl IntoIterator<Item = (String, String, String)>) -> Self {
        let quoted = |text: String| format!("\"{}\"", text.replace('"', "\"\""));
        let lines = seats
            .into_iter()
            .map(|(block, row, column)| format!("{},{},{},Seat\n", quoted(block), quoted(row), quoted(column)));
        Self {
            csv: std::iter::once("block,row,column,category\n".to_owned()).chain(lines).collect(),
            venue: "The house".to_owned(),
            price: 50_000,
            currency: "KRW",
            rules: EventRules {
                hold_ttl_ms: 600_000,
                payment_window_ms: 300_000,
                extensions_max: 0,
                seats_per_reservation_max: 8,
                seats_per_buyer_max: None,
            },
            sales_open_at: None,
            sales_close_at: None,
        }
    }

    /// A venue from a map, such as a demo venue's.
    #[must_use]
    pub fn of_map(map: &VenueMap) -> Self {
        Self { csv: export_csv(map), ..Self::of_seats([]) }
    }

    /// With a hold that lasts so long.
    #[must_use]
    pub fn ttl_ms(mut self, hold_ttl_ms: i64) -> Self {
        self.rules.hold_ttl_ms = hold_ttl_ms;
        self
    }

    /// With a payment window of that length.
    #[must_use]
    pub fn window_ms(mut self, payment_window_ms: i64) -> Self {
        self.rules.payment_window_ms = payment_window_ms;
        self
    }

    /// With a limit for each buyer.
    #[must_use]
    pub fn per_buyer(mut self, seats: i32) -> Self {
        self.rules.seats_per_buyer_max = Some(seats);
        self
    }
}

/// An event on sale.
#[derive(Debug, Clone)]
pub struct Sale {
    /// The event.
    pub event: EventId,
    /// The event and its seats, as they were when the sale began.
    pub sheet: Arc<EventSheet>,
}

impl Sale {
    /// Imports the venue, makes the event and puts it on sale, driving the job's flow at once.
    pub async fn open(stores: &Stores, plan: SalePlan) -> Self {
        let event = Self::draft(stores, plan).await;
        start_sale(stores, event).await.expect("the sale starts");
        open_event(stores, event).await.expect("the event opens");
        // The sweep would look at the event once more, two seconds later, and find nothing to do. Where Redis is away
        // there is nothing to look at.
        let _without_redis = expire_reservations(stores, &[ReservationId(event.0)]).await;
        Self::of(stores, event).await
    }

    /// Imports the venue and makes the event, not on sale yet.
    pub async fn draft(stores: &Stores, plan: SalePlan) -> EventId {
        let file = VenueFile {
            format: MapFormat::Csv,
            name: plan.venue,
            time_zone: "Asia/Seoul".to_owned(),
            bytes: plan.csv.into_bytes(),
            mode: ImportMode::Store,
        };
        let import = import_venue(stores, file).await.expect("the venue is sound");
        let prices: BTreeMap<String, i64> =
            import.map.categories.iter().map(|category| (category.category.clone(), plan.price)).collect();
        let event = EventPlan {
            venue: import.venue.expect("it is stored").id,
            title: "An evening".to_owned(),
            starts_at: "2030-04-10T18:30".to_owned(),
            sales_open_at: plan.sales_open_at,
            sales_close_at: plan.sales_close_at,
            currency: plan.currency.parse().expect("a currency"),
            prices,
            rules: plan.rules,
        };
        create_event(stores, event).await.expect("the event is sound").id
    }

    /// An event that is on sale already.
    pub async fn of(stores: &Stores, event: EventId) -> Self {
        let sheet = stores.book.fresh_sheet(event).await.unwrap().expect("the event is there");
        Self { event, sheet }
    }

    /// Makes a process look at the event again after time was moved: by itself it would do so within a second.
    pub async fn look_again(&self, stores: &Stores) {
        stores.book.fresh_sheet(self.event).await.unwrap().expect("the event is there");
    }

    /// A seat by its row and column in the first block, `A-1`, or with its block, `B9/A-1`.
    #[must_use]
    pub fn seat(&self, name: &str) -> SeatRef {
        let first = self.sheet.map.blocks()[0].block.as_str();
        let (block, place) = name.split_once('/').unwrap_or((first, name));
        let (row, column) = place.rsplit_once('-').expect("a seat is named like A-1");
        seat_ref(block, row, column)
    }

    /// Holds seats for a buyer.
    ///
    /// # Errors
    /// The flow's own.
    pub async fn hold(&self, stores: &Stores, buyer: &str, seats: &[&str]) -> Result<Reservation, PlaceHoldError> {
        let seats = seats.iter().map(|name| self.seat(name)).collect();
        self.hold_refs(stores, buyer, seats).await
    }

    /// Holds seats for a buyer, named in any way.
    ///
    /// # Errors
    /// The flow's own.
    pub async fn hold_refs(
        &self,
        stores: &Stores,
        buyer: &str,
        seats: Vec<SeatRef>,
    ) -> Result<Reservation, PlaceHoldError> {
        let request = HoldRequest { event: self.event, buyer: a_buyer(buyer), seats, idempotency: None };
        match place_hold(stores, request).await? {
            Answered::New(reservation) => Ok(reservation),
            Answered::Replayed(_) => panic!("without a key nothing is replayed"),
        }
    }

    /// What a reader sees of a seat now.
    pub async fn status(&self, stores: &Stores, name: &str) -> SeatStatus {
        let SeatRef::Place { block, column, row } = self.seat(name) else { unreachable!("seats are named by place") };
        let block = self.sheet.map.block(&block).expect("the block is there");
        let seats = self.sheet.map.seats_of(block);
        let index = seats.iter().position(|seat| seat.row == row && seat.column == column).expect("the seat is there");
        let reading = self.read(stores, block.block.as_str()).await;
        reading.seats[index].status_at(reading.now_ms)
    }

    /// What the seat's bucket says, taken as it is: a reader that knows nothing of deadlines. None where it is absent.
    pub async fn bucket_status(&self, test: &TestStores, name: &str) -> Option<String> {
        let SeatRef::Place { block, column, row } = self.seat(name) else { unreachable!("seats are named by place") };
        let block = self.sheet.block_key(self.sheet.map.block(&block).expect("the block is there"));
        let key = test.stores.redis.keys().seat(&block, &column, &row);
        let json: Option<String> = redis::cmd("GET").arg(key).query_async(&mut test.redis().await).await.unwrap();
        let bucket: serde_json::Value = serde_json::from_str(&json?).expect("a bucket is JSON");
        bucket["status"].as_str().map(str::to_owned)
    }

    /// What a reader sees of a block.
    pub async fn read(&self, stores: &Stores, block: &str) -> BlockReading {
        let block = self.sheet.map.block(&Label::parse(block).unwrap()).expect("the block is there");
        read_block(stores, &self.sheet, block).await.expect("a block can be read")
    }
}

/// A seat by its labels.
///
/// # Panics
/// Where they are no labels.
#[must_use]
pub fn seat_ref(block: &str, row: &str, column: &str) -> SeatRef {
    let label = |text| Label::parse(text).expect("a label");
    SeatRef::Place { block: label(block), column: label(column), row: label(row) }
}

/// A buyer.
///
/// # Panics
/// Where the name is none.
#[must_use]
pub fn a_buyer(name: &str) -> Buyer {
    Buyer::parse(name).expect("a buyer's name")
}

/// Starts a payment through the fake provider.
///
/// # Errors
/// The flow's own.
pub async fn pay(stores: &Stores, reservation: ReservationId, token: &str) -> Result<Payment, StartPaymentError> {
    let order = PaymentOrder {
        reservation,
        provider: Provider::Fake,
        token: Some(token.to_owned()),
        return_url: None,
        idempotency: None,
    };
    match start_payment(stores, &Access::Any, order).await? {
        Answered::New(payment) => Ok(payment),
        Answered::Replayed(_) => panic!("without a key nothing is replayed"),
    }
}
