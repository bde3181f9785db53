//! A topic: what is watched by any number of viewers, and the task that looks at the mirror for all of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Monotonic};

use bytes::Bytes;
use domain::flow::event_book::EventSheet;
use domain::id::EventId;
use tokio::sync::watch;

use super::Scope;
use super::history::BlockPicture;
use super::told::{EventName, Form, Had, Told};
use crate::mirror::{BlockMirror, Frame, Picture, ReadError, Seen};

/// How often the mirror is looked at: what changes within one tick is told at once.
const TICK: Duration = Duration::from_millis(100);
/// The longest tick: looking at a whole stadium never takes more than a tenth of a core.
const TICK_MAX: Duration = Duration::from_millis(1_000);
/// A topic that nobody watches is kept for so long, so that who comes back can go on where it was.
const LINGER: Duration = Duration::from_secs(30);
/// A topic whose seats cannot be read for so long ends: its viewers come back, and are told why not.
const FAILING_MAX: Duration = Duration::from_secs(5);

type Key = (EventId, Scope);

/// All topics of this process.
pub(super) struct Topics {
    mirror: BlockMirror,
    topics: Arc<Mutex<HashMap<Key, Arc<Topic>>>>,
}

/// What is watched.
pub(super) struct Topic {
    told: Mutex<Told>,
    /// The sequence that is told; none once the topic has ended.
    sequence: watch::Sender<Option<u64>>,
    viewers: AtomicUsize,
}

/// A viewer's hold on a topic.
pub(super) struct Watching {
    topic: Arc<Topic>,
    sequence: watch::Receiver<Option<u64>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.topic.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watching {
    fn of(topic: &Arc<Topic>) -> Self {
        topic.viewers.fetch_add(1, Ordering::Relaxed);
        Self { topic: Arc::clone(topic), sequence: topic.sequence.subscribe() }
    }

    /// What a viewer is to be told now.
    pub(super) fn next(&mut self, form: Form, had: Had) -> Option<(EventName, Bytes)> {
        self.sequence.mark_unchanged();
        lock(&self.topic.told).next(form, had)
    }

    /// Waits until there may be more than the last call of `next` told; false once the topic has ended.
    pub(super) async fn changed(&mut self) -> bool {
        self.sequence.borrow().is_some() && self.sequence.changed().await.is_ok() && self.sequence.borrow().is_some()
    }
}

impl Topics {
    pub(super) fn new(mirror: BlockMirror) -> Self {
        Self { mirror, topics: Arc::default() }
    }

    /// Watches a topic; the first to do so waits until its seats are read.
    ///
    /// # Errors
    /// [`ReadError`].
    pub(super) async fn watch(&self, event: EventId, scope: Scope) -> Result<Watching, ReadError> {
        let key = (event, scope);
        if let Some(topic) = lock(&self.topics).get(&key) {
            return Ok(Watching::of(topic));
        }
        let mut looker = Looker { mirror: self.mirror.clone(), key: key.clone(), seen: Vec::new(), sheet: None };
        let Look::Anew(sheet, blocks) = looker.look().await? else { return Err(ReadError::UnknownBlock) };
        let mut topics = lock(&self.topics);
        // Another viewer may have been first while the seats were read.
        let topic = topics.entry(key).or_insert_with(|| {
            let told = Told::new(rand::random(), sheet, blocks);
            let (sequence, _) = watch::channel(Some(told.sequence()));
            let topic = Arc::new(Topic { told: Mutex::new(told), sequence, viewers: AtomicUsize::new(0) });
            tokio::spawn(keep_up(Arc::clone(&topic), looker, Arc::clone(&self.topics)));
            topic
        });
        Ok(Watching::of(topic))
    }
}

/// Looks at the mirror for as long as anybody watches.
async fn keep_up(topic: Arc<Topic>, mut looker: Looker, topics: Arc<Mutex<HashMap<Key, Arc<Topic>>>>) {
    let (mut tick, mut watched, mut failing) = (TICK, Monotonic::now(), None);
    loop {
        tokio::time::sleep(tick).await;
        let began = Monotonic::now();
        if topic.viewers.load(Ordering::Relaxed) > 0 {
            watched = began;
        }
        match looker.look().await {
            Ok(look) => {
                failing = None;
                topic.tell(look);
            }
            Err(error) => {
                tracing::debug!(event = %looker.key.0, %error, "a stream's seats cannot be read");
                failing.get_or_insert(began);
            }
        }
        let is_forgotten = began.duration_since(watched) > LINGER;
        if is_forgotten || failing.is_some_and(|since| began.duration_since(since) > FAILING_MAX) {
            let mut topics = lock(&topics);
            // Who comes now takes the lock first, and is counted, or finds no topic.
            if !is_forgotten || topic.viewers.load(Ordering::Relaxed) == 0 {
                topics.remove(&looker.key);
                topic.sequence.send_replace(None);
                return;
            }
        }
        tick = TICK.max(began.elapsed() * 10).min(TICK_MAX);
    }
}

impl Topic {
    fn tell(&self, look: Look) {
        let mut told = lock(&self.told);
        match look {
            Look::Anew(sheet, blocks) => told.replace(sheet, blocks),
            Look::Newer(pictures) => {
                if !told.advance(pictures) {
                    return;
                }
            }
        }
        self.sequence.send_replace(Some(told.sequence()));
    }
}

/// What a look has found.
enum Look {
    /// Another map or other prices, or the first look: everything.
    Anew(Arc<EventSheet>, Vec<(Arc<Frame>, BlockPicture)>),
    /// The blocks that may have changed.
    Newer(Vec<(usize, BlockPicture)>),
}

/// What it takes to look again at what has changed only.
struct Looker {
    mirror: BlockMirror,
    key: Key,
    seen: Vec<Seen>,
    sheet: Option<Arc<EventSheet>>,
}

impl Looker {
    async fn look(&mut self) -> Result<Look, ReadError> {
        let sheet = self.mirror.sheet(self.key.0).await?;
        let is_same = self
            .sheet
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(&known.map, &sheet.map) && known.event.revision == sheet.event.revision);
        let labels: Vec<_> = match &self.key.1 {
            Scope::Event => sheet.map.blocks().iter().map(|block| block.block.clone()).collect(),
            Scope::Block(label) => vec![label.clone()],
        };
        if is_same {
            let mut newer = Vec::new();
            for (index, label) in labels.iter().enumerate() {
                if let Some(picture) = self.mirror.picture(&sheet, label, self.seen.get(index)).await? {
                    if !picture.frame.is_of(&sheet) {
                        // Another revision came in between: the next look begins anew.
                        return Ok(Look::Newer(Vec::new()));
                    }
                    if let Some(seen) = self.seen.get_mut(index) {
                        *seen = picture.seen.clone();
                    }
                    newer.push((index, block_picture(picture)));
                }
            }
            return Ok(Look::Newer(newer));
        }
        let (mut seen, mut blocks) = (Vec::new(), Vec::new());
        for label in &labels {
            let picture = self.mirror.picture(&sheet, label, None).await?.ok_or(ReadError::UnknownBlock)?;
            seen.push(picture.seen.clone());
            blocks.push((Arc::clone(&picture.frame), block_picture(picture)));
        }
        (self.seen, self.sheet) = (seen, Some(Arc::clone(&sheet)));
        Ok(Look::Anew(sheet, blocks))
    }
}

fn block_picture(picture: Picture) -> BlockPicture {
    BlockPicture { version: picture.version, statuses: picture.statuses }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
