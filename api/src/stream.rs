//! The live stream of seats: server-sent events from this process's mirror.
//!
//! Whoever watches the same seats shares one topic: a task that looks at the mirror on every tick and notes what has
//! changed. A viewer is never queued for: it is told whatever is new once it can take more, several steps merged into
//! one, or a snapshot where it is too far behind or comes back with an id that cannot be continued (I6). A slow viewer
//! thus costs no memory, and delays nobody.
//!
//! A hold does not depend on a stream: opening and closing one changes nothing but who is told.

mod history;
mod told;
mod topic;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use domain::id::EventId;
use domain::label::Label;
use futures::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::mirror::BlockMirror;
use crate::problem::{Problem, ProblemCode};
use told::{EventName, Had};
use topic::{Topics, Watching};

pub(crate) use told::Form;

/// A line without meaning goes out when nothing else has for so long, so that proxies keep the connection.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// After how many milliseconds viewers come back, at least and at most: not all at once.
const RETRY_MS: std::ops::Range<u64> = 1_000..5_000;

/// How many streams are open at once.
#[derive(Debug, Clone, Copy, Args)]
pub struct StreamSettings {
    /// Live streams open at once in this process
    #[arg(long = "streams-max", env = "HOLDFAST_STREAMS_MAX", default_value_t = 15_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max: u32,
    /// Live streams open at once from one client address; many phones share one
    #[arg(long = "streams-per-address-max", env = "HOLDFAST_STREAMS_PER_ADDRESS_MAX", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub per_address_max: u32,
}

/// What is watched.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// All blocks of the event.
    Event,
    /// One block.
    Block(Label),
}

/// All streams of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Streams(Arc<Shared>);

struct Shared {
    topics: Topics,
    slots: Arc<Semaphore>,
    per_address: Arc<Mutex<HashMap<IpAddr, u32>>>,
    per_address_max: u32,
    closing: CancellationToken,
}

/// A place among the streams of an address.
struct AddressSlot {
    address: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
        metrics::gauge!("holdfast_streams").decrement(1.0);
    }
}

impl Streams {
    pub(crate) fn new(mirror: BlockMirror, settings: StreamSettings) -> Self {
        Self(Arc::new(Shared {
            topics: Topics::new(mirror),
            slots: Arc::new(Semaphore::new(usize::try_from(settings.max).unwrap_or(usize::MAX))),
            per_address: Arc::default(),
            per_address_max: settings.per_address_max,
            closing: CancellationToken::new(),
        }))
    }

    /// Ends every stream, and tells each viewer when to come back: to another process.
    pub(crate) fn close(&self) {
        self.0.closing.cancel();
    }

    /// The bytes for one viewer; `last_event_id` is what it says it has.
    ///
    /// # Errors
    /// `overloaded` (503) where the process has too many streams or is about to stop, `rate_limited` (429) where the
    /// address has, and what reading a block can fail with.
    pub(crate) async fn open(
        &self,
        address: Option<IpAddr>,
        (event, scope, form): (EventId, Scope, Form),
        last_event_id: Option<&str>,
    ) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + use<>, Problem> {
        let overloaded = || Problem::new(ProblemCode::Overloaded).retry_after_s(5);
        if self.0.closing.is_cancelled() {
            return Err(overloaded());
        }
        let slot = Arc::clone(&self.0.slots).try_acquire_owned().map_err(|_| overloaded())?;
        let address = address.map(|address| self.0.take_slot(address)).transpose()?;
        let topic = self.0.topics.watch(event, scope).await?;
        let had = match last_event_id {
            None => Had::Nothing,
            Some(text) => EventName::parse(text).map_or(Had::Unknown, Had::UpTo),
        };
        let viewer = Viewer {
            topic,
            form,
            had,
            greeted: false,
            ended: false,
            closing: self.0.closing.clone(),
            _slots: (slot, address),
        };
        Ok(futures::stream::unfold(viewer, Viewer::next))
    }
}

impl Shared {
    fn take_slot(&self, address: IpAddr) -> Result<AddressSlot, Problem> {
        let mut taken = self.per_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(address).or_default();
        if *count >= self.per_address_max {
            return Err(Problem::new(ProblemCode::RateLimited).retry_after_s(5));
        }
        *count += 1;
        metrics::gauge!("holdfast_streams").increment(1.0);
        Ok(AddressSlot { address, taken: Arc::clone(&self.per_address) })
    }
}

/// One open stream.
struct Viewer {
    topic: Watching,
    form: Form,
    had: Had,
    greeted: bool,
    ended: bool,
    closing: CancellationToken,
    _slots: (OwnedSemaphorePermit, Option<AddressSlot>),
}

impl Viewer {
    /// The next bytes, as soon as there are any; none once the stream has ended.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        if !std::mem::replace(&mut self.greeted, true) {
            // Before the first look: the viewer's clock for coming back is set whatever happens then.
            return Some((Ok(retry()), self));
        }
        loop {
            if let Some((name, bytes)) = self.topic.next(self.form, self.had) {
                self.had = Had::UpTo(name);
                return Some((Ok(bytes), self));
            }
            tokio::select! {
                goes_on = self.topic.changed() => if goes_on { continue },
                () = self.closing.cancelled() => {}
                () = tokio::time::sleep(HEARTBEAT) => return Some((Ok(Bytes::from_static(b":\n\n")), self)),
            }
            self.ended = true;
            return Some((Ok(retry()), self));
        }
    }
}

fn retry() -> Bytes {
    Bytes::from(format!("retry: {}\n\n", rand::random_range(RETRY_MS)))
}
