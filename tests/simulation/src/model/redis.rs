//! Redis's scripts, each one atomic step, as the Lua of `domain::store::redis` says them.

use super::process::Process;
use super::world::{Bucket, Claim, Index, Ticks, World, seats_of};
use domain::reservation::{CancelReason, ReservationState};
use domain::seat::ClaimState;

/// What one look of a healer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Healed {
    /// Nothing was wrong: otherwise it looks again.
    pub is_right: bool,
    /// A gate stands before a seat, and opens by itself.
    pub waits: bool,
}

/// What a reservation's buckets should show, as it was read from Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Showing {
    /// Held, until then.
    Held(Ticks),
    /// Held, without a deadline.
    Committed,
    /// Sold.
    Sold,
    /// Available: that deadline has passed.
    Expired(Ticks),
    /// Available.
    Released,
}

impl World {
    /// The seats that `gate.lua` would refuse.
    #[must_use]
    pub fn gate_conflicts(&self, id: Index) -> u8 {
        let stands = |bucket: Bucket| match bucket {
            Bucket::Absent | Bucket::Available => false,
            Bucket::Gate(owner, deadline) | Bucket::Held(owner, Some(deadline)) => owner != id && deadline > self.now,
            Bucket::Held(owner, None) | Bucket::Sold(owner) => owner != id,
        };
        let standing = seats_of(self.reservation(id).seats).filter(|seat| stands(self.redis.buckets[*seat]));
        standing.fold(0, |bits, seat| bits | 1 << seat)
    }

    /// `gate.lua`, where it refuses none.
    pub fn take_gate(&mut self, id: Index, gate: Ticks) {
        let (seats, now) = (self.reservation(id).seats, self.now);
        for seat in seats_of(seats) {
            self.write_bucket(seat, Bucket::Gate(id, now + gate));
        }
    }

    /// Writes a bucket; whoever is healing it will find that it has changed.
    fn write_bucket(&mut self, seat: usize, bucket: Bucket) {
        self.redis.buckets[seat] = bucket;
        for process in &mut self.processes {
            process.seen_changed(seat);
        }
    }

    /// `change.lua`: returns the seats that show something else than the owner's bucket (taking only).
    pub fn show_seats(&mut self, id: Index, showing: Showing) -> u8 {
        let mut foreign = 0;
        for seat in seats_of(self.reservation(id).seats) {
            let bucket = self.redis.buckets[seat];
            match may_write(bucket, id, showing) {
                Some(true) => self.write_bucket(seat, shown(id, showing)),
                Some(false) => {}
                None => foreign |= 1 << seat,
            }
        }
        foreign
    }

    /// What Postgres says of a seat, and whether its bucket is a gate that opens by itself.
    #[must_use]
    pub fn wanted_bucket(&self, seat: usize) -> Bucket {
        match self.claims[seat] {
            Some(Claim { reservation, state: ClaimState::Held, expires_at }) => match expires_at {
                Some(at) if at <= self.now => Bucket::Available,
                deadline => Bucket::Held(reservation, deadline),
            },
            Some(Claim { reservation, state: ClaimState::Committed, .. }) => Bucket::Held(reservation, None),
            Some(Claim { reservation, state: ClaimState::Sold, .. }) => Bucket::Sold(reservation),
            Some(Claim { state: ClaimState::Blocked, .. }) | None => Bucket::Available,
        }
    }

    /// `heal.lua`: writes what Postgres said, where the bucket is as it was before Postgres was asked.
    pub fn heal_seats(&mut self, seats: u8, wanted: &[Bucket], changed: u8, gate: Ticks) -> Healed {
        let mut healed = Healed { is_right: true, waits: false };
        for seat in seats_of(seats) {
            let bucket = self.redis.buckets[seat];
            if bucket == wanted[seat] {
                continue;
            }
            // Postgres was read after Redis: a gate seen there may be about to commit.
            let may_commit = |owner| match wanted[seat] {
                Bucket::Held(other, _) | Bucket::Sold(other) => other == owner,
                Bucket::Absent | Bucket::Available | Bucket::Gate(..) => true,
            };
            let stands = |at| at > self.now && at <= self.now + gate;
            let is_gate = matches!(bucket, Bucket::Gate(owner, at) if stands(at) && may_commit(owner));
            if is_gate {
                healed.waits = true;
                continue;
            }
            healed.is_right = false;
            if changed & (1 << seat) == 0 {
                self.write_bucket(seat, wanted[seat]);
            }
        }
        healed
    }

    /// Writes an entry of the deadline index.
    pub fn register(&mut self, id: Index, at: Ticks) {
        self.redis.index[usize::from(id)] = Some(at);
    }

    /// Loses all that Redis has.
    pub fn lose_redis(&mut self) {
        for seat in 0..self.redis.buckets.len() {
            self.write_bucket(seat, Bucket::Absent);
        }
        self.redis.index.fill(None);
        self.redis.epoch = false;
        self.redis.warming = false;
        for payment in &mut self.payments {
            payment.queued = false;
        }
        self.processes.iter_mut().for_each(Process::lose_mark);
        self.losses += 1;
    }

    /// What a reservation's buckets should show now; none where it has no row.
    #[must_use]
    pub fn showing(&self, id: Index) -> Option<Showing> {
        let reservation = self.reservation(id);
        Some(match reservation.state(self.now)? {
            ReservationState::Pending => Showing::Held(reservation.expires_at),
            ReservationState::Committed { .. } => Showing::Committed,
            ReservationState::Confirmed { .. } => Showing::Sold,
            ReservationState::Cancelled { reason: CancelReason::Expired, .. } => {
                Showing::Expired(reservation.expires_at)
            }
            ReservationState::Cancelled { .. } => Showing::Released,
        })
    }
}

fn shown(id: Index, showing: Showing) -> Bucket {
    match showing {
        Showing::Held(deadline) => Bucket::Held(id, Some(deadline)),
        Showing::Committed => Bucket::Held(id, None),
        Showing::Sold => Bucket::Sold(id),
        Showing::Expired(_) | Showing::Released => Bucket::Available,
    }
}

/// Whether a bucket is the owner's and may be written over, forwards only; none where it is not the owner's.
fn may_write(bucket: Bucket, id: Index, showing: Showing) -> Option<bool> {
    let is_release = matches!(showing, Showing::Expired(_) | Showing::Released);
    let (owner, deadline, status_is_held) = match bucket {
        Bucket::Absent => return if is_release { Some(true) } else { None },
        Bucket::Available => return if is_release { Some(false) } else { None },
        Bucket::Gate(owner, _) if owner == id => return Some(true),
        Bucket::Gate(owner, _) => (owner, None, true),
        Bucket::Held(owner, deadline) => (owner, deadline, true),
        Bucket::Sold(owner) => (owner, None, false),
    };
    if owner != id {
        return if is_release { Some(false) } else { None };
    }
    Some(match showing {
        Showing::Released => true,
        Showing::Expired(limit) => status_is_held && deadline.is_some_and(|at| at <= limit),
        _ if !status_is_held => false,
        Showing::Sold => true,
        Showing::Committed => deadline.is_some(),
        Showing::Held(limit) => deadline.is_some_and(|at| limit > at),
    })
}
