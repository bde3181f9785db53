//! The shapes of reservations: as they are asked for and answered.

use std::fmt;

use domain::flow::place_hold::PlaceHoldError;
use domain::flow::unhold::ChangeReservationError;
use domain::id::{Buyer, EventId, ReservationId, SeatId};
use domain::label::Label;
use domain::payment::Refund;
use domain::reservation::{CancelReason, Reservation, ReservationStatus, ReservedSeat};
use domain::seat::SeatRef;
use domain::time::Instant;
use garde::Validate;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::payments::PaymentBody;
use crate::problem::{Conflict, FieldError, Problem, ProblemCode};
use crate::wire::Money;

/// Which seats a buyer wants.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldBody {
    /// The seats, each once: by id, or by block, column and row.
    #[garde(length(min = 1, max = 100))]
    #[schema(min_items = 1, max_items = 100, example = json!(["1042", {"block": "101", "column": "08", "row": "AA"}]))]
    pub(super) seats: Vec<SeatName>,
    /// For whom, where an API key asks. A buyer's token says it already.
    #[garde(skip)]
    #[serde(default)]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 128, example = "anna")]
    pub(super) buyer: Option<Buyer>,
}

/// How a caller names a seat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SeatName {
    /// By its id.
    Id(String),
    /// By its place.
    Place(SeatPlace),
}

/// Where a seat is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeatPlace {
    /// The block's label.
    #[schema(min_length = 1, max_length = 64, example = "101")]
    block: String,
    /// The column's label.
    #[schema(min_length = 1, max_length = 64, example = "08")]
    column: String,
    /// The row's label.
    #[schema(min_length = 1, max_length = 64, example = "AA")]
    row: String,
}

impl<'de> Deserialize<'de> for SeatName {
    /// By hand, because an untagged enum would not say which field is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Named;
        impl<'de> Visitor<'de> for Named {
            type Value = SeatName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a seat id, or an object of `block`, `column` and `row`")
            }

            fn visit_str<E: de::Error>(self, id: &str) -> Result<SeatName, E> {
                Ok(SeatName::Id(id.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SeatName, A::Error> {
                SeatPlace::deserialize(de::value::MapAccessDeserializer::new(map)).map(SeatName::Place)
            }
        }
        deserializer.deserialize_any(Named)
    }
}

/// The id of no seat: what a text that cannot be a seat's name stands for, so that the flow names it among all others
/// that are unknown.
const NO_SEAT: SeatRef = SeatRef::Id(SeatId(i64::MIN));

impl From<&SeatName> for SeatRef {
    fn from(name: &SeatName) -> Self {
        match name {
            SeatName::Id(id) => id.parse().map_or(NO_SEAT, SeatRef::Id),
            SeatName::Place(place) => {
                match (Label::parse(&place.block), Label::parse(&place.column), Label::parse(&place.row)) {
                    (Ok(block), Ok(column), Ok(row)) => Self::Place { block, column, row },
                    _ => NO_SEAT,
                }
            }
        }
    }
}

/// A buyer's seats for one event.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReservationBody {
    /// Its id.
    #[schema(value_type = String, example = "0197f0a3-1111-7aaa-8bbb-cccccccccccc")]
    id: ReservationId,
    /// Its event.
    #[schema(value_type = String, example = "0197f0a2-6a11-7c3b-9d2e-4f5a6b7c8d90")]
    event: EventId,
    /// Whose it is.
    #[schema(value_type = String, example = "anna")]
    buyer: Buyer,
    /// `PENDING`, `CONFIRMED` or `CANCELLED`.
    status: ReservationStatusWord,
    /// Why it is cancelled; null unless it is.
    cancel_reason: Option<CancelReasonWord>,
    /// Its seats, in the venue's order, their prices frozen.
    seats: Vec<ReservedSeatBody>,
    /// The sum of its prices, minor units.
    #[schema(minimum = 0, example = 110000)]
    amount: i64,
    /// ISO 4217.
    #[schema(example = "KRW")]
    currency: &'static str,
    /// When it was made.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:00:00.000Z")]
    created_at: Instant,
    /// Its deadline: at that instant a PENDING reservation is dead.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:10:00.000Z")]
    expires_at: Instant,
    /// No extension goes past this.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:10:00.000Z")]
    extends_until: Instant,
    /// The clock that its deadline is measured by: count down from this, not from the client's clock.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:00:00.000Z")]
    server_time: Instant,
    /// Its payments, oldest first.
    payments: Vec<PaymentBody>,
    /// Its refunds, oldest first.
    refunds: Vec<RefundBody>,
}

