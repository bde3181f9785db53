//! What an audit can find: each kind with a stable code, the invariant it breaks, and the remedy.

use std::collections::BTreeMap;

use crate::id::{EventId, OutboxId, PaymentId, ReservationId, SeatId};
use crate::label::Label;
use crate::queue::Queue;
use crate::time::Instant;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// An invariant is broken: it stood still, and nothing that is under way explains it.
    Broken,
    /// Nothing is broken, but a person has to decide or to look.
    Waiting,
    /// Something is not as it should be, and something that is there will set it right by itself.
    Drift,
}

impl Severity {
    /// The word in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Waiting => "waiting",
            Self::Drift => "drift",
        }
    }
}

/// What sets a finding right: always a flow, never a write of the audit's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// Rebuild Redis from Postgres.
    WarmUp,
    /// Write a block's list and buckets as Postgres has them.
    RebuildBlock(EventId, Label),
    /// Expire a reservation if it is due, and show it as it is.
    ShowReservation(ReservationId),
    /// Queue the job of an open outbox row.
    QueueRow(EventId, OutboxId),
    /// Queue the job that brings a payment to its end.
    QueuePayment(PaymentId),
    /// Write the row and queue the job that opens an event.
    OpenEvent(EventId),
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $invariant:literal, $severity:ident, $remedy:literal;)*) => {
        /// The kinds of findings.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingCode {
            $($(#[$doc])* $name,)*
        }

        impl FindingCode {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The code: stable, for programs.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code),* }
            }

            /// The invariant it is about.
            #[must_use]
            pub fn invariant(self) -> &'static str {
                match self { $(Self::$name => $invariant),* }
            }

            /// How bad it is unless something under way explains it.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),* }
            }

            /// What to do about it; empty where `--repair` does it.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy),* }
            }
        }
    };
}

codes! {
    /// Two reservations that are alive name the same seat.
    SeatOwnedTwice = "seat_owned_twice", "I1", Broken,
        "stop the event's sale (`holdfast events close`), keep the reservation that has the claim, refund the other buyer";
    /// A reservation that is alive names a seat whose claim is missing or another's.
    ClaimMissing = "claim_missing", "I1", Broken,
        "no flow removes such a claim: find in seat_log who did; if the seat is free, give the buyer that seat or refund";
    /// A claim is in another state than its reservation.
    ClaimStateDiffers = "claim_state_differs", "I2", Broken,
        "no flow writes such a row: look into seat_log and the database's own log for who did, and restore the row";
    /// A claim dies at another time than its reservation.
    ClaimDeadlineDiffers = "claim_deadline_differs", "I3", Broken,
        "cancel the reservation, or let it be paid: both end the difference";
    /// A claim's reservation is missing, over, or does not name the seat.
    ClaimWithoutReservation = "claim_without_reservation", "I1", Broken,
        "no flow leaves such a claim: look into seat_log; if nobody is owed the seat, delete the row and repair the block";
    /// A reservation's seats or their prices do not add up to its row.
    ReservationSeatsDiffer = "reservation_seats_differ", "I4", Broken,
        "no flow writes such a row: restore reservation_seats from a backup, or settle it with the buyer";
    /// A CONFIRMED reservation whose money is not exactly kept.
    ConfirmedNotPaid = "confirmed_not_paid", "I2", Broken,
        "compare with the provider's records under the payment's id, then collect or give back the difference by hand";
    /// Money is kept for a reservation that is not CONFIRMED, and nothing is giving it back.
    MoneyKeptWithoutSeats = "money_kept_without_seats", "I2", Broken,
        "the buyer paid and has no seats: refund the payment at the provider under its id, and tell the buyer";
    /// A payment says that another sum is given back than its refunds do.
    RefundsDiffer = "refunds_differ", "I2", Broken,
        "compare with the provider's records of the refunds under their ids; correct the side that is wrong by hand";
    /// A refund is asked for, and no row makes it happen.
    RefundWithoutJob = "refund_without_job", "I5", Broken, "";
    /// A payment is unfinished, and no row brings it to its end.
    PaymentWithoutJob = "payment_without_job", "I5", Broken, "";
    /// A payment's reservation does not exist.
    PaymentWithoutReservation = "payment_without_reservation", "I2", Broken,
        "find the reservation in seat_log; refund at the provider under the payment's id if money was taken";
    /// The provider has taken money that this payment does not record.
    CapturedNotRecorded = "captured_not_recorded", "I2", Broken,
        "the provider took the money and we ended the payment without it: refund it there under the payment's id";
    /// This payment records money that the provider has not taken.
    CapturedNotAtProvider = "captured_not_at_provider", "I2", Broken,
        "the seats are sold and the money is not there: look at the provider's records, collect it or cancel by hand";
    /// The provider has another sum than this payment.
    ProviderAmountDiffers = "provider_amount_differs", "I2", Broken,
        "compare the sums at the provider under the payment's id, and give back or collect the difference";
    /// The provider has given back another sum than this payment says.
    ProviderRefundDiffers = "provider_refund_differs", "I2", Broken,
        "compare the refunds at the provider; give the missing one under the refund's id, or record the other";
    /// A payment is parked for an operator.
    PaymentNeedsReview = "payment_needs_review", "I2", Waiting,
        "look at the payment at the provider under its id and decide: its seats stay committed until then";
    /// A payment has no end long after its window.
    PaymentUnfinished = "payment_unfinished", "I2", Waiting,
        "its outcome is unknown: look at the provider, and at its job with `holdfast jobs dead payments`; never pay anew";
    /// An answer was kept for an effect that is not there.
    AnswerWithoutEffect = "answer_without_effect", "I5", Broken,
        "no flow keeps an answer without its effect: look in the database's own log for what removed the row";
    /// Redis shows an owned seat as available.
    SeatShownAvailable = "seat_shown_available", "I6", Broken, "";
    /// Redis shows a seat as taken that nobody owns.
    SeatShownTaken = "seat_shown_taken", "I6", Broken, "";
    /// Redis shows another status, owner or deadline.
    SeatShownWrong = "seat_shown_wrong", "I6", Broken, "";
    /// A seat has no bucket.
    BucketAbsent = "bucket_absent", "I6", Broken, "";
    /// A bucket is not the JSON that it should be.
    BucketUnreadable = "bucket_unreadable", "I6", Broken, "";
    /// A block's list is absent, or not its seats in their order, or would vanish.
    SeatListDiffers = "seat_list_differs", "I6", Broken, "";
    /// A reservation that can expire is not in the deadline index.
    DeadlineNotRegistered = "deadline_not_registered", "I3", Broken, "";
    /// It is there with a later time than its deadline.
    DeadlineRegisteredLate = "deadline_registered_late", "I3", Broken, "";
    /// Its key is missing, or dies at another time: the index makes up for it.
    ExpiryKeyWrong = "expiry_key_wrong", "I3", Drift, "";
    /// A reservation is dead and not cancelled: dead for every buyer, but untidy.
    ExpiredNotCancelled = "expired_not_cancelled", "I3", Drift, "";
    /// The deadline index has an entry of something that needs none.
    DeadlineOfNothing = "deadline_of_nothing", "I6", Drift, "";
    /// The deadline index has a member that is no id.
    DeadlineUnreadable = "deadline_unreadable", "I6", Drift,
        "remove that member from the sorted set with ZREM: nobody can read it";
    /// This Redis is not, or not yet, what was filled.
    RedisLost = "redis_lost", "I6", Drift, "";
    /// A row of the outbox whose job is nowhere.
    RowWithoutJob = "outbox_row_without_job", "I5", Broken, "";
    /// A job is known to its queue, and stands in none of its lists: it would never run.
    JobLost = "job_lost", "I5", Broken,
        "the queue knows the job and will never run it: delete its field in the queue's hash of jobs, then repair";
    /// A job is in the dead list.
    JobDead = "job_dead", "I5", Waiting, "";
    /// A job waits whose row is closed: it runs and changes nothing.
    JobWithoutRow = "job_without_row", "I5", Drift, "";
    /// An event is preparing, and no row opens it.
    PreparingWithoutJob = "preparing_without_job", "I5", Broken, "";
}

