//! The one table of public errors.
//!
//! A code is a promise: integrators branch on it, so none is renamed or given another status. Each code is explained
//! at `/problems/{code}`, from this table and nothing else.

use axum::http::StatusCode;
use utoipa::ToSchema;

/// A public error's name, as in the `code` member of a problem and at the end of its `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(example = "seat_unavailable")]
pub enum ProblemCode {
    /// At least one wanted seat has another owner, or is blocked.
    SeatUnavailable,
    /// A wanted seat does not exist in the event's venue.
    UnknownSeat,
    /// The event is not on sale yet, or not any more for a reason other than the sales window.
    NotOnSale,
    /// The event's sales window has ended.
    SalesClosed,
    /// More seats than one reservation or one buyer may have.
    LimitExceeded,
    /// The reservation has died: expired or cancelled.
    ReservationGone,
    /// The thing is in a state that does not allow this.
    InvalidTransition,
    /// A payment of this reservation is under way.
    PaymentInFlight,
    /// Money that does not match in sum, currency or reference.
    PaymentMismatch,
    /// The idempotency key was used for another request.
    IdempotencyKeyReused,
    /// The first request with this idempotency key is still running.
    RequestInProgress,
    /// The request's content breaks a rule.
    ValidationFailed,
    /// Too many requests from this caller.
    RateLimited,
    /// Who calls is not known.
    Unauthorized,
    /// The caller is known and may not do this.
    Forbidden,
    /// There is no such thing, or it is not the caller's to see.
    NotFound,
    /// The path exists, not with this method.
    MethodNotAllowed,
    /// The thing has changed meanwhile, or another one is in the way.
    Conflict,
    /// The body is larger than this endpoint reads.
    PayloadTooLarge,
    /// The body is of a media type that this endpoint does not read.
    UnsupportedMediaType,
    /// The request's body did not arrive in time.
    RequestTimeout,
    /// A store is out of reach or too slow.
    Degraded,
    /// More requests at once than this process takes.
    Overloaded,
    /// The answer was not ready in time; what was asked may still happen.
    TimedOut,
    /// Our fault.
    Internal,
}

/// What the table says about one code.
#[derive(Debug, Clone, Copy)]
pub struct ProblemEntry {
    /// The code as text.
    pub code: &'static str,
    /// A short summary, the same for every occurrence.
    pub title: &'static str,
    /// The HTTP status it is answered with.
    pub status: StatusCode,
    /// Whether the same request, sent again unchanged, may succeed.
    pub retryable: bool,
    /// What has happened, in a sentence or two.
    pub description: &'static str,
    /// What the caller does about it.
    pub remedy: &'static str,
}

const fn entry(
    code: &'static str,
    status: StatusCode,
    retryable: Retryable,
    title: &'static str,
    description: &'static str,
    remedy: &'static str,
) -> ProblemEntry {
    ProblemEntry { code, title, status, retryable: matches!(retryable, Retryable::Yes), description, remedy }
}

enum Retryable {
    Yes,
    No,
}
use Retryable::{No, Yes};

impl ProblemCode {
    /// Every code, in the order of the table.
    pub const ALL: [ProblemCode; 25] = [
        Self::SeatUnavailable,
        Self::UnknownSeat,
        Self::NotOnSale,
        Self::SalesClosed,
        Self::LimitExceeded,
        Self::ReservationGone,
        Self::InvalidTransition,
        Self::PaymentInFlight,
        Self::PaymentMismatch,
        Self::IdempotencyKeyReused,
        Self::RequestInProgress,
        Self::ValidationFailed,
        Self::RateLimited,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Conflict,
        Self::PayloadTooLarge,
        Self::UnsupportedMediaType,
        Self::RequestTimeout,
        Self::Degraded,
        Self::Overloaded,
        Self::TimedOut,
        Self::Internal,
    ];