/// A seat of a reservation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReservedSeatBody {
    /// The seat's id.
    #[schema(value_type = String, example = "1042")]
    id: SeatId,
    /// Its block.
    #[schema(example = "101")]
    block: String,
    /// Its column.
    #[schema(example = "07")]
    column: String,
    /// Its row.
    #[schema(example = "AA")]
    row: String,
    /// What is printed on it.
    #[schema(example = "AA-07")]
    label: String,
    /// Its category.
    #[schema(example = "Table")]
    category: String,
    /// Its price when it was held.
    price: Money,
}

/// One attempt to give money back.
#[derive(Debug, Serialize, ToSchema)]
pub struct RefundBody {
    /// Its id.
    #[schema(value_type = String, example = "0197f0a4-2222-7aaa-8bbb-cccccccccccc")]
    id: domain::id::RefundId,
    /// The payment that it gives back from.
    #[schema(value_type = String, example = "0197f0a3-3333-7aaa-8bbb-cccccccccccc")]
    payment: domain::id::PaymentId,
    /// How much, minor units.
    #[schema(minimum = 0, example = 55000)]
    amount: i64,
    /// ISO 4217.
    #[schema(example = "KRW")]
    currency: &'static str,
    /// Why.
    #[schema(example = "late payment")]
    reason: String,
    /// `requested`, `done` or `failed`.
    #[schema(example = "done")]
    status: String,
    /// When it was asked for.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:03:00.000Z")]
    created_at: Instant,
}

/// A page of reservations, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReservationPage {
    /// The reservations.
    pub(super) reservations: Vec<ReservationBody>,
    /// The `cursor` of the next page; null at the end.
    pub(super) next_cursor: Option<String>,
}

/// Where a reservation stands.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schema(example = "PENDING")]
pub enum ReservationStatusWord {
    /// Its seats are held until the deadline, or are being paid for.
    Pending,
    /// Paid; its seats are sold.
    Confirmed,
    /// Over.
    Cancelled,
}

/// Why a reservation is cancelled.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelReasonWord {
    /// Its deadline passed.
    Expired,
    /// Its buyer cancelled it.
    User,
    /// An operator did.
    Operator,
    /// The provider refused to take what it had authorised.
    PaymentFailed,
    /// The event was called off.
    EventCancelled,
}

impl From<ReservationStatus> for ReservationStatusWord {
    fn from(status: ReservationStatus) -> Self {
        match status {
            ReservationStatus::Pending => Self::Pending,
            ReservationStatus::Confirmed => Self::Confirmed,
            ReservationStatus::Cancelled => Self::Cancelled,
        }
    }
}

impl From<CancelReason> for CancelReasonWord {
    fn from(reason: CancelReason) -> Self {
        match reason {
            CancelReason::Expired => Self::Expired,
            CancelReason::User => Self::User,
            CancelReason::Operator => Self::Operator,
            CancelReason::PaymentFailed => Self::PaymentFailed,
            CancelReason::EventCancelled => Self::EventCancelled,
        }
    }
}

impl From<&Reservation> for ReservationBody {
    fn from(reservation: &Reservation) -> Self {
        let currency = reservation.amount.currency;
        Self {
            id: reservation.id,
            event: reservation.event,
            buyer: reservation.buyer.clone(),
            status: reservation.status().into(),
            cancel_reason: reservation.cancel_reason().map(CancelReasonWord::from),
            seats: reservation.seats.iter().map(|seat| ReservedSeatBody::new(seat, currency)).collect(),
            amount: reservation.amount.amount,
            currency: currency.code(),
            created_at: reservation.created_at,
            expires_at: reservation.expires_at,
            extends_until: reservation.extends_until,
            server_time: reservation.read_at,
            payments: reservation.payments.iter().map(PaymentBody::from).collect(),
            refunds: reservation.refunds.iter().map(RefundBody::from).collect(),
        }
    }
}

impl ReservedSeatBody {
    fn new(seat: &ReservedSeat, currency: domain::money::Currency) -> Self {
        Self {
            id: seat.id,
            block: seat.block.as_str().to_owned(),
            column: seat.column.as_str().to_owned(),
            row: seat.row.as_str().to_owned(),
            label: seat.label.clone(),
            category: seat.category.clone(),
            price: Money { amount: seat.price, currency: currency.code() },
        }
    }
}

impl From<&Refund> for RefundBody {
    fn from(refund: &Refund) -> Self {
        Self {
            id: refund.id,
            payment: refund.payment,
            amount: refund.amount.amount,
            currency: refund.amount.currency.code(),
            reason: refund.reason.clone(),
            status: refund.status.clone(),
            created_at: refund.created_at,
        }
    }
}

pub(super) fn seat_errors(indices: &[usize], message: &str) -> Vec<FieldError> {
    indices.iter().map(|index| FieldError::new(format!("seats[{index}]"), message)).collect()
}

