//! What Postgres and the provider's books must say.

use sqlx::PgPool;

use super::{AuditError, Installation};
use crate::provider::ScriptedProvider;

/// True at any moment. `$1` is the clock's offset in ms; each row is a finding.
const ALWAYS: &[&str] = &[
    // I1, read from the reservations' side: the claims' primary key is not trusted to know.
    "SELECT format('I1: seat %s of event %s has %s live owners', rs.seat_id, rs.event_id, count(*))
     FROM reservation_seats rs JOIN reservations r ON r.event_id = rs.event_id AND r.id = rs.reservation_id
     WHERE r.status = 'CONFIRMED' OR (r.status = 'PENDING' AND (r.committed_at IS NOT NULL
           OR r.expires_at > date_trunc('milliseconds', clock_timestamp()) + $1 * interval '1 millisecond'))
     GROUP BY rs.event_id, rs.seat_id HAVING count(*) > 1",
    "SELECT format('I1: %s reservation %s lacks its claim on seat %s (it is %s of %s)', r.status, r.id, rs.seat_id,
                   coalesce(c.state, 'available'), c.reservation_id)
     FROM reservations r JOIN reservation_seats rs ON rs.event_id = r.event_id AND rs.reservation_id = r.id
     LEFT JOIN seat_claims c ON c.event_id = rs.event_id AND c.seat_id = rs.seat_id
     WHERE r.status <> 'CANCELLED' AND (c.reservation_id IS DISTINCT FROM r.id OR c.state IS DISTINCT FROM
           CASE WHEN r.status = 'CONFIRMED' THEN 'sold' WHEN r.committed_at IS NULL THEN 'held' ELSE 'committed' END)",
    "SELECT format('I3: seat %s is held until %s, its reservation %s until %s', c.seat_id, c.expires_at, r.id, r.expires_at)
     FROM seat_claims c JOIN reservations r ON r.event_id = c.event_id AND r.id = c.reservation_id
     WHERE c.state = 'held' AND c.expires_at <> r.expires_at",
    "SELECT format('a %s claim on seat %s belongs to %s, which has no such seat or is over', c.state, c.seat_id,
                   c.reservation_id)
     FROM seat_claims c
     LEFT JOIN reservation_seats rs ON rs.event_id = c.event_id AND rs.seat_id = c.seat_id
          AND rs.reservation_id = c.reservation_id
     LEFT JOIN reservations r ON r.event_id = c.event_id AND r.id = c.reservation_id
     WHERE c.state <> 'blocked' AND (rs.seat_id IS NULL OR r.id IS NULL OR r.status = 'CANCELLED')",
    "SELECT format('reservation %s has %s seats for %s, its row says %s for %s', r.id, count(rs.seat_id),
                   coalesce(sum(rs.price), 0), r.seat_count, r.amount)
     FROM reservations r LEFT JOIN reservation_seats rs ON rs.event_id = r.event_id AND rs.reservation_id = r.id
     GROUP BY r.event_id, r.id HAVING count(rs.seat_id) <> r.seat_count OR coalesce(sum(rs.price), 0) <> r.amount",
    "SELECT format('I2: %s is CONFIRMED for %s, %s is kept', r.id, r.amount, coalesce(sum(p.amount - p.refunded_amount), 0))
     FROM reservations r LEFT JOIN payments p ON p.event_id = r.event_id AND p.reservation_id = r.id
          AND p.status IN ('captured', 'partly_refunded', 'refunded')
     WHERE r.status = 'CONFIRMED'
     GROUP BY r.event_id, r.id HAVING coalesce(sum(p.amount - p.refunded_amount), 0) <> r.amount",
    "SELECT format('payment %s says %s is given back, its refunds say %s', p.id, p.refunded_amount,
                   coalesce(sum(f.amount), 0))
     FROM payments p LEFT JOIN refunds f ON f.event_id = p.event_id AND f.payment_id = p.id AND f.status = 'done'
     GROUP BY p.event_id, p.id HAVING coalesce(sum(f.amount), 0) <> p.refunded_amount",
    // Committing is not a change to the outside, so the log may leave it out.
    "SELECT format('the log of seat %s goes from %s to a change of %s (entry %s)', seat_id, prior, before, sequence)
     FROM (SELECT seat_id, sequence, replace(before, 'committed', 'held') AS before,
                  replace(coalesce(lag(after) OVER (PARTITION BY event_id, seat_id ORDER BY sequence), 'available'),
                          'committed', 'held') AS prior
           FROM seat_log) AS log WHERE before <> prior",
    "SELECT format('the log of seat %s ends at %s, it is %s', coalesce(log.seat_id, c.seat_id), log.after, c.state)
     FROM (SELECT DISTINCT ON (event_id, seat_id) event_id, seat_id, replace(after, 'committed', 'held') AS after
           FROM seat_log ORDER BY event_id, seat_id, sequence DESC) AS log
     FULL JOIN seat_claims c ON c.event_id = log.event_id AND c.seat_id = log.seat_id
     WHERE coalesce(log.after, 'available') <> replace(coalesce(c.state, 'available'), 'committed', 'held')",
    "SELECT format('the provider took money %s times under %s', captures, key) FROM fake_provider_ledger WHERE captures > 1",
];

