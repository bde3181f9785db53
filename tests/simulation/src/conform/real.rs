//! The engine's side: its flows on real stores.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use domain::event::EventRules;
use domain::flow::event_book::EventSheet;
use domain::flow::expire_reservations::expire_reservations;
use domain::flow::finalize_payment::{PaymentProgress, finalize_payment};
use domain::flow::import_venue::{ImportMode, VenueFile, import_venue};
use domain::flow::open_event::open_event;
use domain::flow::place_hold::{HoldRequest, PlaceHoldError, place_hold};
use domain::flow::set_up_event::{EventPlan, create_event, start_sale};
use domain::flow::start_payment::{PaymentOrder, start_payment};
use domain::flow::unhold::{cancel_reservation, extend_reservation};
use domain::flow::warm_up::warm_up;
use domain::flow::{Access, Answered, FaultPoint, Faults, Idempotent, Stores};
use domain::id::{Buyer, EventId, PaymentId, ReservationId, VenueId};
use domain::import::MapFormat;
use domain::payment::{PaymentStatus, Provider as ProviderName};
use domain::reservation::{CancelReason, Reservation};
use domain::runtime::clock::{Clock, new_uuid};
use domain::runtime::settings::StoreSettings;
use domain::seat::SeatRef;
use domain::store::pg::idempotency::IdempotencyKey;
use sqlx::ConnectOptions as _;
use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::sync::Notify;

use super::Ran;
use super::provider::Provider;
use crate::model::act::Act;
use crate::model::world::{Index, Plan};

/// One tick of the model in the engine: whatever the machine takes for one history is less.
pub(super) const TICK_MS: i64 = 60_000;

/// What an operation is answered, in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The hold stands.
    Held,
    /// The hold is refused for these seats.
    Refused(u8),
    /// A new payment is made.
    NewPayment(Index),
    /// A payment that stands is answered.
    StandingPayment(Index),
    /// So many expired now.
    Expired(usize),
    /// The payment has ended.
    Ended(PaymentStatus),
    /// The payment's job comes again.
    Unfinished,
    /// It is done.
    Done,
    /// It is refused.
    Refusal,
    /// It died half-way.
    Died,
}

/// A database of its own on given servers, and a venue in it.
pub struct Installation {
    pub(super) stores: Stores,
    pub(super) clock: Clock,
    pub(super) sql: PgPool,
    settings: StoreSettings,
    venue: VenueId,
}

impl Installation {
    /// Makes the database.
    ///
    /// # Panics
    /// Where the servers do not serve.
    pub async fn start(database_url: &str, redis_url: &str) -> Self {
        let nonce = new_uuid().simple().to_string();
        let nonce = &nonce[nonce.len() - 16..];
        let options: PgConnectOptions = database_url.parse().expect("a Postgres URL");
        let database = format!("holdfast_conform_{nonce}");
        let mut admin = options.connect().await.expect("Postgres answers");
        admin.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {database}"))).await.expect("a database is made");
        let settings = StoreSettings {
            database_url: options.database(&database).to_url_lossy().to_string(),
            redis_url: redis_url.to_owned(),
            queue_redis_url: None,
            redis_prefix: format!("c-{nonce}:"),
            redis_cluster_tags: false,
            redis_configure: false,
            pg_connections: 6,
            hold_lanes: 2,
            pg_statement_ms: 4_000,
        };
        let clock = Clock::default();
        let mut stores = Stores::connect(&settings, clock.clone()).expect("the settings can be used");
        // In the engine's ms a tick is long: gates and buckets must live as long as the model's.
        stores.timing.gate_ms = 2 * TICK_MS;
        stores.timing.bucket_grace_ms = 1_000 * TICK_MS;
        stores.pg.migrate().await.expect("the migrations run");
        stores.claim_layout().await.expect("a fresh installation has no layout yet");
        let sql = PgPoolOptions::new().max_connections(2).connect(&settings.database_url).await.expect("a way in");
        let file = VenueFile {
            format: MapFormat::Csv,
            name: "The house".to_owned(),
            time_zone: "Asia/Seoul".to_owned(),
            bytes: b"block,row,column,category\nB1,A,1,Seat\nB1,A,2,Seat\n".to_vec(),
            mode: ImportMode::Store,
        };
        let venue = import_venue(&stores, file).await.expect("the venue is sound").venue.expect("it is stored").id;
        Self { stores, clock, sql, settings, venue }
    }

