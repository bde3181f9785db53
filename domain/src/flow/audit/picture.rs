//! The picture in Redis: each block's list, and each seat's bucket beside its claim.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::event::Event;
use crate::id::{EventId, OutboxId, ReservationId, SeatId};
use crate::label::Label;
use crate::seat::SeatStatus;
use crate::seat_map::{Block, SeatMap};
use crate::store::pg::audit::AuditedClaim;
use crate::store::redis::buckets::{BlockPicture, SeatBucket};
use crate::store::redis::keys::BlockKey;
use crate::time::{Instant, from_ms, to_ms};

use super::doubt::{About, Difference};
use super::finding::{Finding, FindingCode, Place, Repair};
use super::{Audit, Gap};

/// A seat of an event, and how its key names it.
#[derive(Debug, Clone)]
pub(super) struct SeatPlace {
    pub event: EventId,
    pub block: BlockKey,
    pub seat: SeatId,
    pub column: Label,
    pub row: Label,
}

impl SeatPlace {
    fn place(&self) -> Place {
        Place {
            event: Some(self.event),
            block: Some(self.block.block.clone()),
            column_row: Some((self.column.clone(), self.row.clone())),
            seat: Some(self.seat),
            ..Place::default()
        }
    }
}

impl Audit<'_> {
    /// Every block of an event that Redis must show.
    pub(super) async fn picture(&mut self, event: &Event) -> Result<(), Gap> {
        let map = self.map_of(event).await?;
        let page = usize::try_from(self.plan.page).unwrap_or(500).max(1);
        for block in map.blocks() {
            let key = BlockKey { date: event.date_key.as_str().into(), block: block.block.clone() };
            let list = self.look_at_list(event.id, &key, (&map, block)).await?;
            self.doubt_or_gap(list.into_iter().collect()).await?;
            for seats in map.seats_of(block).chunks(page) {
                let places: Vec<SeatPlace> = seats
                    .iter()
                    .map(|seat| SeatPlace {
                        event: event.id,
                        block: key.clone(),
                        seat: seat.id,
                        column: seat.column.clone(),
                        row: seat.row.clone(),
                    })
                    .collect();
                let differences = self.look_at_seats(&places).await?;
                self.doubt_or_gap(differences).await?;
                self.report.looked_at.seats += u64::try_from(places.len()).unwrap_or(0);
                self.breathe(&event.title).await;
            }
            self.report.looked_at.blocks += 1;
        }
        Ok(())
    }

    pub(super) async fn doubt_or_gap(&mut self, differences: Vec<Difference>) -> Result<(), Gap> {
        match self.doubt(differences).await {
            Ok(()) | Err(super::AuditError::NotFound(_)) => Ok(()),
            Err(super::AuditError::Pg(error)) => Err(error.into()),
        }
    }

    /// The map of one venue is kept: events of a venue mostly stand together.
    pub(super) async fn map_of(&mut self, event: &Event) -> Result<Arc<SeatMap>, Gap> {
        if let Some((venue, map)) = &self.map
            && *venue == event.venue
        {
            return Ok(Arc::clone(map));
        }
        self.map = None;
        let map = Arc::new(self.stores.pg.load_seat_map(event.venue).await?);
        self.map = Some((event.venue, Arc::clone(&map)));
        Ok(map)
    }

    pub(super) async fn look_at_list_again(
        &mut self,
        event: EventId,
        block: &Label,
    ) -> Result<Option<Difference>, Gap> {
        let Some(event) = self.stores.pg.find_event(event).await? else { return Ok(None) };
        if !self.is_shown(&event).await? {
            return Ok(None);
        }
        let map = self.map_of(&event).await?;
        let Some(block) = map.block(block) else { return Ok(None) };
        let key = BlockKey { date: event.date_key.as_str().into(), block: block.block.clone() };
        self.look_at_list(event.id, &key, (&map, block)).await
    }

    /// A block's list: its seats' keys, each once, in seat order, for ever. Compared piece by piece.
    async fn look_at_list(
        &self,
        event: EventId,
        key: &BlockKey,
        (map, block): (&SeatMap, &Block),
    ) -> Result<Option<Difference>, Gap> {
        let redis = &self.stores.redis;
        let seats = map.seats_of(block);
        let (entries, lifetime_ms) = redis.list_facts(key).await?;
        let mut wrong = (entries != seats.len()).then(|| format!("{entries} entries"));
        if lifetime_ms >= 0 {
            wrong = Some(format!("it vanishes in {lifetime_ms} ms"));
        }
        let page = usize::try_from(self.plan.page).unwrap_or(500).max(1);
        for (piece, seats) in seats.chunks(page).enumerate() {
            if wrong.is_some() {
                break;
            }
            let listed = redis.list_piece(key, piece * page, page).await?;
            let wanted = seats.iter().map(|seat| redis.keys().seat(key, &seat.column, &seat.row));
            wrong = wanted.enumerate().find_map(|(at, wanted)| {
                let listed = listed.get(at).map_or("nothing", String::as_str);
                (listed != wanted).then(|| format!("{listed} where {wanted} belongs"))
            });
        }
        let Some(wrong) = wrong else { return Ok(None) };
        let place = Place { event: Some(event), block: Some(block.block.clone()), ..Place::default() };
        let finding =
            Finding::new(FindingCode::SeatListDiffers, place, "the block's list is not its seats in their order")
                .found("postgres", format!("{} seats", seats.len()))
                .found("redis", if entries == 0 { "no list".to_owned() } else { wrong.clone() })
                .repair(Repair::RebuildBlock(event, block.block.clone()));
        let finding = match self.redis.explanation() {
            Some(by) => finding.explained(by),
            None => finding,
        };
        // A lifetime that runs down is the same difference.
        let sides = if lifetime_ms >= 0 { "it vanishes".to_owned() } else { wrong };
        Ok(Some(Difference { about: About::List(event, block.block.clone()), sides, finding }))
    }

    /// Seats of one block: each bucket beside its claim.
    pub(super) async fn look_at_seats(&self, places: &[SeatPlace]) -> Result<Vec<Difference>, Gap> {
        let Some(first) = places.first() else { return Ok(Vec::new()) };
        let seats: Vec<SeatId> = places.iter().map(|place| place.seat).collect();
        let keys: Vec<String> =
            places.iter().map(|place| self.stores.redis.keys().seat(&place.block, &place.column, &place.row)).collect();
        let (read_at, claims) = self.stores.pg.audited_claims(first.event, &seats).await?;
        let BlockPicture { now_ms, buckets, .. } = self.stores.redis.read_seats(&first.block, keys).await?;
        let claims: HashMap<SeatId, &AuditedClaim> = claims.iter().map(|claim| (claim.seat, claim)).collect();
        let mut differences = Vec::new();
        for (place, (_, bucket)) in places.iter().zip(&buckets) {
            let seen = Seen { claim: claims.get(&place.seat).copied(), read_at, bucket: bucket.as_ref(), now_ms };
            if let Some((code, detail)) = seen.difference(place.event) {
                differences.push(seen.into_difference(place, code, detail));
            }
        }
        self.explain_seats(first.event, &mut differences).await?;
        Ok(differences)
    }

    /// A difference is explained by whatever will make Redis show the seat again soon: an entry of its reservation that is
    /// due in the deadline index; an open row of the event, whose job writes every block; a warm-up.
    async fn explain_seats(&self, event: EventId, differences: &mut [Difference]) -> Result<(), Gap> {
        if differences.is_empty() {
            return Ok(());
        }
        let ids: Vec<ReservationId> =
            differences.iter().filter_map(|difference| difference.finding.place.reservation).collect();
        let (now_ms, registered) = self.stores.redis.registered_deadlines(&ids).await?;
        let soon_ms = now_ms + self.stores.timing.gate_ms;
        let due: BTreeSet<ReservationId> = ids
            .iter()
            .zip(registered)
            .filter(|(_, registered)| registered.score_ms.is_some_and(|score| score <= soon_ms))
            .map(|(id, _)| *id)
            .collect();
        let is_opening = !self.stores.pg.audit_open_rows(&[OutboxId(event.0)]).await?.is_empty();
        for difference in differences {
            let is_due = difference.finding.place.reservation.is_some_and(|owner| due.contains(&owner));
            let by = match self.redis.explanation() {
                Some(by) => by,
                None if is_opening => "the event's job writes all its blocks again",
                None if is_due => "the sweep will look at its reservation",
                None => continue,
            };
            difference.finding = difference.finding.clone().explained(by);
        }
        Ok(())
    }
}

