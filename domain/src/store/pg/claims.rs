//! Claims, read in bulk: a block's, a reservation's, or all of an event page by page.

use uuid::Uuid;

use crate::id::{Buyer, EventId, ReservationId, SeatId};
use crate::seat::{ClaimState, SeatStatus};
use crate::time::Instant;

use super::reservations::expire_reservations;
use super::{Pg, PgError, Tx};

/// A claim with what a seat bucket shows of its reservation.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The seat.
    pub seat: SeatId,
    /// What it is.
    pub state: ClaimState,
    /// When it dies, if it is held.
    pub expires_at: Option<Instant>,
    /// Whose it is; none for an operator's block.
    pub owner: Option<ClaimOwner>,
}

/// The reservation behind a claim.
#[derive(Debug, Clone)]
pub struct ClaimOwner {
    /// The reservation.
    pub reservation: ReservationId,
    /// Its buyer.
    pub buyer: Buyer,
    /// When it was made.
    pub created_at: Instant,
}

/// The claims on some seats of an event, and when they were read.
#[derive(Debug, Clone)]
pub struct ClaimsRead {
    /// The database's clock.
    pub read_at: Instant,
    /// In seat order by id; a seat without one is available.
    pub claims: Vec<Claim>,
}

/// A PENDING reservation that can expire, as the warm-up needs it.
#[derive(Debug, Clone, Copy)]
pub struct PendingDeadline {
    /// Its event.
    pub event: EventId,
    /// Its id.
    pub reservation: ReservationId,
    /// Its deadline.
    pub expires_at: Instant,
}

struct ClaimRow {
    seat_id: i64,
    state: String,
    expires_at: Option<Instant>,
    reservation_id: Option<Uuid>,
    buyer: Option<String>,
    created_at: Option<Instant>,
}

impl TryFrom<ClaimRow> for Claim {
    type Error = PgError;
    fn try_from(row: ClaimRow) -> Result<Self, PgError> {
        let unreadable = |column| PgError::unreadable("seat_claims", column, row.seat_id);
        let owner = match (row.reservation_id, row.buyer, row.created_at) {
            (Some(id), Some(buyer), Some(created_at)) => Some(ClaimOwner {
                reservation: ReservationId(id),
                buyer: Buyer::parse(&buyer).map_err(|_| unreadable("buyer"))?,
                created_at,
            }),
            _ => None,
        };
        Ok(Self {
            seat: SeatId(row.seat_id),
            state: ClaimState::from_word(&row.state).ok_or_else(|| unreadable("state"))?,
            expires_at: row.expires_at,
            owner,
        })
    }
}

impl Pg {
    /// The claims on seats of an event.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn read_claims(&self, event: EventId, seats: &[SeatId]) -> Result<ClaimsRead, PgError> {
        let seats: Vec<i64> = seats.iter().map(|seat| seat.0).collect();
        // The clock is read first: a claim made meanwhile is then newer than the reading, never older.
        let read_at = self.now().await?;
        // OFFSET keeps the planner from joining by the event alone, which it does while its statistics know no
        // reservation of an event that has just gone on sale: each seat would then read all of them.
        let rows = sqlx::query_as!(
            ClaimRow,
            r#"SELECT c.seat_id, c.state, c.expires_at, c.reservation_id, r.buyer AS "buyer?", r.created_at AS "created_at?"
               FROM seat_claims c
               LEFT JOIN LATERAL (
                   SELECT buyer, created_at FROM reservations
                   WHERE event_id = c.event_id AND id = c.reservation_id OFFSET 0) r ON true
               WHERE c.event_id = $1 AND c.seat_id = ANY ($2)
               ORDER BY c.seat_id"#,
            event.0,
            &seats
        )
        .fetch_all(self.pool())
        .await?;
        let claims = rows.into_iter().map(Claim::try_from).collect::<Result<_, _>>()?;
        Ok(ClaimsRead { read_at, claims })
    }

    /// A page of PENDING reservations that can expire, by key, after `after`: read from the claims, which are few.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn pending_page(
        &self,
        after: Option<(EventId, SeatId)>,
        most: i64,
    ) -> Result<(Vec<PendingDeadline>, Option<(EventId, SeatId)>), PgError> {
        let (event, seat) = after.map_or((Uuid::nil(), i64::MIN), |(event, seat)| (event.0, seat.0));
        let rows = sqlx::query!(
            r#"SELECT event_id, seat_id, reservation_id, expires_at FROM seat_claims
               WHERE (event_id, seat_id) > ($1, $2) ORDER BY event_id, seat_id LIMIT $3"#,
            event,
            seat,
            most
        )
        .fetch_all(self.pool())
        .await?;
        let next = rows.last().map(|row| (EventId(row.event_id), SeatId(row.seat_id)));
        let pending = rows.into_iter().filter_map(|row| {
            Some(PendingDeadline {
                event: EventId(row.event_id),
                reservation: ReservationId(row.reservation_id?),
                expires_at: row.expires_at?,
            })
        });
        Ok((pending.collect(), next))
    }

    /// How many claims stand on an event's seats, by state; dead ones apart.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn count_claims(&self, event: EventId) -> Result<Vec<(ClaimState, bool, i64)>, PgError> {
        let rows = sqlx::query!(
            r#"SELECT state, coalesce(expires_at <= hf_now($2), false) AS "dead!", count(*) AS "seats!"
               FROM seat_claims WHERE event_id = $1 GROUP BY 1, 2"#,
            event.0,
            self.offset_ms()
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                let state = ClaimState::from_word(&row.state);
                let state = state.ok_or_else(|| PgError::unreadable("seat_claims", "state", event))?;
                Ok((state, row.dead, row.seats))
            })
            .collect()
    }
}