    /// Removes the database and every key.
    ///
    /// # Panics
    /// Where the servers do not serve.
    pub async fn end(self) {
        self.lose_redis().await;
        self.sql.close().await;
        self.stores.pg.pool().close().await;
        let options: PgConnectOptions = self.settings.database_url.parse().expect("a Postgres URL");
        let database = options.get_database().expect("it has one").to_owned();
        let mut admin = options.database("postgres").connect().await.expect("Postgres answers");
        let drop = format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)");
        admin.execute(sqlx::AssertSqlSafe(drop)).await.expect("the database goes");
    }

    pub(super) async fn redis(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.settings.redis_url.as_str()).expect("a Redis URL");
        client.get_multiplexed_async_connection().await.expect("Redis answers")
    }

    async fn lose_redis(&self) {
        let mut connection = self.redis().await;
        let stem = self.settings.redis_prefix.trim_end_matches(':');
        let all: Vec<String> =
            redis::cmd("KEYS").arg(format!("{stem}*")).query_async(&mut connection).await.expect("Redis answers");
        if !all.is_empty() {
            let () = redis::cmd("UNLINK").arg(all).query_async(&mut connection).await.expect("Redis answers");
        }
    }
}

/// An event on sale, and which of its rows are which of the model's.
pub(super) struct Event<'a> {
    pub(super) installation: &'a Installation,
    pub(super) id: EventId,
    pub(super) sheet: Arc<EventSheet>,
    pub(super) provider: Provider,
    pub(super) reservations: Vec<Option<ReservationId>>,
    pub(super) payments: Vec<PaymentId>,
    /// The payment that the last operation made.
    pub(super) newest_payment: Option<PaymentId>,
    /// Postgres's clock when the model's stood at 0.
    pub(super) began_ms: i64,
}

impl<'a> Event<'a> {
    pub(super) async fn open(installation: &'a Installation, plan: &Plan) -> Self {
        let stores = &installation.stores;
        let event = EventPlan {
            venue: installation.venue,
            title: "An evening".to_owned(),
            starts_at: "2040-04-10T18:30".to_owned(),
            sales_open_at: None,
            sales_close_at: None,
            currency: "KRW".parse().expect("a currency"),
            prices: BTreeMap::from([("Seat".to_owned(), plan.price)]),
            rules: EventRules {
                hold_ttl_ms: i64::from(plan.hold_ttl) * TICK_MS,
                payment_window_ms: i64::from(plan.payment_window) * TICK_MS,
                extensions_max: plan.extensions_max,
                seats_per_reservation_max: 8,
                seats_per_buyer_max: None,
            },
        };
        // An earlier history may have left Redis lost.
        if stores.redis.epoch().await.expect("Redis answers").is_none() {
            warm_up(stores).await.expect("Redis is rebuilt");
        }
        let id = create_event(stores, event).await.expect("the event is sound").id;
        start_sale(stores, id).await.expect("the sale starts");
        open_event(stores, id).await.expect("the event opens");
        let sheet = stores.book.fresh_sheet(id).await.expect("Postgres answers").expect("the event is there");
        let began_ms = domain::time::to_ms(stores.pg.now().await.expect("Postgres answers"));
        let provider = Provider::default();
        Self {
            installation,
            id,
            sheet,
            provider,
            reservations: Vec::new(),
            payments: Vec::new(),
            newest_payment: None,
            began_ms,
        }
    }

    /// What nobody owns any more need not be kept in Redis: the next warm-ups are shorter.
    pub(super) async fn end(self) {
        let close = "UPDATE events SET status = 'cancelled' WHERE id = $1";
        sqlx::query(close).bind(self.id.0).execute(&self.installation.sql).await.expect("Postgres answers");
    }

    /// Runs the operation, and says how the engine answers.
    pub(super) async fn run(&mut self, ran: &Ran) -> Result<Outcome, String> {
        self.provider.expect(&ran.asked);
        let outcome = match ran.died_at {
            None => self.operate(&self.installation.stores, ran.act).await,
            Some(point) => self.die_at(point, ran.act).await?,
        };
        self.find_new_rows(ran.act).await;
        match self.provider.surprise() {
            Some(surprise) => Err(surprise),
            None => Ok(self.numbered(outcome)),
        }
    }

    /// The operation as a process that stops at `point` for ever.
    async fn die_at(&self, point: FaultPoint, act: Act) -> Result<Answer, String> {
        let reached = Arc::new(Notify::new());
        let mut stores = self.installation.stores.clone();
        let first = Mutex::new(Some(Arc::clone(&reached)));
        stores.faults = Faults::crash_where(move |passed| {
            let dies = passed == point;
            if dies && let Some(reached) = first.lock().ok().and_then(|mut first| first.take()) {
                reached.notify_one();
            }
            dies
        });
        tokio::select! {
            () = reached.notified() => Ok(Answer::Outcome(Outcome::Died)),
            outcome = self.operate(&stores, act) => Err(format!("it never came to {point:?}: {outcome:?}")),
        }
    }