/// True once everything has come to rest.
const SETTLED: &[&str] = &[
    "SELECT format('I3: reservation %s is PENDING past its deadline', id) FROM reservations
     WHERE status = 'PENDING' AND committed_at IS NULL
       AND expires_at <= date_trunc('milliseconds', clock_timestamp()) + $1 * interval '1 millisecond'",
    "SELECT format('reservation %s is still committed', id) FROM reservations r
     WHERE status = 'PENDING' AND committed_at IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.event_id = r.event_id AND p.reservation_id = r.id
           AND p.status = 'needs_review')",
    "SELECT format('I5: job %s of %s is still open', kind, id) FROM outbox
     WHERE NOT EXISTS (SELECT 1 FROM payments p WHERE p.event_id = outbox.event_id AND p.id = outbox.id
           AND p.status = 'requested'
           AND p.deadline > date_trunc('milliseconds', clock_timestamp()) + $1 * interval '1 millisecond')",
    "SELECT format('I5: refund %s is still %s', id, status) FROM refunds WHERE status <> 'done'",
    "SELECT format('I2: %s is %s, %s is kept', r.id, r.status, sum(p.amount - p.refunded_amount))
     FROM reservations r JOIN payments p ON p.event_id = r.event_id AND p.reservation_id = r.id
          AND p.status IN ('captured', 'partly_refunded', 'refunded')
     WHERE r.status <> 'CONFIRMED'
     GROUP BY r.event_id, r.id, r.status HAVING sum(p.amount - p.refunded_amount) <> 0",
    "SELECT format('I2: the fake provider keeps %s for %s, which is %s for %s',
                   coalesce(sum(l.amount * l.captures - l.refunded), 0), r.id, r.status, r.amount)
     FROM reservations r JOIN payments p ON p.event_id = r.event_id AND p.reservation_id = r.id
     JOIN fake_provider_ledger l ON l.key = p.id::text
     GROUP BY r.event_id, r.id, r.status, r.amount
     HAVING coalesce(sum(l.amount * l.captures - l.refunded), 0) <>
            CASE WHEN r.status = 'CONFIRMED' THEN r.amount ELSE 0 END",
];

/// What breaks an invariant in Postgres right now.
///
/// # Errors
/// It cannot be asked.
pub async fn audit_postgres(sql: &PgPool, offset_ms: i64) -> Result<Vec<String>, AuditError> {
    ask(sql, offset_ms, ALWAYS).await
}

/// What breaks an invariant in Postgres or in the provider's books, now that everything should have come to rest.
///
/// # Errors
/// It cannot be asked.
pub async fn audit_settled(of: &Installation<'_>, provider: &ScriptedProvider) -> Result<Vec<String>, AuditError> {
    let mut findings = audit_postgres(of.sql, of.offset_ms).await?;
    findings.extend(ask(of.sql, of.offset_ms, SETTLED).await?);
    let wanted: Vec<(uuid::Uuid, String, String, i64)> = sqlx::query_as(
        "SELECT p.id, p.status, r.status, r.amount FROM payments p
         JOIN reservations r ON r.event_id = p.event_id AND r.id = p.reservation_id",
    )
    .fetch_all(of.sql)
    .await?;
    for (id, entry) in provider.entries() {
        if entry.captures > 1 {
            findings.push(format!("I5: the provider took money {} times under {id}", entry.captures));
        }
        let Some((_, payment, reservation, amount)) = wanted.iter().find(|row| row.0 == id.0) else {
            findings.push(format!("I5: the provider has {id}, which we do not know"));
            continue;
        };
        let kept = entry.amount.amount * i64::from(entry.captures) - entry.refunded;
        let is_kept = payment == "captured" && reservation == "CONFIRMED";
        let should_be = if is_kept { *amount } else { 0 };
        if kept != should_be {
            findings
                .push(format!("I2: the provider keeps {kept} for payment {id} ({payment}, {reservation}, {amount})"));
        }
    }
    Ok(findings)
}

/// All of them in one statement, which sees one moment.
async fn ask(sql: &PgPool, offset_ms: i64, questions: &[&str]) -> Result<Vec<String>, AuditError> {
    // The parameter stands in every statement, though some only need it to be there.
    let question = |sql: &&str| format!("SELECT finding FROM ({sql}) AS found (finding) WHERE $1::bigint IS NOT NULL");
    let whole = questions.iter().map(question).collect::<Vec<_>>().join("\nUNION ALL\n");
    Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(whole)).bind(offset_ms).fetch_all(sql).await?)
}
