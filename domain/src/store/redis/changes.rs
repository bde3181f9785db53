//! Seat changes as they happen: one subscription connection for a process, however many blocks it follows.
//!
//! Redis forgets a message the moment it is sent, so a follower learns three things besides the changes: that it is
//! subscribed (what it reads from now on misses nothing), that the connection is lost (whatever it knew may be old), and
//! that a message could not be read. It then reads the block again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::redis::aio::{PubSubSink, PubSubStream};
use ::redis::{Client, Msg, RedisError};
use futures::StreamExt as _;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Redis;
use super::buckets::SeatChange;
use super::keys::{BlockKey, KeyScheme, SeatKey};
use crate::seat::SeatStatus;

/// A server that leaves a command of this connection unanswered for so long counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_000);
/// A connection that only listens would not notice a server that is gone without a word, so it asks.
const PING_EVERY: Duration = Duration::from_millis(1_000);
/// The wait before the connection is tried again: doubled from the one to the other.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(1_000));
/// The most channels in one SUBSCRIBE.
const CHANNELS_PER_CALL_MAX: usize = 200;

/// What a follower of a block is told, in this order of its life: `Subscribed`, changes, `Lost`, `Subscribed` …
#[derive(Debug, Clone, Copy)]
pub enum ChangeNotice<'a> {
    /// Every change from now on will be told.
    Subscribed,
    /// Some seats changed.
    Changed(&'a BlockChange),
    /// A message came that cannot be read: read the block again.
    Unreadable,
    /// The connection is lost; changes are missed until the next `Subscribed`.
    Lost,
}

/// A seat change of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockChange {
    /// The block's version after it: one more than the last, or some were missed.
    pub version: u64,
    /// What changed.
    pub what: ChangedSeats,
}

/// What a seat change says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedSeats {
    /// Many seats changed: read the block again.
    Reload,
    /// These seats are now so.
    Now {
        /// Their status.
        status: SeatStatus,
        /// Their deadline, ms, where they are held and can expire.
        deadline_ms: Option<i64>,
        /// The seats.
        seats: Vec<SeatKey>,
    },
}

/// Called with each notice, in order, on the feed's own task: it must be quick and must not block.
pub type ChangeListener = Box<dyn Fn(ChangeNotice<'_>) + Send + Sync>;

/// The one connection. Cheap to clone; it is closed when the last clone and the last [`Subscription`] are dropped.
#[derive(Clone)]
pub struct ChangeFeed {
    commands: UnboundedSender<Command>,
    connected: Arc<AtomicBool>,
    next_id: Arc<AtomicU64>,
    keys: KeyScheme,
}

/// Following one block; dropping it ends that.
pub struct Subscription {
    id: u64,
    channel: Arc<str>,
    commands: UnboundedSender<Command>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let _feed_has_ended = self.commands.send(Command::Leave { id: self.id, channel: Arc::clone(&self.channel) });
    }
}

enum Command {
    Follow { id: u64, channel: Arc<str>, listener: ChangeListener },
    Leave { id: u64, channel: Arc<str> },
}

impl ChangeFeed {
    /// Starts the feed on the current runtime. Redis need not be there: it is tried again, for ever.
    #[must_use]
    pub fn start(redis: &Redis) -> Self {
        let (commands, received) = unbounded_channel();
        let connected = Arc::new(AtomicBool::new(false));
        let feed = Feed {
            client: redis.client().clone(),
            keys: redis.keys().clone(),
            commands: received,
            followed: HashMap::new(),
            connected: Arc::clone(&connected),
        };
        tokio::spawn(feed.run());
        Self { commands, connected, next_id: Arc::default(), keys: redis.keys().clone() }
    }

    /// Follows a block.
    #[must_use]
    pub fn follow(&self, block: &BlockKey, listener: ChangeListener) -> Subscription {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let channel: Arc<str> = self.keys.channel(block).into();
        let follow = Command::Follow { id, channel: Arc::clone(&channel), listener };
        let _feed_has_ended = self.commands.send(follow);
        Subscription { id, channel, commands: self.commands.clone() }
    }

    /// Whether the connection stands, as far as is known.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }
}

