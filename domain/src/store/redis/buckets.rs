//! Seat buckets, seat lists and seat changes of one block at a time.

use std::sync::LazyLock;

use ::redis::{Script, cmd, pipe};
use serde::{Deserialize, Serialize};

use super::keys::BlockKey;
use super::{Redis, RedisUnavailable};
use crate::id::{Buyer, EventId, ReservationId};
use crate::seat::SeatStatus;
use crate::time::{Instant, VenueZone, to_ms};

/// The most keys in one call: a longer one would keep Redis from everybody else for too long.
pub const KEYS_PER_CALL_MAX: usize = 500;

static GATE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("gate.lua")));
static CHANGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("change.lua")));
static HEAL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("heal.lua")));

/// A seat bucket: a flat JSON object whose values are all text, what a Java Redisson client reads as a map. The first
/// five names and the form of the times are the source layout's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeatBucket {
    /// One of the four words.
    pub status: String,
    /// The buyer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// The event.
    pub match_id: String,
    /// When the reservation was made, `yyyyMMdd HH:mm:ss` by the venue's wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// When it dies, in the same form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expired_at: Option<String>,
    /// The reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<String>,
    /// When it dies, in ms since the epoch: what readers and scripts compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<String>,
    /// The block's version that wrote it; absent only in what is handed to a script, which adds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Who owns a seat that is held or sold, as its bucket shows it.
#[derive(Debug, Clone)]
pub struct BucketOwner {
    /// The reservation.
    pub reservation: ReservationId,
    /// Its buyer.
    pub buyer: Buyer,
    /// When it was made.
    pub created_at: Instant,
    /// When it dies; none once its seats are committed or sold.
    pub deadline: Option<Instant>,
}

impl SeatBucket {
    /// The bucket of a seat nobody owns: available or blocked.
    #[must_use]
    pub fn unowned(event: EventId, status: SeatStatus) -> Self {
        Self {
            status: status.as_str().to_owned(),
            user_id: None,
            match_id: event.to_string(),
            created_at: None,
            expired_at: None,
            reservation_id: None,
            deadline_ms: None,
            version: None,
        }
    }

    /// The bucket of a seat that a reservation owns.
    #[must_use]
    pub fn owned(event: EventId, status: SeatStatus, owner: &BucketOwner, zone: &VenueZone) -> Self {
        Self {
            status: status.as_str().to_owned(),
            user_id: Some(owner.buyer.as_str().to_owned()),
            match_id: event.to_string(),
            created_at: Some(zone.bucket_text(owner.created_at)),
            expired_at: owner.deadline.map(|at| zone.bucket_text(at)),
            reservation_id: Some(owner.reservation.to_string()),
            deadline_ms: owner.deadline.map(|at| to_ms(at).to_string()),
            version: None,
        }
    }

    /// What readers see at `now_ms`: a held seat whose deadline has passed is available (I3).
    #[must_use]
    pub fn seat_status_at(&self, now_ms: i64) -> Option<SeatStatus> {
        let status = SeatStatus::from_word(&self.status)?;
        let dead = self.deadline().is_some_and(|deadline| deadline <= now_ms);
        Some(if status == SeatStatus::Held && dead { SeatStatus::Available } else { status })
    }

    /// The deadline in ms, if it has one.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        self.deadline_ms.as_deref()?.parse().ok()
    }

    /// Reads a bucket. What is none has no status that is one of the words, and the version by which heal.lua knows it.
    fn read(json: &str) -> Self {
        serde_json::from_str(json).unwrap_or_else(|_| {
            let version =
                serde_json::from_str::<serde_json::Value>(json).ok().and_then(|value| match &value["version"] {
                    serde_json::Value::String(version) => Some(version.clone()),
                    serde_json::Value::Number(version) => Some(version.to_string()),
                    _ => None,
                });
            Self {
                status: String::new(),
                user_id: None,
                match_id: String::new(),
                created_at: None,
                expired_at: None,
                reservation_id: None,
                deadline_ms: None,
                version,
            }
        })
    }

    /// The JSON without its closing brace: the scripts add the version.
    pub(super) fn open_json(&self) -> String {
        let mut json = serde_json::to_string(self).unwrap_or_default();
        json.pop();
        json
    }
}

