//! Placing holds: many that arrive together share one transaction and one commit, each succeeding or failing alone.

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use crate::id::{Buyer, EventId, ReservationId, SeatId};
use crate::money::Currency;
use crate::seat::{ClaimState, SeatStatus};
use crate::time::Instant;

use super::idempotency::{IdempotencyKey, NewAnswer, keep_answers};
use super::reservations::expire_reservations;
use super::{Pg, PgError, Tx, commit};

/// What a hold's first answer is, once its times are known.
pub type Answer = Box<dyn Fn(&HeldTimes) -> (u16, String) + Send + Sync>;

/// A hold to be placed. Its seats are resolved, priced, and named once each.
pub struct NewHold {
    /// The reservation that it makes.
    pub reservation: ReservationId,
    /// The event.
    pub event: EventId,
    /// The event's revision that prices and limits were taken from.
    pub revision: i32,
    /// Whose.
    pub buyer: Buyer,
    /// Seats of one buyer together, if the event limits them.
    pub seats_per_buyer_max: Option<i32>,
    /// The seats and their prices.
    pub seats: Vec<(SeatId, i64)>,
    /// The currency of the prices.
    pub currency: Currency,
    /// How it is made repeatable.
    pub idempotency: Option<(IdempotencyKey, Answer)>,
}

impl NewHold {
    fn amount(&self) -> i64 {
        self.seats.iter().map(|(_, price)| price).sum()
    }

    /// Whether two holds may not share a transaction: they could each make the other's outcome wrong.
    #[must_use]
    pub fn collides_with(&self, other: &Self) -> bool {
        let same_key = match (&self.idempotency, &other.idempotency) {
            (Some((a, _)), Some((b, _))) => a.key == b.key && a.caller == b.caller,
            _ => false,
        };
        let same_buyer = self.seats_per_buyer_max.is_some() && self.buyer == other.buyer;
        let same_seat = || self.seats.iter().any(|(seat, _)| other.seats.iter().any(|(taken, _)| seat == taken));
        same_key || (self.event == other.event && (same_buyer || same_seat()))
    }
}

/// When a hold was made and when it dies, by Postgres's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldTimes {
    /// When it was made.
    pub created_at: Instant,
    /// Its deadline.
    pub expires_at: Instant,
    /// No extension goes past this.
    pub extends_until: Instant,
}

/// What became of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldOutcome {
    /// It stands.
    Held(HeldTimes),
    /// Seats that somebody else owns, every one of them.
    Conflict(Vec<(SeatId, SeatStatus)>),
    /// The buyer would own too many seats.
    BuyerLimit {
        /// Held, being paid for and sold.
        owned: i64,
    },
    /// The event is not what the hold was made from, or not on sale: look again.
    Stale,
    /// The idempotency key has been used meanwhile: look at its answer.
    AnsweredBefore,
}

impl Pg {
    /// Places holds, none of which [collides](NewHold::collides_with) with another. Each outcome stands for itself;
    /// an error means that none was placed, unless it is [`PgError::CommitUnknown`].
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn place_holds(&self, holds: &[NewHold]) -> Result<Vec<HoldOutcome>, PgError> {
        let mut tx = self.begin().await?;
        let mut batch = Batch { offset_ms: self.offset_ms(), holds, outcomes: vec![None; holds.len()] };
        batch.check_buyer_limits(&mut tx).await?;
        let mut placed = batch.claim_seats(&mut tx).await?;
        batch.settle_conflicts(&mut tx, &mut placed).await?;
        batch.keep_answers(&mut tx).await?;
        batch.write_reservations(&mut tx).await?;
        commit(tx).await?;
        Ok(batch.outcomes.into_iter().map(|outcome| outcome.unwrap_or(HoldOutcome::Stale)).collect())
    }
}

struct Batch<'a> {
    offset_ms: i64,
    holds: &'a [NewHold],
    outcomes: Vec<Option<HoldOutcome>>,
}

