//! What the handlers share.

use std::future::Future;
use std::sync::Arc;

use domain::flow::{Idempotent, Stores};
use domain::store::pg::idempotency::IdempotencyKey;
use tokio_util::task::TaskTracker;

use crate::auth::Identity;
use crate::mirror::BlockMirror;
use crate::problem::{Problem, ProblemCode};
use crate::routes::venue_maps::VenueMaps;
use crate::stream::{StreamSettings, Streams};

/// The public listener's state. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

struct Parts {
    stores: Stores,
    identity: Arc<Identity>,
    writes: TaskTracker,
    fake_provider: FakeProvider,
    maps: VenueMaps,
    mirror: BlockMirror,
    streams: Streams,
}

/// Whether payments may name the fake provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FakeProvider {
    /// For tests and demonstrations.
    Allowed,
    /// As in production.
    Refused,
}

impl App {
    /// The state over these stores. Must be called on a runtime, which runs the mirror.
    pub fn new(stores: Stores, identity: Arc<Identity>, fake_provider: FakeProvider, streams: StreamSettings) -> Self {
        let mirror = BlockMirror::new(stores.clone());
        let streams = Streams::new(mirror.clone(), streams);
        let (writes, maps) = (TaskTracker::new(), VenueMaps::default());
        Self(Arc::new(Parts { stores, identity, writes, fake_provider, maps, mirror, streams }))
    }

    /// The stores.
    pub fn stores(&self) -> &Stores {
        &self.0.stores
    }

    /// Keys, tokens and rates.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.0.identity
    }

    /// Whether payments may name the fake provider.
    pub fn fake_provider(&self) -> FakeProvider {
        self.0.fake_provider
    }

    /// The blocks that are being read.
    pub fn mirror(&self) -> &BlockMirror {
        &self.0.mirror
    }

    /// Who watches.
    pub(crate) fn streams(&self) -> &Streams {
        &self.0.streams
    }

    /// Ends every live stream, and tells each viewer when to come back.
    pub fn close_streams(&self) {
        self.0.streams.close();
    }

    /// The maps of venues as they are sent.
    pub(crate) fn maps(&self) -> &VenueMaps {
        &self.0.maps
    }

    /// Runs a write to its end, whatever becomes of the connection that asked for it: a client that hangs up must not
    /// stop a flow half-way.
    ///
    /// # Errors
    /// The write's own, or `internal` where it panicked.
    pub async fn write<T, E>(&self, write: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, Problem>
    where
        T: Send + 'static,
        E: Into<Problem> + Send + 'static,
    {
        match self.0.writes.spawn(write).await {
            Ok(done) => done.map_err(Into::into),
            Err(error) if error.is_panic() => {
                tracing::error!("a write panicked");
                Err(Problem::new(ProblemCode::Internal))
            }
            Err(_) => Err(Problem::new(ProblemCode::TimedOut)),
        }
    }

    /// Waits for the writes that are under way. No new ones may begin.
    pub async fn finish_writes(&self) {
        self.0.writes.close();
        self.0.writes.wait().await;
    }
}

/// How a request with a key is made repeatable: its first answer is `status` with what `body` makes of its result.
pub(crate) fn repeatable<T, B>(key: Option<IdempotencyKey>, status: u16, body: fn(&T) -> B) -> Option<Idempotent<T>>
where
    T: 'static,
    B: serde::Serialize + 'static,
{
    let key = key?;
    let respond = Arc::new(move |value: &T| (status, serde_json::to_string(&body(value)).unwrap_or_default()));
    Some(Idempotent { key, respond })
}
