//! What a history does through the engine's flows, and what the caller is told.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use domain::flow::block_seats::{BlockOrder, BlockSeatsError, block_seats};
use domain::flow::expire_reservations::expire_reservations;
use domain::flow::finalize_payment::{Gateways, PaymentProgress, finalize_payment};
use domain::flow::open_event::open_event;
use domain::flow::place_hold::{HoldRequest, PlaceHoldError, place_hold};
use domain::flow::read_block::{BlockReading, read_block};
use domain::flow::set_up_event::{SetUpEventError, end_sale, start_sale};
use domain::flow::start_payment::{PaymentOrder, StartPaymentError, start_payment};
use domain::flow::unhold::{ChangeReservationError, cancel_reservation, extend_reservation, extend_reservation_once};
use domain::flow::warm_up::{repair_if_missed, request_warm_up, warm_up};
use domain::flow::{Access, Answered, Idempotent, Stores, read_reservation};
use domain::id::{Buyer, EventId, PaymentId, ReservationId};
use domain::payment::{Payment, PaymentStatus, Provider};
use domain::queue::{JobId, NewJob, Queue};
use domain::reservation::{CancelReason, Reservation};
use domain::runtime::clock::new_uuid;
use domain::seat::SeatRef;
use domain::store::pg::PgError;
use domain::store::pg::claims::Blocking;
use domain::store::pg::idempotency::IdempotencyKey;
use domain::store::redis::deadlines::SweepSpans;
use domain::time::to_ms;
use serde_json::{Value, json};

/// A job as the queue has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its queue's name.
    pub queue: &'static str,
    /// Its id.
    pub id: String,
    /// Which handler runs it.
    pub kind: String,
    /// What the handler gets.
    pub payload: Value,
}

/// One thing that is done.
#[derive(Debug, Clone)]
pub enum Op {
    /// A buyer holds seats, by their numbers; with a key it may be repeated.
    Hold {
        /// By number.
        buyer: usize,
        /// By number.
        seats: Vec<usize>,
        /// The idempotency key's number.
        key: Option<usize>,
    },
    /// A reservation is cancelled.
    Cancel(ReservationId, CancelReason),
    /// A reservation is extended, once for each key.
    Extend(ReservationId, Option<usize>),
    /// A payment is started, once for each key.
    Pay(ReservationId, Option<usize>),
    /// A reservation is read.
    Read(ReservationId),
    /// A block's picture is read.
    Picture(usize),
    /// An operator blocks seats, or gives them back.
    Block(Vec<usize>, Blocking),
    /// An operator closes the sale.
    EndSale,
    /// An operator opens it again.
    StartSale,
    /// A worker runs a job. Without an acknowledgement it will come again.
    Run {
        /// The job.
        job: Job,
        /// Whether it is acknowledged once it is done.
        is_acknowledged: bool,
    },
    /// A worker looks at the deadline index, and queues what it claims; whether the server was replaced since.
    Sweep(Option<u32>),
    /// A process asks for a warm-up because it missed Redis.
    RepairMissed,
    /// A worker starts.
    StartWorker,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keyed = |key: &Option<usize>| key.map_or(String::new(), |key| format!(" with key {key}"));
        match self {
            Self::Hold { buyer, seats, key } => write!(f, "buyer {buyer} holds seats {seats:?}{}", keyed(key)),
            Self::Cancel(id, reason) => write!(f, "{id} is cancelled: {}", reason.as_str()),
            Self::Extend(id, key) => write!(f, "{id} is extended{}", keyed(key)),
            Self::Pay(id, key) => write!(f, "{id} is paid for{}", keyed(key)),
            Self::Read(id) => write!(f, "{id} is read"),
            Self::Picture(block) => write!(f, "block {block} is read"),
            Self::Block(seats, Blocking::Block) => write!(f, "seats {seats:?} are blocked"),
            Self::Block(seats, Blocking::Unblock) => write!(f, "seats {seats:?} are given back"),
            Self::EndSale => f.write_str("the sale is closed"),
            Self::StartSale => f.write_str("the sale is opened"),
            Self::Run { job, is_acknowledged } => {
                let end = if *is_acknowledged { "" } else { ", not acknowledged" };
                write!(f, "job {} {} runs{end}", job.kind, job.payload)
            }
            Self::Sweep(_) => f.write_str("a sweep"),
            Self::RepairMissed => f.write_str("a process looks whether it missed Redis"),
            Self::StartWorker => f.write_str("a worker starts"),
        }
    }
}

/// What a hold's caller is told, now or as it was the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The reservation.
    pub id: ReservationId,
    /// When it was made, ms.
    pub created_ms: i64,
    /// Its deadline, ms.
    pub expires_ms: i64,
    /// What it costs.
    pub amount: i64,
    /// Whether this is the first answer again.
    pub is_replay: bool,
}