/// What a hold has claimed so far.
#[derive(Default)]
struct Placed {
    seats: HashSet<SeatId>,
    times: Option<HeldTimes>,
}

type PlacedByHold = HashMap<ReservationId, Placed>;

impl Batch<'_> {
    fn undecided(&self) -> Vec<usize> {
        (0..self.holds.len()).filter(|&index| self.outcomes[index].is_none()).collect()
    }

    fn held(&self) -> Vec<(usize, HeldTimes)> {
        let held = |(index, outcome): (usize, &Option<HoldOutcome>)| match outcome {
            Some(HoldOutcome::Held(times)) => Some((index, *times)),
            _ => None,
        };
        self.outcomes.iter().enumerate().filter_map(held).collect()
    }

    /// Requests of one buyer for one event wait for each other here, so that none can pass the limit beside another.
    async fn check_buyer_limits(&mut self, tx: &mut Tx) -> Result<(), PgError> {
        let limited: Vec<usize> =
            (0..self.holds.len()).filter(|&index| self.holds[index].seats_per_buyer_max.is_some()).collect();
        if limited.is_empty() {
            return Ok(());
        }
        let mut locks: Vec<String> = limited
            .iter()
            .map(|&i| format!("buyer/{}/{}", self.holds[i].event, self.holds[i].buyer.as_str()))
            .collect();
        locks.sort_unstable();
        sqlx::query!(
            "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) AS locked FROM unnest($1::text[]) AS name",
            &locks
        )
        .fetch_all(&mut **tx)
        .await?;
        let events: Vec<Uuid> = limited.iter().map(|&index| self.holds[index].event.0).collect();
        let buyers: Vec<&str> = limited.iter().map(|&index| self.holds[index].buyer.as_str()).collect();
        let rows = sqlx::query!(
            r#"SELECT r.event_id, r.buyer, sum(r.seat_count) AS "owned!"
               FROM unnest($1::uuid[], $2::text[]) AS asked (event_id, buyer)
               JOIN reservations r ON r.event_id = asked.event_id AND r.buyer = asked.buyer
               WHERE r.status = 'CONFIRMED'
                  OR (r.status = 'PENDING' AND (r.committed_at IS NOT NULL OR r.expires_at > hf_now($3)))
               GROUP BY r.event_id, r.buyer"#,
            &events,
            &buyers as &[&str],
            self.offset_ms
        )
        .fetch_all(&mut **tx)
        .await?;
        for index in limited {
            let hold = &self.holds[index];
            let owned = rows.iter().find(|row| row.event_id == hold.event.0 && row.buyer == hold.buyer.as_str());
            let owned = owned.map_or(0, |row| row.owned);
            let wanted = owned + i64::try_from(hold.seats.len()).unwrap_or(i64::MAX);
            if hold.seats_per_buyer_max.is_some_and(|max| wanted > i64::from(max)) {
                self.outcomes[index] = Some(HoldOutcome::BuyerLimit { owned });
            }
        }
        Ok(())
    }

    /// Claims what no claim stands on. The primary key decides who owns a seat (I1); the event is checked in the same
    /// statement, so that no hold is placed by rules that have changed.
    async fn claim_seats(&self, tx: &mut Tx) -> Result<PlacedByHold, PgError> {
        let undecided = self.undecided();
        let mut placed = PlacedByHold::new();
        self.insert_claims(tx, &undecided, &mut placed).await?;
        Ok(placed)
    }

    async fn insert_claims(&self, tx: &mut Tx, which: &[usize], placed: &mut PlacedByHold) -> Result<(), PgError> {
        let (mut events, mut revisions, mut reservations, mut seats) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for &index in which {
            let hold = &self.holds[index];
            let has = placed.get(&hold.reservation);
            for (seat, _) in &hold.seats {
                if has.is_none_or(|placed| !placed.seats.contains(seat)) {
                    events.push(hold.event.0);
                    revisions.push(hold.revision);
                    reservations.push(hold.reservation.0);
                    seats.push(seat.0);
                }
            }
        }
        let rows = sqlx::query!(
            r#"WITH open AS (
                   SELECT id, revision, hf_now($5) AS now,
                          least(hf_now($5) + hold_ttl_ms * interval '1 millisecond', sales_close_at) AS expires_at,
                          least(hf_now($5) + hold_ttl_ms * (extensions_max + 1) * interval '1 millisecond', sales_close_at)
                              AS extends_until
                   FROM events
                   WHERE id = ANY ($1) AND status = 'on_sale'
                     AND (sales_open_at IS NULL OR sales_open_at <= hf_now($5))
                     AND (sales_close_at IS NULL OR sales_close_at > hf_now($5))),
               claimed AS (
                   INSERT INTO seat_claims (event_id, seat_id, reservation_id, state, expires_at)
                   SELECT wanted.event_id, wanted.seat_id, wanted.reservation_id, 'held', open.expires_at
                   FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bigint[])
                            AS wanted (event_id, revision, reservation_id, seat_id)
                   JOIN open ON open.id = wanted.event_id AND open.revision = wanted.revision
                   ORDER BY wanted.event_id, wanted.seat_id
                   ON CONFLICT ON CONSTRAINT seat_claims_pkey DO NOTHING
                   RETURNING event_id, seat_id, reservation_id)
               SELECT claimed.seat_id AS "seat_id!", claimed.reservation_id AS "reservation_id!", open.now AS "now!",
                      open.expires_at AS "expires_at!", open.extends_until AS "extends_until!"
               FROM claimed JOIN open ON open.id = claimed.event_id"#,
            &events,
            &revisions,
            &reservations,
            &seats,
            self.offset_ms
        )
        .fetch_all(&mut **tx)
        .await?;
        for row in rows {
            let entry = placed.entry(ReservationId(row.reservation_id)).or_default();
            entry.seats.insert(SeatId(row.seat_id));
            entry.times =
                Some(HeldTimes { created_at: row.now, expires_at: row.expires_at, extends_until: row.extends_until });
        }
        Ok(())
    }

    /// Where seats are missing: takes over claims whose deadline has passed, in this very transaction (I3), and names
    /// every seat that somebody alive owns (I4).
    async fn settle_conflicts(&mut self, tx: &mut Tx, placed: &mut PlacedByHold) -> Result<(), PgError> {
        let short: Vec<usize> =
            self.undecided().into_iter().filter(|&index| !is_whole(&self.holds[index], placed)).collect();
        if !short.is_empty() {
            let standing = self.standing_claims(tx, &short, placed).await?;
            let dead: Vec<ReservationId> = standing.values().flatten().filter_map(|claim| claim.dead).collect();
            if !dead.is_empty() {
                expire_reservations(tx, &dead, self.offset_ms).await?;
                let retry: Vec<usize> = short
                    .iter()
                    .copied()
                    .filter(|index| standing.get(index).is_some_and(|claims| claims.iter().all(|c| c.dead.is_some())))
                    .collect();
                self.insert_claims(tx, &retry, placed).await?;
            }
            self.refuse_short(tx, &short, placed).await?;
        }
        for index in self.undecided() {
            let times = placed.get(&self.holds[index].reservation).and_then(|placed| placed.times);
            self.outcomes[index] = Some(times.map_or(HoldOutcome::Stale, HoldOutcome::Held));
        }
        Ok(())
    }

    /// Gives back what a hold that cannot stand has claimed, and says who is in its way.
    async fn refuse_short(&mut self, tx: &mut Tx, short: &[usize], placed: &PlacedByHold) -> Result<(), PgError> {
        let lost: Vec<usize> = short.iter().copied().filter(|&index| !is_whole(&self.holds[index], placed)).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let standing = self.standing_claims(tx, &lost, placed).await?;
        for &index in &lost {
            let claims = standing.get(&index).map(Vec::as_slice).unwrap_or_default();
            let conflicts: Vec<(SeatId, SeatStatus)> = claims.iter().map(|claim| (claim.seat, claim.status)).collect();
            self.outcomes[index] =
                Some(if conflicts.is_empty() { HoldOutcome::Stale } else { HoldOutcome::Conflict(conflicts) });
        }
        self.give_back(tx, &lost).await
    }

    async fn give_back(&self, tx: &mut Tx, lost: &[usize]) -> Result<(), PgError> {
        let mut events = Vec::new();
        let mut seats = Vec::new();
        let mut owners = Vec::new();
        for &index in lost {
            let hold = &self.holds[index];
            for (seat, _) in &hold.seats {
                events.push(hold.event.0);
                seats.push(seat.0);
                owners.push(hold.reservation.0);
            }
        }
        sqlx::query!(
            "DELETE FROM seat_claims c USING unnest($1::uuid[], $2::bigint[], $3::uuid[]) AS mine (event_id, seat_id, owner)
             WHERE c.event_id = mine.event_id AND c.seat_id = mine.seat_id AND c.reservation_id = mine.owner",
            &events,
            &seats,
            &owners
        )
        .execute(&mut **tx)
        .await?;
        Ok(())
    }

    async fn standing_claims(
        &self,
        tx: &mut Tx,
        which: &[usize],
        placed: &PlacedByHold,
    ) -> Result<HashMap<usize, Vec<StandingClaim>>, PgError> {
        let mut wanted: BTreeMap<(Uuid, i64), usize> = BTreeMap::new();
        for &index in which {
            let hold = &self.holds[index];
            let has = placed.get(&hold.reservation);
            for (seat, _) in &hold.seats {
                if has.is_none_or(|placed| !placed.seats.contains(seat)) {
                    wanted.insert((hold.event.0, seat.0), index);
                }
            }
        }
        let events: Vec<Uuid> = wanted.keys().map(|(event, _)| *event).collect();
        let seats: Vec<i64> = wanted.keys().map(|(_, seat)| *seat).collect();
        let rows = sqlx::query!(
            r#"SELECT c.event_id, c.seat_id, c.reservation_id, c.state,
                      coalesce(c.state = 'held' AND c.expires_at <= hf_now($3), false) AS "dead!"
               FROM unnest($1::uuid[], $2::bigint[]) AS wanted (event_id, seat_id)
               JOIN seat_claims c ON c.event_id = wanted.event_id AND c.seat_id = wanted.seat_id
               ORDER BY c.event_id, c.seat_id"#,
            &events,
            &seats,
            self.offset_ms
        )
        .fetch_all(&mut **tx)
        .await?;
        let mut standing: HashMap<usize, Vec<StandingClaim>> = HashMap::new();
        for row in rows {
            let Some(&index) = wanted.get(&(row.event_id, row.seat_id)) else { continue };
            let state = ClaimState::from_word(&row.state);
            let state = state.ok_or_else(|| PgError::unreadable("seat_claims", "state", row.seat_id))?;
            standing.entry(index).or_default().push(StandingClaim {
                seat: SeatId(row.seat_id),
                status: state.seat_status(),
                dead: row.reservation_id.filter(|_| row.dead).map(ReservationId),
            });
        }
        Ok(standing)
    }

    /// A key that another transaction kept meanwhile undoes its hold: the first answer stands.
    async fn keep_answers(&mut self, tx: &mut Tx) -> Result<(), PgError> {
        let mut bodies = Vec::new();
        for (index, times) in self.held() {
            if let Some((key, answer)) = &self.holds[index].idempotency {
                let (status, body) = answer(&times);
                bodies.push((index, key, status, body));
            }
        }
        let answers: Vec<NewAnswer<'_>> = bodies
            .iter()
            .map(|(index, key, status, body)| NewAnswer {
                key,
                status: *status,
                body,
                event: Some(self.holds[*index].event),
                resource: Some(self.holds[*index].reservation.0),
            })
            .collect();
        let kept = keep_answers(tx, &answers).await?;
        let lost: Vec<usize> =
            bodies.iter().zip(kept).filter(|(_, kept)| !kept).map(|((index, ..), _)| *index).collect();
        if lost.is_empty() {
            return Ok(());
        }
        for &index in &lost {
            self.outcomes[index] = Some(HoldOutcome::AnsweredBefore);
        }
        self.give_back(tx, &lost).await
    }

    async fn write_reservations(&self, tx: &mut Tx) -> Result<(), PgError> {
        let held = self.held();
        if held.is_empty() {
            return Ok(());
        }
        let hold = |index: &(usize, HeldTimes)| &self.holds[index.0];
        let events: Vec<Uuid> = held.iter().map(|index| hold(index).event.0).collect();
        let ids: Vec<Uuid> = held.iter().map(|index| hold(index).reservation.0).collect();
        let buyers: Vec<&str> = held.iter().map(|index| hold(index).buyer.as_str()).collect();
        let amounts: Vec<i64> = held.iter().map(|index| hold(index).amount()).collect();
        let currencies: Vec<&str> = held.iter().map(|index| hold(index).currency.code()).collect();
        let counts: Vec<i32> = held.iter().map(|i| i32::try_from(hold(i).seats.len()).unwrap_or(i32::MAX)).collect();
        let created: Vec<Instant> = held.iter().map(|(_, times)| times.created_at).collect();
        let expires: Vec<Instant> = held.iter().map(|(_, times)| times.expires_at).collect();
        let caps: Vec<Instant> = held.iter().map(|(_, times)| times.extends_until).collect();
        let seats: Vec<(Uuid, Uuid, SeatId, i64)> = held
            .iter()
            .flat_map(|index| {
                let hold = hold(index);
                hold.seats.iter().map(|(seat, price)| (hold.event.0, hold.reservation.0, *seat, *price))
            })
            .collect();
        let seat_events: Vec<Uuid> = seats.iter().map(|seat| seat.0).collect();
        let seat_owners: Vec<Uuid> = seats.iter().map(|seat| seat.1).collect();
        let seat_ids: Vec<i64> = seats.iter().map(|seat| seat.2.0).collect();
        let prices: Vec<i64> = seats.iter().map(|seat| seat.3).collect();
        sqlx::query!(
            "WITH reservation AS (
                 INSERT INTO reservations (event_id, id, buyer, status, amount, currency, seat_count, created_at, expires_at,
                                           extends_until)
                 SELECT event_id, id, buyer, 'PENDING', amount, currency, seat_count, created_at, expires_at, extends_until
                 FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::integer[],
                             $7::timestamptz[], $8::timestamptz[], $9::timestamptz[])
                     AS new (event_id, id, buyer, amount, currency, seat_count, created_at, expires_at, extends_until)),
             seat AS (
                 INSERT INTO reservation_seats (event_id, reservation_id, seat_id, price)
                 SELECT * FROM unnest($10::uuid[], $11::uuid[], $12::bigint[], $13::bigint[]))
             INSERT INTO seat_log (event_id, seat_id, reservation_id, actor, reason, before, after, at)
             SELECT event_id, seat_id, reservation_id, 'buyer', 'hold', 'available', 'held', hf_now($14)
             FROM unnest($10::uuid[], $11::uuid[], $12::bigint[]) AS held (event_id, reservation_id, seat_id)",
            &events,
            &ids,
            &buyers as &[&str],
            &amounts,
            &currencies as &[&str],
            &counts,
            &created,
            &expires,
            &caps,
            &seat_events,
            &seat_owners,
            &seat_ids,
            &prices,
            self.offset_ms
        )
        .execute(&mut **tx)
        .await?;
        Ok(())
    }
}

struct StandingClaim {
    seat: SeatId,
    status: SeatStatus,
    /// Its reservation, where the deadline has passed.
    dead: Option<ReservationId>,
}

fn is_whole(hold: &NewHold, placed: &PlacedByHold) -> bool {
    placed.get(&hold.reservation).is_some_and(|placed| placed.seats.len() == hold.seats.len())
}