/// A message on a block's channel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeatChange {
    /// The block's version after it; each is one more than the last, or the block has to be read again.
    pub version: String,
    /// The status of all of `seats`.
    pub status: Option<String>,
    /// Their deadline, where they are held and can expire.
    pub deadline_ms: Option<String>,
    /// Their keys.
    #[serde(default)]
    pub seats: Vec<String>,
    /// Many seats changed at once: read the block again.
    #[serde(default)]
    pub reload: bool,
}

/// The gate's answer for the seats of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// All are taken for a few seconds.
    Taken {
        /// Redis's clock.
        now_ms: i64,
    },
    /// Nothing is written: these are not available (index into the keys that were given).
    Refused(Vec<(usize, SeatStatus)>),
}

/// What a reservation's seats shall show.
#[derive(Debug, Clone)]
pub enum Showing {
    /// Held or sold by it.
    Owned(SeatStatus, BucketOwner),
    /// Its no longer: given up, refused, called off.
    Released(ReservationId),
    /// Its no longer, because that deadline passed.
    Expired(ReservationId, Instant),
}

/// What came of showing a reservation's seats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// Buckets that were written.
    pub changed: u64,
    /// Buckets of seats that it owns, and which do not say so: another's, absent, or available. Which of the two is
    /// older only healing can tell.
    pub foreign: u64,
}

/// A block as Redis has it.
#[derive(Debug, Clone)]
pub struct BlockPicture {
    /// The version before the buckets were read: changes after it may already be in them.
    pub version: u64,
    /// Redis's clock.
    pub now_ms: i64,
    /// Each seat's key and bucket, in the order of the list, or of the keys that were asked for; none where it is absent.
    pub buckets: Vec<(String, Option<SeatBucket>)>,
}

/// A bucket to be written unless it has changed since `seen`.
#[derive(Debug, Clone)]
pub struct Healing {
    /// The seat's key.
    pub key: String,
    /// The version that was seen; none where the bucket was absent.
    pub seen: Option<String>,
    /// What it shall show.
    pub bucket: SeatBucket,
    /// When it may vanish, ms since the epoch.
    pub vanishes_at_ms: Option<i64>,
}

