//! Giving back the seats of many expired reservations in one round trip: what a burst of deadlines needs.

use std::sync::LazyLock;

use ::redis::{Pipeline, Script, ScriptInvocation, pipe};

use super::buckets::{KEYS_PER_CALL_MAX, SeatBucket};
use super::keys::BlockKey;
use super::{Redis, RedisUnavailable};
use crate::id::{EventId, ReservationId};
use crate::seat::SeatStatus;

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("release.lua")));

/// Seats in one round trip: they must be answered well within a call's time.
const SEATS_PER_TRIP_MAX: usize = 2_000;

/// Seats of one block whose reservations have expired.
#[derive(Debug, Clone)]
pub struct ExpiredSeats {
    /// The event.
    pub event: EventId,
    /// Its block.
    pub block: BlockKey,
    /// Each seat's key, the reservation that owned it, and the deadline that has passed, ms.
    pub seats: Vec<(String, ReservationId, i64)>,
}

impl Redis {
    /// Makes seats of expired reservations show as available, by compare-and-set on the reservation. Returns how many
    /// buckets were written.
    ///
    /// # Errors
    /// [`RedisUnavailable`]; some may be written, and a repeat is harmless.
    pub async fn release_expired(&self, blocks: &[ExpiredSeats]) -> Result<u64, RedisUnavailable> {
        let mut written = 0;
        let (mut trip, mut seats) = (Vec::new(), 0);
        for block in blocks {
            for chunk in block.seats.chunks(KEYS_PER_CALL_MAX) {
                if seats + chunk.len() > SEATS_PER_TRIP_MAX {
                    written += self.run_releases(std::mem::take(&mut trip)).await?;
                    seats = 0;
                }
                seats += chunk.len();
                trip.push(self.release_call(block, chunk));
            }
        }
        Ok(written + self.run_releases(trip).await?)
    }

    fn release_call(&self, block: &ExpiredSeats, seats: &[(String, ReservationId, i64)]) -> ScriptInvocation<'static> {
        let mut call = RELEASE.key(self.keys().version(&block.block));
        for (key, _, _) in seats {
            call.key(key);
        }
        let available = SeatBucket::unowned(block.event, SeatStatus::Available);
        call.arg(self.keys().channel(&block.block)).arg(available.open_json());
        for (_, reservation, deadline_ms) in seats {
            call.arg(reservation.to_string()).arg(*deadline_ms);
        }
        call
    }

    async fn run_releases(&self, calls: Vec<ScriptInvocation<'static>>) -> Result<u64, RedisUnavailable> {
        if calls.is_empty() {
            return Ok(0);
        }
        let mut trip: Pipeline = pipe();
        // A pipeline cannot find out in the middle that the script has been lost.
        trip.load_script(&RELEASE).ignore();
        for call in &calls {
            trip.invoke_script(call);
        }
        let written: Vec<u64> = self.call(async |redis| trip.query_async(redis).await).await?;
        Ok(written.into_iter().sum())
    }
}