impl From<PlaceHoldError> for Problem {
    fn from(error: PlaceHoldError) -> Self {
        let said = |code| Self::with_detail(code, error.to_string());
        match error {
            PlaceHoldError::UnknownEvent => Self::no_such("event"),
            PlaceHoldError::UnknownSeats(ref indices) => {
                said(ProblemCode::UnknownSeat).errors(seat_errors(indices, "the event has no such seat"))
            }
            PlaceHoldError::RepeatedSeats(indices) => {
                Self::invalid_all(seat_errors(&indices, "this seat is named before: name each seat once"))
            }
            PlaceHoldError::NoSeats => Self::invalid("seats", "name at least one seat"),
            PlaceHoldError::NotOnSale(opens_at) => said(ProblemCode::NotOnSale).opens_at(opens_at),
            PlaceHoldError::SalesClosed | PlaceHoldError::EventCancelled => said(ProblemCode::SalesClosed),
            PlaceHoldError::TooManySeats { max } => {
                said(ProblemCode::LimitExceeded).limit(u64::try_from(max).unwrap_or(0))
            }
            PlaceHoldError::BuyerLimit { max, owned } => {
                let detail = format!("The buyer may have {max} seats of this event and has {owned}.");
                Self::with_detail(ProblemCode::LimitExceeded, detail).limit(u64::try_from(max).unwrap_or(0))
            }
            PlaceHoldError::Unavailable(conflicts) => {
                let conflict = |it: &domain::flow::place_hold::SeatConflict| Conflict {
                    seat: it.seat.to_string(),
                    status: it.status.as_str().to_owned(),
                };
                let detail = match conflicts.len() {
                    1 => "One of the seats is not available.".to_owned(),
                    many => format!("{many} of the seats are not available."),
                };
                Self::with_detail(ProblemCode::SeatUnavailable, detail)
                    .conflicts(conflicts.iter().map(conflict).collect())
            }
            PlaceHoldError::KeyReused => Self::new(ProblemCode::IdempotencyKeyReused),
            PlaceHoldError::InProgress => Self::new(ProblemCode::RequestInProgress).retry_after_s(1),
            PlaceHoldError::Pg(error) => error.into(),
            PlaceHoldError::Place(error) => error.into(),
        }
    }
}

impl From<ChangeReservationError> for Problem {
    fn from(error: ChangeReservationError) -> Self {
        match error {
            ChangeReservationError::NotFound => Self::no_such("reservation"),
            ChangeReservationError::Gone(reason) => Self::with_detail(
                ProblemCode::ReservationGone,
                format!("The reservation is cancelled ({}).", reason.as_str()),
            ),
            ChangeReservationError::Confirmed | ChangeReservationError::NoFurtherExtension => {
                Self::with_detail(ProblemCode::InvalidTransition, error.to_string())
            }
            ChangeReservationError::KeyReused => Self::new(ProblemCode::IdempotencyKeyReused),
            ChangeReservationError::PaymentInFlight => Self::new(ProblemCode::PaymentInFlight).retry_after_s(1),
            ChangeReservationError::Pg(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_named_by_id_or_by_place_and_a_wrong_field_is_told() {
        let read = |text: &str| serde_json::from_str::<SeatName>(text);
        assert_eq!(read("\"12\"").unwrap(), SeatName::Id("12".into()));
        assert!(matches!(read(r#"{"block":"가","column":"1","row":"01"}"#).unwrap(), SeatName::Place(_)));
        assert!(read(r#"{"block":"1","column":"1"}"#).unwrap_err().to_string().contains("missing field `row`"));
        assert!(read(r#"{"block":"1","column":"1","row":"1","seat":"1"}"#).unwrap_err().to_string().contains("`seat`"));
        assert!(read("12").unwrap_err().to_string().contains("a seat id, or an object"));
    }

    #[test]
    fn what_cannot_be_a_seats_name_is_an_unknown_seat() {
        let place =
            |block: &str| SeatName::Place(SeatPlace { block: block.into(), column: "1".into(), row: "1".into() });
        for name in [SeatName::Id("012".into()), SeatName::Id("x".into()), place(""), place("a\u{0}b")] {
            assert_eq!(SeatRef::from(&name), NO_SEAT, "{name:?}");
        }
        assert_eq!(SeatRef::from(&SeatName::Id("12".into())), SeatRef::Id(SeatId(12)));
    }

    #[test]
    fn a_refused_hold_names_every_place_at_fault() {
        let problem = Problem::from(PlaceHoldError::UnknownSeats(vec![0, 3]));
        assert_eq!(problem.code(), ProblemCode::UnknownSeat);
        assert_eq!(problem.places().iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), ["seats[0]", "seats[3]"]);
    }
}