/// What an operator does to seats that nobody owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// Keep from sale.
    Block,
    /// Give back to sale.
    Unblock,
}

/// Keeps seats from sale. Returns those that it could not: somebody owns them. Seats that are blocked already stay so.
pub(crate) async fn block_claims(
    tx: &mut Tx,
    (event, seats): (EventId, &[SeatId]),
    (actor, reason): (&str, &str),
    offset_ms: i64,
) -> Result<Vec<(SeatId, SeatStatus)>, PgError> {
    let seats: Vec<i64> = seats.iter().map(|seat| seat.0).collect();
    let dead = sqlx::query_scalar!(
        r#"SELECT DISTINCT reservation_id AS "reservation!" FROM seat_claims
           WHERE event_id = $1 AND seat_id = ANY ($2) AND state = 'held' AND expires_at <= hf_now($3)"#,
        event.0,
        &seats,
        offset_ms
    )
    .fetch_all(&mut **tx)
    .await?;
    let dead: Vec<ReservationId> = dead.into_iter().map(ReservationId).collect();
    if !dead.is_empty() {
        expire_reservations(tx, &dead, offset_ms).await?;
    }
    sqlx::query!(
        "WITH blocked AS (
             INSERT INTO seat_claims (event_id, seat_id, state)
             SELECT $1, seat_id, 'blocked' FROM unnest($2::bigint[]) AS seat_id ORDER BY seat_id
             ON CONFLICT ON CONSTRAINT seat_claims_pkey DO NOTHING RETURNING seat_id)
         INSERT INTO seat_log (event_id, seat_id, actor, reason, before, after, at)
         SELECT $1, seat_id, $3, $4, 'available', 'blocked', hf_now($5) FROM blocked ORDER BY seat_id",
        event.0,
        &seats,
        actor,
        reason,
        offset_ms
    )
    .execute(&mut **tx)
    .await?;
    let owned = sqlx::query!(
        "SELECT seat_id, state FROM seat_claims
         WHERE event_id = $1 AND seat_id = ANY ($2) AND state <> 'blocked' ORDER BY seat_id",
        event.0,
        &seats
    )
    .fetch_all(&mut **tx)
    .await?;
    owned
        .into_iter()
        .map(|row| {
            let state = ClaimState::from_word(&row.state);
            let state = state.ok_or_else(|| PgError::unreadable("seat_claims", "state", row.seat_id))?;
            Ok((SeatId(row.seat_id), state.seat_status()))
        })
        .collect()
}