/// Reads a message; none where it is not one of ours.
fn parse_change(keys: &KeyScheme, payload: &[u8]) -> Option<BlockChange> {
    let change: SeatChange = serde_json::from_slice(payload).ok()?;
    let version = change.version.parse().ok()?;
    if change.reload {
        return Some(BlockChange { version, what: ChangedSeats::Reload });
    }
    let status = SeatStatus::from_word(change.status.as_deref()?)?;
    let deadline_ms = change.deadline_ms.map(|text| text.parse()).transpose().ok()?;
    let seats = change.seats.iter().map(|key| keys.parse_seat(key)).collect::<Option<Vec<_>>>()?;
    Some(BlockChange { version, what: ChangedSeats::Now { status, deadline_ms, seats } })
}

/// Why a connection ended.
enum Ending {
    /// Nobody follows and nobody can any more.
    FeedDropped,
    /// It is lost.
    Lost(Option<RedisError>),
}

impl From<RedisError> for Ending {
    fn from(error: RedisError) -> Self {
        Self::Lost(Some(error))
    }
}

impl From<tokio::time::error::Elapsed> for Ending {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::Lost(None)
    }
}

#[derive(Default)]
struct Channel {
    listeners: Vec<(u64, ChangeListener)>,
    subscribed: bool,
}

impl Channel {
    fn tell(&self, notice: ChangeNotice<'_>) {
        for (_, listener) in &self.listeners {
            listener(notice);
        }
    }
}

struct Feed {
    client: Client,
    keys: KeyScheme,
    commands: UnboundedReceiver<Command>,
    followed: HashMap<Arc<str>, Channel>,
    connected: Arc<AtomicBool>,
}

impl Feed {
    async fn run(mut self) {
        let mut back_off = BACK_OFF.0;
        let mut told = false;
        loop {
            let connection = timeout(ANSWER_TIMEOUT, self.client.get_async_pubsub()).await;
            let ending = match connection {
                Ok(Ok(connection)) => {
                    (back_off, told) = (BACK_OFF.0, false);
                    let (sink, stream) = connection.split();
                    self.listen(sink, stream).await
                }
                Ok(Err(error)) => error.into(),
                Err(elapsed) => elapsed.into(),
            };
            match ending {
                Ending::FeedDropped => return,
                Ending::Lost(error) if !told => {
                    let error = error.map(|error| error.to_string());
                    tracing::warn!(error, "seat changes are not heard; trying again");
                    told = true;
                }
                Ending::Lost(_) => {}
            }
            if self.wait(back_off).await.is_none() {
                return;
            }
            back_off = BACK_OFF.1.min(back_off * 2);
        }
    }

