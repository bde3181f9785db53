//! The product: each way in which seats change hands, one file each. A flow touches Redis and Postgres in an order that
//! survives a crash at any point; each file lists its crash windows and names its fault points.
//!
//! HTTP handlers and jobs only translate: both go through here.

pub mod audit;
pub mod block_seats;
pub mod event_book;
pub mod expire_reservations;
mod faults;
pub mod finalize_payment;
pub mod hold_lanes;
pub mod import_venue;
pub mod open_event;
pub mod place_hold;
pub mod read_block;
pub mod repeat;
pub mod set_up_event;
pub mod show_reservation;
pub mod start_payment;
pub mod unhold;
pub mod warm_up;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::id::Buyer;
use crate::limits::Timing;
use crate::queue::{JobSender, QueuePrefix, QueueRedis};
use crate::reservation::Reservation;
use crate::runtime::clock::Clock;
use crate::runtime::settings::StoreSettings;
use crate::store::pg::idempotency::{IdempotencyKey, StoredAnswer};
use crate::store::pg::{Pg, PgError};
use crate::store::redis::Redis;
use crate::store::redis::keys::KeyScheme;
use crate::store::redis::server::{ClaimLayoutError, LayoutConflict};

use event_book::EventBook;
use hold_lanes::HoldLanes;

pub use faults::{FaultPoint, Faults};

/// Everything that a flow needs of the world. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    /// The truth about ownership.
    pub pg: Pg,
    /// The gate, the timer and the picture.
    pub redis: Redis,
    /// The queues.
    pub jobs: JobSender,
    /// Events and seat maps, as this process knows them.
    pub book: EventBook,
    /// Where holds share commits.
    pub lanes: HoldLanes,
    /// The spans that holds and expiries pace themselves by.
    pub timing: Timing,
    /// Where tests make it crash.
    pub faults: Faults,
    redis_missed: Arc<AtomicBool>,
}

/// Why the stores cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectStoresError {
    /// Not a URL of Postgres.
    #[error("DATABASE_URL is not a Postgres URL such as postgres://user:password@host:5432/name")]
    DatabaseUrl(#[source] sqlx::Error),
    /// Not a URL of Redis.
    #[error("REDIS_URL is not a Redis URL such as redis://host:6379/0")]
    RedisUrl(#[source] redis::RedisError),
    /// Not a URL of Redis.
    #[error("HOLDFAST_QUEUE_REDIS_URL is not a Redis URL such as redis://host:6379/0")]
    QueueRedisUrl(#[from] crate::queue::QueueRedisError),
    /// The prefix cannot be used.
    #[error(transparent)]
    Prefix(#[from] crate::store::redis::keys::PrefixError),
    /// The prefix cannot be used for queues.
    #[error(transparent)]
    QueuePrefix(#[from] crate::queue::QueuePrefixError),
    /// Limits that contradict each other.
    #[error(transparent)]
    Limits(#[from] crate::limits::LimitsError),
    /// The installation uses another layout.
    #[error(transparent)]
    Layout(#[from] LayoutConflict),
}

impl Stores {
    /// Prepares the stores; none of them need be there yet.
    ///
    /// # Errors
    /// [`ConnectStoresError`] where the settings cannot be used.
    pub fn connect(settings: &StoreSettings, clock: Clock) -> Result<Self, ConnectStoresError> {
        let timing = settings.timing();
        timing.check()?;
        let keys = KeyScheme::new(&settings.redis_prefix, settings.redis_cluster_tags)?;
        let pg = Pg::connect(&settings.database_url, settings.pg_connections, timing.statement_ms, clock.clone())
            .map_err(ConnectStoresError::DatabaseUrl)?;
        let redis = Redis::connect(&settings.redis_url, keys, clock).map_err(ConnectStoresError::RedisUrl)?;
        let queue_url = settings.queue_redis_url.as_ref().unwrap_or(&settings.redis_url);
        // A queue's name may hold no colon: apalis builds its own keys from it.
        let queue_prefix = QueuePrefix::new(&settings.redis_prefix.replace(':', "-"))?;
        Ok(Self {
            book: EventBook::new(pg.clone()),
            lanes: HoldLanes::start(pg.clone(), settings.hold_lanes),
            jobs: JobSender::new(QueueRedis::new(queue_url, queue_prefix)?),
            pg,
            redis,
            timing,
            faults: Faults::default(),
            redis_missed: Arc::default(),
        })
    }

    /// Writes down in which mode this installation's Redis is used, in Postgres and in Redis, or refuses to use it in
    /// a second one. A Redis that does not answer is no conflict: Postgres has said it already.
    ///
    /// # Errors
    /// Postgres failed, or another mode is in use.
    pub async fn claim_layout(&self) -> Result<(), ClaimLayoutFailure> {
        let wanted = self.redis.keys().mode();
        let found = self.pg.keep_installation_value("redis_layout", &wanted).await?;
        if found != wanted {
            return Err(LayoutConflict { found, wanted }.into());
        }
        match self.redis.claim_layout().await {
            Err(ClaimLayoutError::Conflict(conflict)) => Err(conflict.into()),
            Ok(()) | Err(ClaimLayoutError::Unavailable(_)) => Ok(()),
        }
    }

    /// Notes that a change could not be shown in Redis: a warm-up is due once it is back.
    pub(crate) fn note_redis_missed(&self) {
        self.redis_missed.store(true, Ordering::Relaxed);
    }

    /// Whether changes were made that Redis does not show; asking ends the matter.
    #[must_use]
    pub fn take_redis_missed(&self) -> bool {
        self.redis_missed.swap(false, Ordering::Relaxed)
    }
}

/// Why an installation's layout cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimLayoutFailure {
    /// Another mode is in use.
    #[error(transparent)]
    Conflict(#[from] LayoutConflict),
    /// Postgres failed.
    #[error(transparent)]
    Pg(#[from] PgError),
}

/// Who may see and change a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A key with that scope.
    Any,
    /// Its own buyer only: to all others it does not exist.
    Own(Buyer),
}

impl Access {
    /// Whether a buyer's things may be seen.
    #[must_use]
    pub fn covers(&self, buyer: &Buyer) -> bool {
        match self {
            Self::Any => true,
            Self::Own(own) => own == buyer,
        }
    }
}

/// Makes the first answer, status and body, of what was done.
pub type Respond<T> = Arc<dyn Fn(&T) -> (u16, String) + Send + Sync>;

/// How a request is made repeatable.
pub struct Idempotent<T> {
    /// The key and its fingerprint.
    pub key: IdempotencyKey,
    /// What the first answer is: status and body, kept byte for byte.
    pub respond: Respond<T>,
}

/// A request's outcome: done now, or answered before.
#[derive(Debug, Clone)]
pub enum Answered<T> {
    /// Done now.
    New(T),
    /// The key's first answer.
    Replayed(StoredAnswer),
}

/// A reservation that was asked for and may be seen.
///
/// # Errors
/// [`PgError`]; none where it does not exist for this caller.
pub async fn read_reservation(
    stores: &Stores,
    access: &Access,
    id: crate::id::ReservationId,
) -> Result<Option<Reservation>, PgError> {
    Ok(stores.pg.find_reservation(id).await?.filter(|reservation| access.covers(&reservation.buyer)))
}