/// A seat on both sides.
struct Seen<'a> {
    claim: Option<&'a AuditedClaim>,
    read_at: Instant,
    bucket: Option<&'a SeatBucket>,
    now_ms: i64,
}

impl Seen<'_> {
    /// A deadline that has passed is no claim any more, in either store.
    fn difference(&self, event: EventId) -> Option<(FindingCode, &'static str)> {
        let Some(bucket) = self.bucket else { return Some((FindingCode::BucketAbsent, "the seat has no bucket")) };
        let Some(shown) = bucket.seat_status_at(self.now_ms) else {
            return Some((FindingCode::BucketUnreadable, "the bucket cannot be read"));
        };
        let alive = self.claim.filter(|claim| claim.expires_at.is_none_or(|deadline| deadline > self.read_at));
        let wanted = alive.map_or(SeatStatus::Available, |claim| claim.state.seat_status());
        match (wanted, shown) {
            (SeatStatus::Available, SeatStatus::Available) => {
                let other = bucket.match_id != event.to_string();
                other.then_some((FindingCode::SeatShownWrong, "the bucket is another event's"))
            }
            (_, SeatStatus::Available) => {
                Some((FindingCode::SeatShownAvailable, "Redis shows the seat available, and it is owned"))
            }
            (SeatStatus::Available, _) => {
                Some((FindingCode::SeatShownTaken, "Redis shows the seat taken, and nobody owns it"))
            }
            (wanted, shown) if wanted != shown => {
                Some((FindingCode::SeatShownWrong, "Redis shows another status than the claim has"))
            }
            _ => {
                let claim = alive?;
                let is_same = bucket.match_id == event.to_string()
                    && bucket.reservation_id == claim.reservation.map(|id| id.to_string())
                    && bucket.user_id.as_deref() == claim.buyer.as_ref().map(|buyer| buyer.as_str())
                    && bucket.deadline() == claim.expires_at.map(to_ms);
                (!is_same).then_some((
                    FindingCode::SeatShownWrong,
                    "Redis shows another owner or deadline than the claim has",
                ))
            }
        }
    }

    fn into_difference(self, seat: &SeatPlace, code: FindingCode, detail: &str) -> Difference {
        let shown_owner = self.bucket.and_then(|bucket| bucket.reservation_id.as_deref()?.parse().ok());
        let place =
            Place { reservation: self.claim.and_then(|claim| claim.reservation).or(shown_owner), ..seat.place() };
        let (claim, bucket) = (self.claim_words(), self.bucket_words());
        let generation = self.claim.map_or(0, |claim| claim.generation);
        let version = self.bucket.and_then(|bucket| bucket.version.clone()).unwrap_or_default();
        let mut finding = Finding::new(code, place, detail)
            .found("postgres", &claim)
            .found("redis", &bucket)
            .repair(Repair::RebuildBlock(seat.event, seat.block.block.clone()));
        finding.since = self.claim.and_then(|claim| claim.expires_at).filter(|deadline| *deadline <= self.read_at);
        Difference {
            about: About::Seat(Box::new(seat.clone())),
            sides: format!("{code:?} {claim} {generation} {bucket} {version}"),
            finding,
        }
    }

    fn claim_words(&self) -> String {
        let Some(claim) = self.claim else { return "available".to_owned() };
        let mut words = claim.state.as_str().to_owned();
        if let Some(reservation) = claim.reservation {
            words.push_str(&format!(" by {reservation}"));
        }
        if let Some(deadline) = claim.expires_at {
            words.push_str(&format!(" until {}", crate::time::rfc3339_ms(deadline)));
        }
        words
    }

    fn bucket_words(&self) -> String {
        let Some(bucket) = self.bucket else { return "absent".to_owned() };
        let mut words = if bucket.status.is_empty() { "unreadable".to_owned() } else { bucket.status.clone() };
        if let Some(reservation) = &bucket.reservation_id {
            words.push_str(&format!(" by {reservation}"));
        }
        if let Some(deadline) = bucket.deadline() {
            words.push_str(&format!(" until {}", crate::time::rfc3339_ms(from_ms(deadline))));
        }
        words
    }
}