/// What the caller is told.
#[derive(Debug)]
pub enum Told {
    /// Of a hold.
    Held(Result<Held, PlaceHoldError>),
    /// Of a cancellation, or an extension.
    Changed(Result<Option<Reservation>, ChangeReservationError>),
    /// Of a payment's start; none: the first answer again.
    Paying(Result<Option<Payment>, StartPaymentError>),
    /// Of a reading.
    Read(Result<Option<Reservation>, PgError>),
    /// Of a block's reading.
    Picture(Result<Option<BlockReading>, PgError>),
    /// Of a blocking.
    Blocked(Result<usize, BlockSeatsError>),
    /// Of the sale's opening or closing.
    Sale(Result<(), SetUpEventError>),
    /// A worker's verdict on a job: it is done, or comes again and why.
    Ran(Result<(), String>),
    /// The same of a payment's job.
    Finalized(PaymentId, Result<PaymentStatus, String>),
    /// Work inside the engine: how much of it.
    Worked(Result<usize, String>),
}

/// Whose flows they are, and on what.
pub struct Caller {
    /// One process.
    pub stores: Stores,
    /// The payment provider.
    pub gateways: Gateways,
    /// The event.
    pub event: EventId,
    /// Its seats by number, as callers name them.
    pub seats: Arc<Vec<SeatRef>>,
}

/// An op under way.
pub type Doing = Pin<Box<dyn Future<Output = Told>>>;

/// Does an op. Its future does nothing until it is polled.
pub fn perform(caller: Caller, op: Op) -> Doing {
    match op {
        Op::Hold { buyer, seats, key } => Box::pin(hold(caller, buyer, seats, key)),
        Op::Cancel(id, reason) => Box::pin(async move {
            Told::Changed(cancel_reservation(&caller.stores, &Access::Any, id, reason).await.map(Some))
        }),
        Op::Extend(id, key) => Box::pin(extend(caller, id, key)),
        Op::Pay(id, key) => Box::pin(pay(caller, id, key)),
        Op::Read(id) => Box::pin(async move { Told::Read(read_reservation(&caller.stores, &Access::Any, id).await) }),
        Op::Picture(block) => Box::pin(async move { Told::Picture(picture(&caller, block).await) }),
        Op::Block(seats, blocking) => Box::pin(async move {
            let seats = seats.iter().filter_map(|&seat| caller.seats.get(seat).cloned()).collect();
            let (actor, reason) = ("operator".to_owned(), "simulation".to_owned());
            let order = BlockOrder { event: caller.event, seats, blocking, actor, reason };
            Told::Blocked(block_seats(&caller.stores, order).await)
        }),
        Op::EndSale => Box::pin(async move { Told::Sale(end_sale(&caller.stores, caller.event).await.map(|_| ())) }),
        Op::StartSale => {
            Box::pin(async move { Told::Sale(start_sale(&caller.stores, caller.event).await.map(|_| ())) })
        }
        Op::Run { job, .. } => Box::pin(run_job(caller, job)),
        Op::Sweep(replaced) => Box::pin(async move { Told::Worked(sweep(&caller.stores, replaced).await) }),
        Op::RepairMissed => {
            Box::pin(async move { Told::Worked(Ok(usize::from(repair_if_missed(&caller.stores).await))) })
        }
        Op::StartWorker => Box::pin(async move {
            let asked = request_warm_up(&caller.stores, &format!("start-{}", new_uuid())).await;
            Told::Worked(asked.map(|()| 1).map_err(|error| error.to_string()))
        }),
    }
}

/// A buyer by number.
#[must_use]
pub fn buyer_name(buyer: usize) -> String {
    format!("buyer-{buyer}")
}

fn key_of(what: &str, key: usize) -> IdempotencyKey {
    IdempotencyKey { caller: "shop".to_owned(), key: format!("{what}-{key}"), fingerprint: format!("{what}-{key}") }
}

async fn hold(caller: Caller, buyer: usize, seats: Vec<usize>, key: Option<usize>) -> Told {
    let seats = seats.iter().filter_map(|&seat| caller.seats.get(seat).cloned()).collect();
    let Ok(buyer) = Buyer::parse(&buyer_name(buyer)) else { return Told::Held(Err(PlaceHoldError::NoSeats)) };
    let idempotency = key.map(|key| Idempotent {
        key: key_of("hold", key),
        respond: Arc::new(|held: &Reservation| {
            let (created_ms, expires_ms) = (to_ms(held.created_at), to_ms(held.expires_at));
            (201, json!({ "created": created_ms, "expires": expires_ms, "amount": held.amount.amount }).to_string())
        }),
    });
    let request = HoldRequest { event: caller.event, buyer, seats, idempotency };
    Told::Held(place_hold(&caller.stores, request).await.map(|answered| match answered {
        Answered::New(held) => Held {
            id: held.id,
            created_ms: to_ms(held.created_at),
            expires_ms: to_ms(held.expires_at),
            amount: held.amount.amount,
            is_replay: false,
        },
        Answered::Replayed(answer) => {
            let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            let number = |name: &str| body[name].as_i64().unwrap_or_default();
            Held {
                id: ReservationId(answer.resource.unwrap_or_default()),
                created_ms: number("created"),
                expires_ms: number("expires"),
                amount: number("amount"),
                is_replay: true,
            }
        }
    }))
}

