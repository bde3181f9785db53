//! The faults.

use super::Catcher::{Conform, Model, Sim};
use super::Mutation;

const HOLDS: &str = "domain/src/store/pg/holds.rs";
const CLAIMS: &str = "domain/src/store/pg/claims.rs";
const RESERVATIONS: &str = "domain/src/store/pg/reservations.rs";
const PAYMENTS: &str = "domain/src/store/pg/payments.rs";
const FINALIZE: &str = "domain/src/flow/finalize_payment.rs";
const READ_BLOCK: &str = "domain/src/flow/read_block.rs";
const DECIDE_PAYMENT: &str = "domain/src/decide/payment.rs";
const DECIDE_RESERVATION: &str = "domain/src/decide/reservation.rs";
const GATE: &str = "domain/src/store/redis/gate.lua";
const CHANGE: &str = "domain/src/store/redis/change.lua";
const UNHOLD: &str = "domain/src/flow/unhold.rs";
const PLACE_HOLD: &str = "domain/src/flow/place_hold.rs";
const WARM_UP: &str = "domain/src/flow/warm_up.rs";

/// All of them.
pub const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "give-back-without-owner",
        file: HOLDS,
        find: "AND c.seat_id = mine.seat_id AND c.reservation_id = mine.owner\"",
        replace: "AND c.seat_id = mine.seat_id\"",
        invariant: "I1",
        why: "a refused hold deletes the claim of whoever is in its way",
        catcher: Conform,
    },
    Mutation {
        name: "release-without-compare-and-set",
        file: CHANGE,
        find: "  if not readable or type(bucket) ~= 'table' or bucket.reservationId ~= owner then",
        replace: "  if rule == 'take' and (not readable or type(bucket) ~= 'table' or bucket.reservationId ~= owner) then",
        invariant: "I6",
        why: "a late release frees, in Redis, the seat of whoever has it now",
        catcher: Conform,
    },
    Mutation {
        name: "takeover-by-the-wrong-clock",
        file: HOLDS,
        find: "coalesce(c.state = 'held' AND c.expires_at <= hf_now($3), false)",
        replace: "coalesce(c.state = 'held' AND c.expires_at <= hf_now($3::bigint * 0), false)",
        invariant: "I3",
        why: "whether a claim is dead is told by another clock than its deadline was",
        catcher: Conform,
    },
    Mutation {
        name: "gate-blind-to-deadlines",
        file: GATE,
        find: "if bucket.status ~= 'held' or deadline == nil or deadline > now then",
        replace: "if bucket.status ~= 'held' or deadline == nil or deadline > 0 then",
        invariant: "I3",
        why: "a dead hold stands in the next buyer's way until somebody tidies up",
        catcher: Conform,
    },
    Mutation {
        name: "capture-before-the-seats",
        file: FINALIZE,
        find: "        self.stores.faults.pass(FaultPoint::PaymentAuthorized).await;",
        replace: "        let answer = self.gateway.capture(&request).await.unwrap_or(answer);\n        \
                  self.stores.faults.pass(FaultPoint::PaymentAuthorized).await;",
        invariant: "I2",
        why: "money is taken before the seats are committed to it",
        catcher: Conform,
    },
    Mutation {
        name: "no-outbox-row",
        file: PAYMENTS,
        find: "    insert_outbox(tx, &row).await?;\n",
        replace: "",
        invariant: "I5",
        why: "a payment's job is pushed, but no row says that it must exist",
        catcher: Conform,
    },
    Mutation {
        name: "outbox-closed-early",
        file: FINALIZE,
        find: "            set_payment_status(&mut tx, &payment, (PaymentStatus::Capturing, None), self.offset_ms()).await?;",
        replace: "            set_payment_status(&mut tx, &payment, (PaymentStatus::Capturing, None), self.offset_ms()).await?;\n            \
                  close_outbox(&mut tx, head.event, OutboxId(payment.id.0)).await?;",
        invariant: "I5",
        why: "the row is closed before the job's effect: after a loss of Redis nobody captures",
        catcher: Conform,
    },
    Mutation {
        name: "warm-up-frees-live-holds",
        file: READ_BLOCK,
        find: "claim.filter(|claim| claim.expires_at.is_none_or(|deadline| deadline > now));",
        replace: "claim.filter(|claim| claim.expires_at.is_none_or(|deadline| deadline < now));",
        invariant: "I6",
        why: "a warm-up shows held seats as available",
        catcher: Conform,
    },
    Mutation {
        name: "takeover-without-cancelling",
        file: HOLDS,
        find: "                expire_reservations(tx, &dead, self.offset_ms).await?;",
        replace: "                let dead: Vec<Uuid> = dead.iter().map(|id| id.0).collect();\n                \
                  sqlx::query(\"DELETE FROM seat_claims WHERE reservation_id = ANY ($1)\").bind(dead)\n                    \
                  .execute(&mut **tx).await?;",
        invariant: "I1",
        why: "the dead reservation's seats are taken over, the reservation stays PENDING",
        catcher: Conform,
    },
    Mutation {
        name: "expiry-blind-to-payments",
        file: RESERVATIONS,
        find: "WHERE id = ANY ($1) AND status = 'PENDING' AND committed_at IS NULL AND expires_at <= hf_now($2)",
        replace: "WHERE id = ANY ($1) AND status = 'PENDING' AND expires_at <= hf_now($2)",
        invariant: "I2",
        why: "seats that are being paid for expire",
        catcher: Conform,
    },
    Mutation {
        name: "late-expiry-of-anything",
        file: RESERVATIONS,
        find: "WHERE id = ANY ($1) AND status = 'PENDING' AND committed_at IS NULL AND expires_at <= hf_now($2)",
        replace: "WHERE id = ANY ($1) AND committed_at IS NULL AND expires_at <= hf_now($2)",
        invariant: "I5",
        why: "an expire job that comes twice cancels again what is long over",
        catcher: Conform,
    },
    Mutation {
        name: "refund-under-a-new-key",
        file: FINALIZE,
        find: "self.gateway.refund(refund, &self.request()",
        replace: "self.gateway.refund(RefundId(new_uuid()), &self.request()",
        invariant: "I5",
        why: "a refund whose answer was lost is made twice",
        catcher: Conform,
    },
    Mutation {
        name: "amount-not-compared",
        file: DECIDE_PAYMENT,
        find: "if answer.amount == asked { Ok(()) }",
        replace: "if answer.amount.currency == asked.currency { Ok(()) }",
        invariant: "I2",
        why: "another sum than the price is believed",
        catcher: Model,
    },
    Mutation {
        name: "hold-in-parts",
        file: HOLDS,
        find: "HoldOutcome::Conflict(conflicts) });\n        }\n        self.give_back(tx, &lost).await",
        replace: "HoldOutcome::Conflict(conflicts) });\n        }\n        Ok(())",
        invariant: "I4",
        why: "a refused hold keeps the seats that it got",
        catcher: Conform,
    },
    Mutation {
        name: "key-not-kept-with-the-effect",
        file: HOLDS,
        find: "let kept = keep_answers(tx, &answers).await?;",
        replace: "let kept = vec![true; answers.len()];",
        invariant: "I5",
        why: "a hold that is asked for again under its key is not recognised",
        catcher: Conform,
    },
    Mutation {
        name: "late-money-takes-what-is-left",
        file: CLAIMS,
        find: "    if claimed.len() != wanted.len() {",
        replace: "    if claimed.is_empty() {",
        invariant: "I4",
        why: "late money buys some of its seats",
        catcher: Conform,
    },
    Mutation {
        name: "second-payment-beside-an-open-one",
        file: DECIDE_RESERVATION,
        find: "if status.is_open() || is_paid {",
        replace: "if is_paid {",
        invariant: "I2",
        why: "a double click makes a second payment",
        catcher: Model,
    },
    Mutation {
        name: "expired-seats-committed-unasked",
        file: DECIDE_PAYMENT,
        find: "ReservationState::Cancelled { reason: CancelReason::Expired, .. } => Owning::ClaimAgain,",
        replace: "ReservationState::Cancelled { reason: CancelReason::Expired, .. } => Owning::Commit,",
        invariant: "I1",
        why: "late money has its seats without a look at who owns them now",
        catcher: Model,
    },
    Mutation {
        name: "late-charge-kept",
        file: DECIDE_PAYMENT,
        find: "MoneyAt::Taken => TooLate::Refund,",
        replace: "MoneyAt::Taken => TooLate::End,",
        invariant: "I2",
        why: "a charge that came too late is not given back",
        catcher: Model,
    },
    Mutation {
        name: "deadline-after-the-commit",
        file: PLACE_HOLD,
        find: "if stores.redis.register_deadlines(&[(plan.reservation, to_ms(deadline))]).await.is_err() {",
        replace: "if false {",
        invariant: "I3",
        why: "a deadline that no index knows: whoever dies before the answer leaves a hold that nobody ends",
        catcher: Sim,
    },
    Mutation {
        name: "outbox-not-pushed-again",
        file: WARM_UP,
        find: "let rows = self.stores.pg.outbox_page(after, PAGE).await?;",
        replace: "let rows = self.stores.pg.outbox_page(after, 0 * PAGE).await?;",
        invariant: "I5",
        why: "jobs that went down with Redis never come again",
        catcher: Sim,
    },
    Mutation {
        name: "unmarked-cancel",
        file: UNHOLD,
        find: "    if matches!(known.state(), ReservationState::Pending) && stores.redis.mark_unsettled(id.0).await.is_err() {\n        \
               stores.note_redis_missed();\n    }\n    stores.faults.pass(FaultPoint::CancelMarked).await;",
        replace: "    let _lost = (known, stores.redis.forget_deadlines(&[id]).await);\n    stores.faults.pass(FaultPoint::CancelMarked).await;",
        invariant: "I3",
        why: "a cancelled reservation leaves the index first: whoever dies then leaves its seats held for ever",
        catcher: Sim,
    },
];