    /// Waits, and notes meanwhile what is to be followed. None once the feed is dropped.
    async fn wait(&mut self, span: Duration) -> Option<()> {
        let end = tokio::time::sleep(span);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Some(()),
                command = self.commands.recv() => match command? {
                    Command::Follow { id, channel, listener } => {
                        self.followed.entry(channel).or_default().listeners.push((id, listener));
                    }
                    Command::Leave { id, channel } => {
                        self.leave(id, &channel);
                    }
                },
            }
        }
    }

    async fn listen(&mut self, mut sink: PubSubSink, mut messages: PubSubStream) -> Ending {
        let channels: Vec<Arc<str>> = self.followed.keys().cloned().collect();
        let mut ending = self.subscribe(&mut sink, &channels).await.err();
        if ending.is_none() {
            self.connected.store(true, Ordering::Release);
        }
        let mut ping = interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ending = loop {
            if let Some(ending) = ending.take() {
                break ending;
            }
            // Messages first: a change that is here already is told before anything else is waited for.
            ending = tokio::select! {
                biased;
                message = messages.next() => match message {
                    Some(message) => { self.tell(&message); None }
                    None => Some(Ending::Lost(None)),
                },
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(&mut sink, command).await.err(),
                    None => Some(Ending::FeedDropped),
                },
                _ = ping.tick() => match timeout(ANSWER_TIMEOUT, sink.ping::<::redis::Value>()).await {
                    Ok(Ok(_pong)) => None,
                    Ok(Err(error)) => Some(error.into()),
                    Err(elapsed) => Some(elapsed.into()),
                },
            };
        };
        self.connected.store(false, Ordering::Release);
        for channel in self.followed.values_mut() {
            channel.subscribed = false;
            channel.tell(ChangeNotice::Lost);
        }
        ending
    }

    fn tell(&self, message: &Msg) {
        let Some(channel) = self.followed.get(message.get_channel_name()) else { return };
        match parse_change(&self.keys, message.get_payload_bytes()) {
            Some(change) => channel.tell(ChangeNotice::Changed(&change)),
            None => {
                tracing::warn!(channel = message.get_channel_name(), "a seat change cannot be read");
                channel.tell(ChangeNotice::Unreadable);
            }
        }
    }

    /// Obeys a command and all that wait behind it: a thousand new blocks are subscribed to in a few calls.
    async fn obey(&mut self, sink: &mut PubSubSink, first: Command) -> Result<(), Ending> {
        let mut wanted: Vec<Arc<str>> = Vec::new();
        let mut next = Some(first);
        while let Some(command) = next.take() {
            match command {
                Command::Follow { id, channel, listener } => {
                    let followed = self.followed.entry(Arc::clone(&channel)).or_default();
                    if followed.subscribed {
                        listener(ChangeNotice::Subscribed);
                    } else if followed.listeners.is_empty() {
                        wanted.push(channel);
                    }
                    followed.listeners.push((id, listener));
                }
                Command::Leave { id, channel } => {
                    if self.leave(id, &channel) {
                        timeout(ANSWER_TIMEOUT, sink.unsubscribe(&*channel)).await??;
                    }
                }
            }
            next = self.commands.try_recv().ok();
        }
        self.subscribe(sink, &wanted).await
    }

    async fn subscribe(&mut self, sink: &mut PubSubSink, channels: &[Arc<str>]) -> Result<(), Ending> {
        let mut channels = channels.to_vec();
        // Left again before its turn came, or wanted twice.
        channels.retain(|channel| self.followed.get(channel).is_some_and(|followed| !followed.subscribed));
        for some in channels.chunks(CHANNELS_PER_CALL_MAX) {
            let names: Vec<&str> = some.iter().map(AsRef::as_ref).collect();
            timeout(ANSWER_TIMEOUT, sink.subscribe(names)).await??;
            for channel in some {
                if let Some(followed) = self.followed.get_mut(channel) {
                    followed.subscribed = true;
                    followed.tell(ChangeNotice::Subscribed);
                }
            }
        }
        Ok(())
    }

    /// Forgets a follower; true where it was its channel's last.
    fn leave(&mut self, id: u64, channel: &str) -> bool {
        let Some(followed) = self.followed.get_mut(channel) else { return false };
        followed.listeners.retain(|(other, _)| *other != id);
        if followed.listeners.is_empty() {
            // Unsubscribed on the connection even if the subscription was still to come: harmless, and exact.
            self.followed.remove(channel);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::Label;

    fn keys() -> KeyScheme {
        KeyScheme::new("", false).unwrap()
    }

    #[test]
    fn the_scripts_messages_are_read() {
        let message = br#"{"version":"7","status":"held","deadlineMs":"1744","seats":["seat:20250410:101:1:12"]}"#;
        let label = |text| Label::parse(text).unwrap();
        let block = BlockKey { date: "20250410".into(), block: label("101") };
        let seats = vec![SeatKey { block, column: label("1"), row: label("12") }];
        let what = ChangedSeats::Now { status: SeatStatus::Held, deadline_ms: Some(1744), seats };
        assert_eq!(parse_change(&keys(), message), Some(BlockChange { version: 7, what }));
        let reload = parse_change(&keys(), br#"{"version":"8","reload":true}"#);
        assert_eq!(reload, Some(BlockChange { version: 8, what: ChangedSeats::Reload }));
    }

    #[test]
    fn what_cannot_be_read_whole_is_not_read_at_all() {
        for bad in [
            "",
            "{}",
            r#"{"version":"x","reload":true}"#,
            r#"{"version":"1","seats":["seat:20250410:101:1:12"]}"#,
            r#"{"version":"1","status":"taken","seats":[]}"#,
            r#"{"version":"1","status":"held","deadlineMs":"soon","seats":[]}"#,
            r#"{"version":"1","status":"held","seats":["foreign"]}"#,
        ] {
            assert_eq!(parse_change(&keys(), bad.as_bytes()), None, "{bad}");
        }
    }
}