    async fn operate(&self, stores: &Stores, act: Act) -> Answer {
        let reservation = |id: Index| self.reservations[usize::from(id)].expect("the model knows it has a row");
        match act {
            Act::Hold(buyer, seats) => self.hold(stores, buyer, seats).await,
            Act::Cancel(id) => {
                let done = cancel_reservation(stores, &Access::Any, reservation(id), CancelReason::User).await;
                Answer::of(done.is_ok())
            }
            Act::Extend(id) => Answer::of(extend_reservation(stores, &Access::Any, reservation(id)).await.is_ok()),
            Act::Pay(id) => {
                let order = PaymentOrder {
                    reservation: reservation(id),
                    provider: ProviderName::Fake,
                    token: None,
                    return_url: None,
                    idempotency: None,
                };
                match start_payment(stores, &Access::Any, order).await {
                    Ok(Answered::New(payment)) => Answer::Payment(payment.id),
                    Ok(Answered::Replayed(_)) | Err(_) => Answer::Outcome(Outcome::Refusal),
                }
            }
            Act::Deliver(payment) => {
                let id = self.payments[usize::from(payment)];
                match finalize_payment(stores, &self.provider.gateways(), id).await.expect("the stores answer") {
                    PaymentProgress::Ended(status) => Answer::Outcome(Outcome::Ended(status)),
                    PaymentProgress::Waiting { .. } | PaymentProgress::Unknown { .. } => {
                        Answer::Outcome(Outcome::Unfinished)
                    }
                }
            }
            Act::Sweep(id) | Act::Late(id) => {
                let ids: Vec<ReservationId> = self.reservations[usize::from(id)].into_iter().collect();
                let expired = expire_reservations(stores, &ids).await.expect("the stores answer");
                Answer::Outcome(Outcome::Expired(expired))
            }
            Act::WarmUp => {
                warm_up(stores).await.expect("Redis is rebuilt");
                Answer::of(true)
            }
            Act::Tick => {
                self.installation.clock.advance(TICK_MS);
                Answer::of(true)
            }
            Act::LoseRedis => {
                self.installation.lose_redis().await;
                Answer::of(true)
            }
            Act::BuyerActs(payment, charged) => {
                self.provider.buyer_acts(self.payments[usize::from(payment)], charged);
                Answer::of(true)
            }
            Act::Step(..) | Act::Crash(_) => Answer::of(true),
        }
    }

    async fn hold(&self, stores: &Stores, buyer: Index, seats: u8) -> Answer {
        let wanted: Vec<u8> = (0..2).filter(|seat| seats & (1 << seat) != 0).collect();
        let all = self.sheet.map.seats_of(&self.sheet.map.blocks()[0]);
        let refs: Vec<SeatRef> = wanted.iter().map(|seat| SeatRef::Id(all[usize::from(*seat)].id)).collect();
        let buyer = Buyer::parse(&format!("buyer-{buyer}")).expect("a buyer's name");
        let key = new_uuid().to_string();
        let request = |seats: &Vec<SeatRef>| HoldRequest {
            event: self.id,
            buyer: buyer.clone(),
            seats: seats.clone(),
            idempotency: Some(repeatable(&key)),
        };
        match place_hold(stores, request(&refs)).await {
            Ok(Answered::Replayed(_)) => panic!("a new key is no repeat"),
            // The same request again changes nothing: it has its first answer.
            Ok(Answered::New(_)) => match place_hold(stores, request(&refs)).await {
                Ok(Answered::Replayed(_)) => Answer::Outcome(Outcome::Held),
                again => panic!("asked again under its key, a hold is answered {again:?}"),
            },
            Err(PlaceHoldError::Unavailable(conflicts)) => {
                let bits = conflicts.iter().fold(0, |bits, conflict| bits | 1 << wanted[conflict.index]);
                Answer::Outcome(Outcome::Refused(bits))
            }
            Err(error) => panic!("a hold fails: {error}"),
        }
    }

    fn numbered(&self, answer: Answer) -> Outcome {
        let id = match answer {
            Answer::Outcome(outcome) => return outcome,
            Answer::Payment(id) => id,
        };
        let at = self.payments.iter().position(|known| *known == id).and_then(|at| Index::try_from(at).ok());
        let at = at.expect("its row was found");
        if self.newest_payment == Some(id) { Outcome::NewPayment(at) } else { Outcome::StandingPayment(at) }
    }
}

fn repeatable(key: &str) -> Idempotent<Reservation> {
    let key = IdempotencyKey { caller: "conform".to_owned(), key: key.to_owned(), fingerprint: "hold".to_owned() };
    Idempotent { key, respond: Arc::new(|held: &Reservation| (201, held.id.to_string())) }
}

/// How the engine answers, its rows not numbered yet.
#[derive(Debug)]
pub(super) enum Answer {
    Outcome(Outcome),
    Payment(PaymentId),
}

impl Answer {
    fn of(done: bool) -> Self {
        Self::Outcome(if done { Outcome::Done } else { Outcome::Refusal })
    }
}