async fn extend(caller: Caller, id: ReservationId, key: Option<usize>) -> Told {
    Told::Changed(match key {
        None => extend_reservation(&caller.stores, &Access::Any, id).await.map(Some),
        Some(key) => {
            let repeat = Idempotent { key: key_of("extend", key), respond: Arc::new(|_: &_| (200, String::new())) };
            extend_reservation_once(&caller.stores, &Access::Any, id, repeat).await.map(|answered| match answered {
                Answered::New(extended) => Some(extended),
                Answered::Replayed(_) => None,
            })
        }
    })
}

async fn pay(caller: Caller, reservation: ReservationId, key: Option<usize>) -> Told {
    let idempotency =
        key.map(|key| Idempotent { key: key_of("pay", key), respond: Arc::new(|_: &Payment| (202, String::new())) });
    let token = Some("tok_ok".to_owned());
    let order = PaymentOrder { reservation, provider: Provider::Fake, token, return_url: None, idempotency };
    Told::Paying(start_payment(&caller.stores, &Access::Any, order).await.map(|answered| match answered {
        Answered::New(payment) => Some(payment),
        Answered::Replayed(_) => None,
    }))
}

async fn picture(caller: &Caller, block: usize) -> Result<Option<BlockReading>, PgError> {
    let Some(sheet) = caller.stores.book.sheet(caller.event).await? else { return Ok(None) };
    match sheet.map.blocks().get(block) {
        Some(block) => read_block(&caller.stores, &sheet, block).await.map(Some),
        None => Ok(None),
    }
}

/// What a worker's handler does with a job: the flow, and the verdict.
async fn run_job(caller: Caller, job: Job) -> Told {
    let stores = &caller.stores;
    let id = |field: &str| job.payload[field].as_str().unwrap_or_default().to_owned();
    match job.kind.as_str() {
        "finalize-payment" => {
            let Ok(payment) = id("payment").parse::<PaymentId>() else {
                return Told::Ran(Err("no payment".to_owned()));
            };
            Told::Finalized(
                payment,
                match finalize_payment(stores, &caller.gateways, payment).await {
                    Ok(PaymentProgress::Ended(status)) => Ok(status),
                    Ok(other) => Err(format!("{other:?}")),
                    Err(error) => Err(format!("{error:?}")),
                },
            )
        }
        "expire-reservations" => {
            let due: Vec<(ReservationId, i64)> = serde_json::from_value(job.payload["due"].clone()).unwrap_or_default();
            let ids: Vec<ReservationId> = due.into_iter().map(|(id, _)| id).collect();
            Told::Ran(expire_reservations(stores, &ids).await.map(|_| ()).map_err(|error| format!("{error:?}")))
        }
        "open-event" => {
            let Ok(event) = id("event").parse::<EventId>() else { return Told::Ran(Err("no event".to_owned())) };
            Told::Ran(open_event(stores, event).await.map_err(|error| format!("{error:?}")))
        }
        "warm-up" => Told::Ran(warm_up(stores).await.map(|_| ()).map_err(|error| format!("{error:?}"))),
        other => Told::Ran(Err(format!("no handler for {other}"))),
    }
}

/// One look at the deadline index, as a worker's sweep has it, its grace aside.
async fn sweep(stores: &Stores, replaced: Option<u32>) -> Result<usize, String> {
    let spans = SweepSpans { since_ms: 0, grace_ms: 0, lease_ms: stores.timing.lease_ms, most: 1_000 };
    let seen = stores.redis.sweep(spans).await.map_err(|error| error.to_string())?;
    if !seen.claimed.is_empty() {
        let id = JobId::new("expire", new_uuid());
        let payload = json!({ "due": seen.claimed });
        let job = NewJob::new(Queue::Expiries, id, "expire-reservations", payload);
        stores.jobs.enqueue(&[job]).await.map_err(|error| error.to_string())?;
    }
    let asked = match (seen.epoch, replaced) {
        (None, _) => request_warm_up(stores, "lost").await,
        (Some(_), Some(run)) => request_warm_up(stores, &format!("run-{run}")).await,
        (Some(_), None) => Ok(()),
    };
    asked.map(|()| seen.claimed.len()).map_err(|error| error.to_string())
}