    /// The code named `text`, if there is one.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.entry().code == text)
    }

    /// What the table says about this code.
    pub const fn entry(self) -> ProblemEntry {
        match self.reservation_entry() {
            Some(entry) => entry,
            None => self.request_entry(),
        }
    }

    /// The half of the table about seats, reservations and payments.
    const fn reservation_entry(self) -> Option<ProblemEntry> {
        let entry = match self {
            Self::SeatUnavailable => entry(
                "seat_unavailable",
                StatusCode::CONFLICT,
                No,
                "A seat is not available",
                "At least one of the seats belongs to somebody else or is blocked. Nothing was held: a hold takes all of its seats or none. `conflicts` names every seat in the way with its status.",
                "Read the block again and choose other seats. A held seat may become available again at its deadline.",
            ),
            Self::UnknownSeat => entry(
                "unknown_seat",
                StatusCode::UNPROCESSABLE_ENTITY,
                No,
                "A seat does not exist",
                "At least one of the seats is not a seat of this event. `errors` names the positions in the request.",
                "Take seat ids, or block, column and row labels, from the event's blocks; labels are compared exactly (`01` is not `1`).",
            ),
            Self::NotOnSale => entry(
                "not_on_sale",
                StatusCode::FORBIDDEN,
                Yes,
                "The event is not on sale",
                "Seats of this event cannot be held now. `opens_at`, where it is known, says from when they can.",
                "Wait until `opens_at`, measured by the `Server-Time` header and not by the client's clock.",
            ),
            Self::SalesClosed => entry(
                "sales_closed",
                StatusCode::FORBIDDEN,
                No,
                "Sales have closed",
                "The sales window of this event has ended, or the event was closed or cancelled.",
                "Nothing: no seat of this event can be held any more.",
            ),
            Self::LimitExceeded => entry(
                "limit_exceeded",
                StatusCode::UNPROCESSABLE_ENTITY,
                No,
                "Too many seats",
                "The request asks for more seats than one reservation, or one buyer of this event, may have. `limit` is the number allowed.",
                "Ask for fewer seats. Seats of earlier reservations of the same buyer count until they are cancelled or expire.",
            ),
            Self::ReservationGone => entry(
                "reservation_gone",
                StatusCode::GONE,
                No,
                "The reservation is gone",
                "The reservation's deadline has passed, or it was cancelled. Its seats may belong to somebody else already.",
                "Make a new reservation.",
            ),
            Self::InvalidTransition => entry(
                "invalid_transition",
                StatusCode::CONFLICT,
                No,
                "Not possible in this state",
                "The reservation, event or payment is in a state that does not allow this.",
                "Read it again and act on its present `status`.",
            ),
            Self::PaymentInFlight => entry(
                "payment_in_flight",
                StatusCode::CONFLICT,
                Yes,
                "A payment is under way",
                "A payment of this reservation has not ended yet, so its seats can neither be given up nor changed.",
                "Wait for the payment to end (`GET /v1/payments/{id}`), then try again.",
            ),
            Self::PaymentMismatch => entry(
                "payment_mismatch",
                StatusCode::CONFLICT,
                No,
                "The payment does not match",
                "The sum, currency or reference of the payment is not the reservation's. Nothing was confirmed; an operator looks at it.",
                "Compare the amount and currency with the reservation. Do not pay again before an operator has answered.",
            ),
            _ => return None,
        };
        Some(entry)
    }

    /// The half of the table about the request itself and about this service.
    const fn request_entry(self) -> ProblemEntry {
        match self {
            Self::IdempotencyKeyReused => entry(
                "idempotency_key_reused",
                StatusCode::UNPROCESSABLE_ENTITY,
                No,
                "The idempotency key was used before",
                "This `Idempotency-Key` belongs to another request: the method, path or body differs. Nothing was done.",
                "Make a new key for each new request; send an old key only with the very request that it was made for.",
            ),
            Self::RequestInProgress => entry(
                "request_in_progress",
                StatusCode::CONFLICT,
                Yes,
                "The first request is still running",
                "A request with this `Idempotency-Key` has not ended yet.",
                "Send the same request again after `Retry-After` seconds: it then answers the first one's result.",
            ),
            Self::ValidationFailed => entry(
                "validation_failed",
                StatusCode::UNPROCESSABLE_ENTITY,
                No,
                "The request is not valid",
                "The body, a query parameter or a header breaks a rule. `errors` names each place and what is wrong with it.",
                "Mend the places that `errors` names. Unknown fields are refused, because they usually are typing errors.",
            ),
            Self::RateLimited => entry(
                "rate_limited",
                StatusCode::TOO_MANY_REQUESTS,
                Yes,
                "Too many requests",
                "This caller has sent more requests than it may.",
                "Wait `Retry-After` seconds before the next request.",
            ),
            Self::Unauthorized => entry(
                "unauthorized",
                StatusCode::UNAUTHORIZED,
                No,
                "Who calls is not known",
                "The request has no valid credentials: none at all, an unknown or revoked API key, or a buyer token that is wrong or has ended.",
                "Send `Authorization: Bearer` with an API key (`hf_…`) or with a buyer token.",
            ),
            Self::Forbidden => entry(
                "forbidden",
                StatusCode::FORBIDDEN,
                No,
                "Not allowed",
                "The caller is known, but its credentials are not for this.",
                "Use an API key of the scope that this endpoint asks for.",
            ),
            Self::NotFound => entry(
                "not_found",
                StatusCode::NOT_FOUND,
                No,
                "Not found",
                "There is nothing here, or nothing that this caller may see.",
                "Check the path and the ids in it.",
            ),
            Self::MethodNotAllowed => entry(
                "method_not_allowed",
                StatusCode::METHOD_NOT_ALLOWED,
                No,
                "Method not allowed",
                "This path does not know this method. The `Allow` header lists those that it knows.",
                "Use one of the methods in `Allow`.",
            ),
            Self::Conflict => entry(
                "conflict",
                StatusCode::CONFLICT,
                No,
                "In conflict with what is there",
                "What was asked does not go together with what exists, or it has changed meanwhile.",
                "Read it again and decide anew.",
            ),
            Self::PayloadTooLarge => entry(
                "payload_too_large",
                StatusCode::PAYLOAD_TOO_LARGE,
                No,
                "The body is too large",
                "The body is larger than this endpoint reads. `limit` is the number of bytes allowed.",
                "Send less at once.",
            ),
            Self::UnsupportedMediaType => entry(
                "unsupported_media_type",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                No,
                "This media type is not read here",
                "The `Content-Type` of the body is missing or not one that this endpoint reads.",
                "Send the body with the content type that the API's description names, mostly `application/json`.",
            ),
            Self::RequestTimeout => entry(
                "request_timeout",
                StatusCode::REQUEST_TIMEOUT,
                Yes,
                "The body did not arrive in time",
                "The connection was open, but the body of the request was not complete after the time allowed. Nothing was done.",
                "Send the request again.",
            ),
            Self::Degraded => entry(
                "degraded",
                StatusCode::SERVICE_UNAVAILABLE,
                Yes,
                "A store is out of reach",
                "Something that this request needs is out of reach or too slow. Nothing was half done.",
                "Send the same request again after `Retry-After` seconds, with the same `Idempotency-Key`.",
            ),
            Self::Overloaded => entry(
                "overloaded",
                StatusCode::SERVICE_UNAVAILABLE,
                Yes,
                "Too many requests at once",
                "This process has more requests under way than it takes. Nothing was done.",
                "Send the same request again after `Retry-After` seconds.",
            ),
            Self::TimedOut => entry(
                "timed_out",
                StatusCode::SERVICE_UNAVAILABLE,
                Yes,
                "The answer was not ready in time",
                "The request was taken, but its answer was not ready in the time allowed. What it asked for is either done whole or not at all.",
                "Send the same request with the same `Idempotency-Key` again: it answers the true result.",
            ),
            _ => entry(
                "internal",
                StatusCode::INTERNAL_SERVER_ERROR,
                Yes,
                "Our fault",
                "Something went wrong on our side. It has been recorded under the request's id.",
                "Send the same request with the same `Idempotency-Key` again; if it goes on failing, tell the operator the `request_id`.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_has_one_entry_and_parses_back() {
        let names: BTreeSet<_> = ProblemCode::ALL.iter().map(|code| code.entry().code).collect();
        assert_eq!(names.len(), ProblemCode::ALL.len());
        for code in ProblemCode::ALL {
            assert_eq!(ProblemCode::parse(code.entry().code), Some(code));
            assert_eq!(serde_json::to_value(code).unwrap(), code.entry().code, "serde and the table agree");
            assert!(code.entry().status.is_client_error() || code.entry().status.is_server_error());
            assert!(!code.entry().remedy.is_empty() && !code.entry().description.is_empty());
        }
        assert_eq!(ProblemCode::parse("no_such_code"), None);
    }

    #[test]
    fn the_contracts_codes_keep_their_status() {
        for (name, status) in [
            ("seat_unavailable", 409),
            ("unknown_seat", 422),
            ("not_on_sale", 403),
            ("sales_closed", 403),
            ("limit_exceeded", 422),
            ("reservation_gone", 410),
            ("invalid_transition", 409),
            ("payment_in_flight", 409),
            ("payment_mismatch", 409),
            ("idempotency_key_reused", 422),
            ("request_in_progress", 409),
            ("validation_failed", 422),
            ("rate_limited", 429),
            ("unauthorized", 401),
            ("forbidden", 403),
            ("not_found", 404),
            ("degraded", 503),
        ] {
            assert_eq!(ProblemCode::parse(name).unwrap().entry().status.as_u16(), status, "{name}");
        }
    }
}