/// Gives blocked seats back to sale; all others stay as they are.
pub(crate) async fn unblock_claims(
    tx: &mut Tx,
    (event, seats): (EventId, &[SeatId]),
    (actor, reason): (&str, &str),
    offset_ms: i64,
) -> Result<(), PgError> {
    let seats: Vec<i64> = seats.iter().map(|seat| seat.0).collect();
    sqlx::query!(
        "WITH freed AS (
             DELETE FROM seat_claims WHERE event_id = $1 AND seat_id = ANY ($2) AND state = 'blocked' RETURNING seat_id)
         INSERT INTO seat_log (event_id, seat_id, actor, reason, before, after, at)
         SELECT $1, seat_id, $3, $4, 'blocked', 'available', hf_now($5) FROM freed ORDER BY seat_id",
        event.0,
        &seats,
        actor,
        reason,
        offset_ms
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Commits the seats of a locked reservation to its payment: from now on they cannot expire. All of them, or false.
pub(crate) async fn commit_claims(
    tx: &mut Tx,
    (event, reservation): (EventId, ReservationId),
    offset_ms: i64,
) -> Result<bool, PgError> {
    let done = sqlx::query!(
        r#"WITH seats AS (SELECT seat_id FROM reservation_seats WHERE event_id = $1 AND reservation_id = $2),
                committed AS (
                    UPDATE seat_claims c SET state = 'committed', expires_at = NULL, generation = generation + 1
                    FROM seats WHERE c.event_id = $1 AND c.seat_id = seats.seat_id AND c.reservation_id = $2
                                 AND c.state IN ('held', 'committed')
                    RETURNING c.seat_id),
                noted AS (
                    UPDATE reservations SET committed_at = hf_now($3), generation = generation + 1
                    WHERE event_id = $1 AND id = $2)
           SELECT (SELECT count(*) FROM seats) = (SELECT count(*) FROM committed) AS "all!""#,
        event.0,
        reservation.0,
        offset_ms
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(done.all)
}

/// Claims all seats of a cancelled reservation again, in one step, committed at once; or none, and false.
pub(crate) async fn reclaim_seats(
    tx: &mut Tx,
    (event, reservation): (EventId, ReservationId),
    offset_ms: i64,
) -> Result<bool, PgError> {
    let wanted = sqlx::query_scalar!(
        "SELECT seat_id FROM reservation_seats WHERE event_id = $1 AND reservation_id = $2 ORDER BY seat_id",
        event.0,
        reservation.0
    )
    .fetch_all(&mut **tx)
    .await?;
    let claimed = sqlx::query_scalar!(
        "INSERT INTO seat_claims (event_id, seat_id, reservation_id, state)
         SELECT $1, seat_id, $2, 'committed' FROM unnest($3::bigint[]) AS seat_id ORDER BY seat_id
         ON CONFLICT ON CONSTRAINT seat_claims_pkey DO NOTHING RETURNING seat_id",
        event.0,
        reservation.0,
        &wanted
    )
    .fetch_all(&mut **tx)
    .await?;
    if claimed.len() != wanted.len() {
        sqlx::query!(
            "DELETE FROM seat_claims WHERE event_id = $1 AND seat_id = ANY ($2) AND reservation_id = $3",
            event.0,
            &claimed,
            reservation.0
        )
        .execute(&mut **tx)
        .await?;
        return Ok(false);
    }
    sqlx::query!(
        "WITH back AS (
             UPDATE reservations SET status = 'PENDING', cancel_reason = NULL, ended_at = NULL, committed_at = hf_now($4),
                 generation = generation + 1
             WHERE event_id = $1 AND id = $2)
         INSERT INTO seat_log (event_id, seat_id, reservation_id, actor, reason, before, after, at)
         SELECT $1, seat_id, $2, 'payment', 'late_payment', 'available', 'committed', hf_now($4)
         FROM unnest($3::bigint[]) AS seat_id",
        event.0,
        reservation.0,
        &claimed,
        offset_ms
    )
    .execute(&mut **tx)
    .await?;
    Ok(true)
}

/// Sells the committed seats of a locked reservation and confirms it. All of them, or false.
pub(crate) async fn sell_claims(
    tx: &mut Tx,
    (event, reservation): (EventId, ReservationId),
    offset_ms: i64,
) -> Result<bool, PgError> {
    let done = sqlx::query!(
        r#"WITH seats AS (SELECT seat_id FROM reservation_seats WHERE event_id = $1 AND reservation_id = $2),
                sold AS (
                    UPDATE seat_claims c SET state = 'sold', expires_at = NULL, generation = generation + 1
                    FROM seats WHERE c.event_id = $1 AND c.seat_id = seats.seat_id AND c.reservation_id = $2
                                 AND c.state = 'committed'
                    RETURNING c.seat_id),
                confirmed AS (
                    UPDATE reservations SET status = 'CONFIRMED', ended_at = hf_now($3), generation = generation + 1
                    WHERE event_id = $1 AND id = $2 AND status = 'PENDING'),
                logged AS (
                    INSERT INTO seat_log (event_id, seat_id, reservation_id, actor, reason, before, after, at)
                    SELECT $1, seat_id, $2, 'payment', 'confirmed', 'committed', 'sold', hf_now($3) FROM sold ORDER BY seat_id)
           SELECT (SELECT count(*) FROM seats) = (SELECT count(*) FROM sold) AS "all!""#,
        event.0,
        reservation.0,
        offset_ms
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(done.all)
}