impl Redis {
    /// Takes the gate of seats of one block (at most [`KEYS_PER_CALL_MAX`]) for a few seconds.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn take_gate(
        &self,
        block: &BlockKey,
        seats: &[String],
        hold: (&Buyer, EventId, ReservationId),
        spans: crate::limits::Timing,
    ) -> Result<Gate, RedisUnavailable> {
        let (buyer, event, reservation) = hold;
        let mut bucket = SeatBucket::unowned(event, SeatStatus::Held);
        bucket.user_id = Some(buyer.as_str().to_owned());
        bucket.reservation_id = Some(reservation.to_string());
        let mut call = GATE.key(self.keys().version(block));
        call.key(seats)
            .arg(self.keys().channel(block))
            .arg(self.clock().offset_ms())
            .arg(spans.gate_ms)
            .arg(spans.bucket_grace_ms)
            .arg(reservation.to_string())
            .arg(bucket.open_json());
        let answer: Vec<String> = self.call(async |redis| call.invoke_async(redis).await).await?;
        let number = |at: usize| answer.get(at).and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
        if number(0) == 1 {
            return Ok(Gate::Taken { now_ms: number(1) });
        }
        let conflicts = answer.get(2..).unwrap_or_default().chunks_exact(2).filter_map(|pair| {
            let index = pair[0].parse::<usize>().ok()?.checked_sub(1)?;
            Some((index, SeatStatus::from_word(&pair[1]).unwrap_or(SeatStatus::Held)))
        });
        Ok(Gate::Refused(conflicts.collect()))
    }

    /// Makes seats of one block show what Postgres committed, by compare-and-set on the reservation.
    ///
    /// # Errors
    /// [`RedisUnavailable`]; chunks before it may be written, and a repeat is harmless.
    pub async fn show_seats(
        &self,
        block: &BlockKey,
        seats: &[String],
        (event, zone): (EventId, &VenueZone),
        showing: &Showing,
        grace_ms: i64,
    ) -> Result<Shown, RedisUnavailable> {
        let available = || SeatBucket::unowned(event, SeatStatus::Available);
        let (rule, owner, bucket, limit, vanishes_at) = match showing {
            Showing::Owned(status, owner) => {
                let bucket = SeatBucket::owned(event, *status, owner, zone);
                let deadline = owner.deadline.map(to_ms);
                ("take", owner.reservation, bucket, deadline, deadline.map(|ms| ms + grace_ms))
            }
            Showing::Released(owner) => ("release", *owner, available(), None, None),
            Showing::Expired(owner, deadline) => ("release", *owner, available(), Some(to_ms(*deadline)), None),
        };
        let text = |ms: Option<i64>| ms.map(|ms| ms.to_string()).unwrap_or_default();
        let mut shown = Shown::default();
        for chunk in seats.chunks(KEYS_PER_CALL_MAX) {
            let mut call = CHANGE.key(self.keys().version(block));
            call.key(chunk)
                .arg(self.keys().channel(block))
                .arg(rule)
                .arg(owner.to_string())
                .arg(bucket.status.as_str())
                .arg(bucket.open_json())
                .arg(text(limit))
                .arg(text(vanishes_at));
            let (changed, _version, foreign): (u64, String, u64) =
                self.call(async |redis| call.invoke_async(redis).await).await?;
            shown.changed += changed;
            shown.foreign += foreign;
        }
        Ok(shown)
    }

    /// Writes buckets of one block as Postgres has them, each only if it is as it was seen. Returns how many changed.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn heal_seats(&self, block: &BlockKey, healings: &[Healing]) -> Result<u64, RedisUnavailable> {
        let mut changed = 0;
        for chunk in healings.chunks(KEYS_PER_CALL_MAX) {
            let mut call = HEAL.key(self.keys().version(block));
            for healing in chunk {
                call.key(&healing.key);
            }
            call.arg(self.keys().channel(block));
            for healing in chunk {
                call.arg(healing.seen.as_deref().unwrap_or_default())
                    .arg(healing.bucket.open_json())
                    .arg(healing.vanishes_at_ms.map(|ms| ms.to_string()).unwrap_or_default())
                    .arg(healing.bucket.status.as_str());
            }
            let (some, _version): (u64, String) = self.call(async |redis| call.invoke_async(redis).await).await?;
            changed += some;
        }
        Ok(changed)
    }

    /// Puts a block's seat list in place, whole, if there is none. The list is never searched.
    ///
    /// # Errors
    /// [`RedisUnavailable`]; no part of a list is ever in place.
    pub async fn create_seat_list(
        &self,
        block: &BlockKey,
        seats: &[String],
        nonce: &str,
    ) -> Result<(), RedisUnavailable> {
        let list = self.keys().seat_list(block);
        let exists: bool = self.call(async |redis| cmd("EXISTS").arg(&list).query_async(redis).await).await?;
        if exists { Ok(()) } else { self.place_seat_list(block, seats, (nonce, "RENAMENX")).await }
    }

    /// Puts a block's seat list in the place of one that is wrong, whole, in one step.
    ///
    /// # Errors
    /// [`RedisUnavailable`]; no part of a list is ever in place.
    pub async fn replace_seat_list(
        &self,
        block: &BlockKey,
        seats: &[String],
        nonce: &str,
    ) -> Result<(), RedisUnavailable> {
        self.place_seat_list(block, seats, (nonce, "RENAME")).await
    }

    async fn place_seat_list(
        &self,
        block: &BlockKey,
        seats: &[String],
        (nonce, rename): (&str, &str),
    ) -> Result<(), RedisUnavailable> {
        if seats.is_empty() {
            return Ok(());
        }
        let (list, draft) = (self.keys().seat_list(block), self.keys().seat_list_draft(block, nonce));
        self.call(async |redis| {
            let mut build = pipe();
            for chunk in seats.chunks(KEYS_PER_CALL_MAX) {
                build.cmd("RPUSH").arg(&draft).arg(chunk).ignore();
            }
            build.cmd("EXPIRE").arg(&draft).arg(60).ignore();
            let () = build.query_async(redis).await?;
            // The draft's time to live comes along with the name: a crash must not fall between the two.
            let mut place = pipe();
            place.atomic().cmd(rename).arg(&draft).arg(&list).ignore();
            place.cmd("PERSIST").arg(&list).ignore().cmd("DEL").arg(&draft).ignore();
            place.query_async(redis).await
        })
        .await
    }

    /// Reads a block: its list, then its buckets in calls of at most 1,000 keys, never one by one. None where the block
    /// has no list: this Redis does not know it.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn read_block(&self, block: &BlockKey) -> Result<Option<BlockPicture>, RedisUnavailable> {
        let picture = self.read_picture(block, None).await?;
        Ok(Some(picture).filter(|picture| !picture.buckets.is_empty()))
    }

    /// Reads some seats of a block by their keys, whether they are there or not.
    ///
    /// # Errors
    /// [`RedisUnavailable`].
    pub async fn read_seats(&self, block: &BlockKey, keys: Vec<String>) -> Result<BlockPicture, RedisUnavailable> {
        self.read_picture(block, Some(keys)).await
    }

    /// The seats of `keys`, or those of the block's list.
    async fn read_picture(
        &self,
        block: &BlockKey,
        keys: Option<Vec<String>>,
    ) -> Result<BlockPicture, RedisUnavailable> {
        const KEYS_PER_READ: usize = 1_000;
        let (list, counter) = (self.keys().seat_list(block), self.keys().version(block));
        let last = if keys.is_none() { -1 } else { 0 };
        let read = self.call(async |redis| {
            let mut head = pipe();
            head.cmd("GET").arg(&counter).cmd("LRANGE").arg(&list).arg(0).arg(last).cmd("TIME");
            let (version, listed, time): (Option<u64>, Vec<String>, (i64, i64)) = head.query_async(redis).await?;
            let keys = keys.unwrap_or(listed);
            let mut values: Vec<Option<String>> = Vec::with_capacity(keys.len());
            for chunk in keys.chunks(KEYS_PER_READ) {
                let mut some: Vec<Option<String>> = cmd("MGET").arg(chunk).query_async(redis).await?;
                values.append(&mut some);
            }
            Ok((version, keys, time, values))
        });
        let (version, keys, (seconds, micros), values) = read.await?;
        let buckets = values.into_iter().map(|value| value.as_deref().map(SeatBucket::read));
        Ok(BlockPicture {
            version: version.unwrap_or(0),
            now_ms: seconds * 1_000 + micros / 1_000 + self.clock().offset_ms(),
            buckets: keys.into_iter().zip(buckets).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_bucket_is_no_absent_one() {
        for (json, version) in [("", None), ("[]", None), (r#"{"version":"7"}"#, Some("7")), ("{\"status\":1}", None)] {
            let bucket = SeatBucket::read(json);
            assert_eq!(bucket.seat_status_at(0), None, "{json}");
            assert_eq!(bucket.version.as_deref(), version, "{json}");
        }
    }
}
