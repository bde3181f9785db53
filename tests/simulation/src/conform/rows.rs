//! What is stored, compared row by row and bucket by bucket.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::gateway::ProviderState;
use domain::id::{PaymentId, ReservationId};
use domain::reservation::CancelReason;
use serde_json::Value;
use uuid::Uuid;

use super::real::{Event, TICK_MS};
use crate::model::act::Act;
use crate::model::world::{Bucket, Entry, EntryState, Index, Refund, Row, Ticks, World};

/// How long a healing may take that a refusal began.
const HEALED_WITHIN: Duration = Duration::from_secs(5);

impl Event<'_> {
    /// Numbers the rows that the operation made.
    pub(super) async fn find_new_rows(&mut self, act: Act) {
        if let Act::Hold(..) = act {
            let ids: Vec<Uuid> = self.ask("SELECT id FROM reservations WHERE event_id = $1 ORDER BY id").await;
            let is_known = |id: &Uuid| self.reservations.contains(&Some(ReservationId(*id)));
            let new = ids.into_iter().find(|id| !is_known(id)).map(ReservationId);
            self.reservations.push(new);
        }
        let ids: Vec<Uuid> = self.ask("SELECT id FROM payments WHERE event_id = $1 ORDER BY id").await;
        self.newest_payment = ids.into_iter().map(PaymentId).find(|id| !self.payments.contains(id));
        self.payments.extend(self.newest_payment);
    }

    async fn ask(&self, sql: &'static str) -> Vec<Uuid> {
        sqlx::query_scalar(sql).bind(self.id.0).fetch_all(&self.installation.sql).await.expect("Postgres answers")
    }

    /// Compares all that is stored with the model.
    pub(super) async fn compare(&self, world: &World) -> Result<(), String> {
        differ("reservations", &self.reservations_in_postgres().await, &self.reservations_of(world))?;
        differ("claims", &self.claims_in_postgres().await, &self.claims_of(world))?;
        differ("payments", &self.payments_in_postgres().await, &payments_of(world))?;
        let begun = tokio::time::Instant::now();
        loop {
            let shown = self.buckets_in_redis(world.now).await;
            let compared = differ("buckets", &shown, &buckets_of(world));
            if compared.is_ok() || begun.elapsed() > HEALED_WITHIN {
                return compared;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn ticks(&self, at_ms: i64) -> i64 {
        (at_ms - self.began_ms).div_euclid(TICK_MS)
    }

    fn number(&self, id: Uuid) -> String {
        let at = self.reservations.iter().position(|known| *known == Some(ReservationId(id)));
        at.map_or_else(|| id.to_string(), |at| at.to_string())
    }

    async fn reservations_in_postgres(&self) -> BTreeMap<String, String> {
        type Found = (Uuid, String, Option<String>, bool, i64, i32);
        let rows: Vec<Found> = sqlx::query_as(
            "SELECT id, status, cancel_reason, committed_at IS NOT NULL AND status = 'PENDING',
                    (extract(epoch FROM expires_at) * 1000)::bigint, extensions
             FROM reservations WHERE event_id = $1",
        )
        .bind(self.id.0)
        .fetch_all(&self.installation.sql)
        .await
        .expect("Postgres answers");
        let text = |(id, status, reason, committed, expires_at, extensions): Found| {
            let reason = reason.unwrap_or_default();
            let until = self.ticks(expires_at);
            (self.number(id), format!("{status} {reason} {committed} until {until} extended {extensions}"))
        };
        rows.into_iter().map(text).collect()
    }

    fn reservations_of(&self, world: &World) -> BTreeMap<String, String> {
        let rows = world.reservations.iter().enumerate().filter_map(|(at, it)| {
            let (status, reason, committed) = match it.row {
                Row::Absent => return None,
                Row::Pending => ("PENDING", "", false),
                Row::Committed => ("PENDING", "", true),
                Row::Confirmed => ("CONFIRMED", "", false),
                Row::Cancelled(reason) => ("CANCELLED", CancelReason::as_str(reason), false),
            };
            let (until, extensions) = (it.expires_at, it.extensions);
            Some((at.to_string(), format!("{status} {reason} {committed} until {until} extended {extensions}")))
        });
        rows.collect()
    }

    async fn claims_in_postgres(&self) -> BTreeMap<String, String> {
        let rows: Vec<(i64, String, Option<Uuid>)> =
            sqlx::query_as("SELECT seat_id, state, reservation_id FROM seat_claims WHERE event_id = $1")
                .bind(self.id.0)
                .fetch_all(&self.installation.sql)
                .await
                .expect("Postgres answers");
        let seats = self.sheet.map.seats_of(&self.sheet.map.blocks()[0]);
        let text = |(seat, state, owner): (i64, String, Option<Uuid>)| {
            let at = seats.iter().position(|known| known.id.0 == seat).unwrap_or(usize::MAX);
            (at.to_string(), format!("{state} of {}", owner.map_or_else(String::new, |id| self.number(id))))
        };
        rows.into_iter().map(text).collect()
    }

    fn claims_of(&self, world: &World) -> BTreeMap<String, String> {
        let claims = world.claims.iter().enumerate().filter_map(|(seat, claim)| Some((seat, (*claim)?)));
        claims.map(|(seat, it)| (seat.to_string(), format!("{} of {}", it.state.as_str(), it.reservation))).collect()
    }

    /// With its outbox row, its refund and what the provider keeps.
    async fn payments_in_postgres(&self) -> BTreeMap<String, String> {
        let rows: Vec<(Uuid, String, bool, Option<String>)> = sqlx::query_as(
            "SELECT p.id, p.status, EXISTS (SELECT FROM outbox o WHERE o.event_id = p.event_id AND o.id = p.id),
                    (SELECT f.status FROM refunds f WHERE f.event_id = p.event_id AND f.payment_id = p.id)
             FROM payments p WHERE event_id = $1",
        )
        .bind(self.id.0)
        .fetch_all(&self.installation.sql)
        .await
        .expect("Postgres answers");
        let text = |(id, status, open, refund): (Uuid, String, bool, Option<String>)| {
            let id = PaymentId(id);
            let at = self.payments.iter().position(|known| *known == id).unwrap_or(usize::MAX);
            let kept = self.provider.kept(id).map_or_else(String::new, |kept| {
                let state = match kept.state {
                    ProviderState::Pending => EntryState::Pending,
                    ProviderState::Authorized => EntryState::Authorized,
                    ProviderState::Captured => EntryState::Captured,
                    ProviderState::Declined(_) => EntryState::Declined,
                    ProviderState::Voided => EntryState::Voided,
                };
                format!("{state:?} taken {} back {}", kept.captures, i32::from(kept.refunded == kept.amount.amount))
            });
            let refund = refund.unwrap_or_else(|| "none".to_owned());
            (at.to_string(), format!("{status} open {open} refund {refund} {kept}"))
        };
        rows.into_iter().map(text).collect()
    }

    async fn buckets_in_redis(&self, now: Ticks) -> BTreeMap<String, String> {
        let block = &self.sheet.map.blocks()[0];
        let key = self.sheet.block_key(block);
        let keys = self.installation.stores.redis.keys();
        let mut connection = self.installation.redis().await;
        let mut shown = BTreeMap::new();
        for (at, seat) in self.sheet.map.seats_of(block).iter().enumerate() {
            let key = keys.seat(&key, &seat.column, &seat.row);
            let json: Option<String> =
                redis::cmd("GET").arg(key).query_async(&mut connection).await.expect("Redis answers");
            let bucket: Value = json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
            let field = |name: &str| bucket[name].as_str();
            let deadline = field("deadlineMs").and_then(|text| text.parse().ok()).map(|at_ms| self.ticks(at_ms));
            let is_dead = deadline.is_some_and(|at| at <= i64::from(now));
            let status = field("status").filter(|status| *status != "available" && !is_dead);
            let Some(status) = status else { continue };
            // A gate's owner may have no row, and then no number.
            let owner = field("reservationId").and_then(|id| id.parse().ok()).map(|id| self.number(id));
            let owner = owner.filter(|_| field("createdAt").is_some()).unwrap_or_else(|| "a gate".to_owned());
            shown.insert(at.to_string(), format!("{status} of {owner} until {deadline:?}"));
        }
        shown
    }
}

fn payments_of(world: &World) -> BTreeMap<String, String> {
    let text = |(at, it): (usize, &crate::model::world::Payment)| {
        let kept = it.entry.map_or_else(String::new, |Entry { state, captures, refunds, .. }| {
            format!("{state:?} taken {captures} back {refunds}")
        });
        let refund = match it.refund {
            Refund::None => "none",
            Refund::Requested => "requested",
            Refund::Done => "done",
        };
        (at.to_string(), format!("{} open {} refund {refund} {kept}", it.status.as_str(), it.outbox))
    };
    world.payments.iter().enumerate().map(text).collect()
}

fn buckets_of(world: &World) -> BTreeMap<String, String> {
    let until = |at: Option<Ticks>| at.map(i64::from);
    let owned = |status: &str, owner: Index, at| format!("{status} of {owner} until {:?}", until(at));
    let text = |bucket: Bucket| match bucket {
        Bucket::Absent | Bucket::Available => None,
        Bucket::Gate(_, at) | Bucket::Held(_, Some(at)) if at <= world.now => None,
        Bucket::Gate(_, at) => Some(format!("held of a gate until {:?}", until(Some(at)))),
        Bucket::Held(owner, at) => Some(owned("held", owner, at)),
        Bucket::Sold(owner) => Some(owned("sold", owner, None)),
    };
    let buckets = world.redis.buckets.iter().enumerate();
    buckets.filter_map(|(at, bucket)| Some((at.to_string(), text(*bucket)?))).collect()
}

fn differ(what: &str, engine: &BTreeMap<String, String>, model: &BTreeMap<String, String>) -> Result<(), String> {
    if engine == model { Ok(()) } else { Err(format!("{what}: the engine has {engine:?}, the model {model:?}")) }
}