/// Where a finding is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The event.
    pub event: Option<EventId>,
    /// The block.
    pub block: Option<Label>,
    /// The column and the row of a seat.
    pub column_row: Option<(Label, Label)>,
    /// The seat.
    pub seat: Option<SeatId>,
    /// The reservation.
    pub reservation: Option<ReservationId>,
    /// The payment.
    pub payment: Option<PaymentId>,
    /// The job.
    pub job: Option<(Queue, String)>,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub code: FindingCode,
    /// How bad: the code's own severity, or less where something under way explains it.
    pub severity: Severity,
    /// Where.
    pub place: Place,
    /// In a sentence.
    pub detail: String,
    /// What was found on each side.
    pub found: BTreeMap<&'static str, String>,
    /// Since when, if that is known.
    pub since: Option<Instant>,
    /// What sets it right.
    pub repair: Option<Repair>,
}

impl Finding {
    /// A finding; sides, repair and the rest are added.
    #[must_use]
    pub fn new(code: FindingCode, place: Place, detail: impl Into<String>) -> Self {
        let (severity, found) = (code.severity(), BTreeMap::new());
        Self { code, severity, place, detail: detail.into(), found, since: None, repair: None }
    }

    /// What one side says.
    #[must_use]
    pub fn found(mut self, side: &'static str, says: impl ToString) -> Self {
        self.found.insert(side, says.to_string());
        self
    }

    /// What sets it right.
    #[must_use]
    pub fn repair(mut self, repair: Repair) -> Self {
        self.repair = Some(repair);
        self
    }

    /// Something under way explains it: it is drift, and heals by itself.
    #[must_use]
    pub fn explained(mut self, by: &str) -> Self {
        self.severity = Severity::Drift;
        self.detail = format!("{}: {by}", self.detail);
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match (&self.repair, &self.place.job) {
            (None, Some((queue, job))) if self.code == FindingCode::JobDead => {
                format!("holdfast jobs requeue {queue} {job}, once what it died of is mended")
            }
            (Some(_), _) => match self.place.event {
                Some(event) => format!("holdfast audit --repair --event {event}"),
                None => "holdfast audit --repair".to_owned(),
            },
            (None, _) if self.code.remedy().is_empty() => "nothing: it ends by itself".to_owned(),
            (None, _) => self.code.remedy().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_code_is_one_and_names_an_invariant() {
        let codes: HashSet<&str> = FindingCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), FindingCode::ALL.len());
        for code in FindingCode::ALL {
            assert!(["I1", "I2", "I3", "I4", "I5", "I6"].contains(&code.invariant()), "{code:?}");
            assert!(code.as_str().chars().all(|it| it.is_ascii_lowercase() || it == '_'), "{code:?}");
        }
    }
}
