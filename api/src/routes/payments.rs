//! Payments: starting and reading them.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::Response;
use domain::flow::Answered;
use domain::flow::start_payment::{PaymentOrder, StartPaymentError, start_payment as start};
use domain::id::{PaymentId, ReservationId};
use domain::payment::{Payment, PaymentStatus, Provider};
use domain::time::Instant;
use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer;
use crate::app::{App, FakeProvider, repeatable};
use crate::auth::Shopper;
use crate::extract::{Json as JsonBody, Path};
use crate::idempotency::Idempotency;
use crate::problem::{Problem, ProblemCode};

/// What a buyer's client asks for.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PayBody {
    /// The provider's name.
    #[garde(skip)]
    provider: ProviderWord,
    /// What the client got from the provider.
    #[garde(inner(length(min = 1, max = 512), custom(visible)))]
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512, example = "tok_ok")]
    token: Option<String>,
    /// Where the provider sends the buyer back to.
    #[garde(inner(length(max = 2048), custom(web_address)))]
    #[serde(default)]
    #[schema(max_length = 2048, pattern = "^https?://", example = "https://shop.example/paid")]
    return_url: Option<String>,
}

/// A payment provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(example = "fake")]
pub enum ProviderWord {
    /// Our own, for tests and demonstrations; only where the settings allow it.
    Fake,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that garde calls")]
fn visible(text: &str, (): &()) -> garde::Result {
    if text.chars().any(char::is_control) {
        return Err(garde::Error::new("no control characters"));
    }
    Ok(())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that garde calls")]
fn web_address(text: &str, (): &()) -> garde::Result {
    if !(text.starts_with("https://") || text.starts_with("http://")) || text.chars().any(char::is_control) {
        return Err(garde::Error::new("an address that begins with https:// or http://"));
    }
    Ok(())
}

/// One attempt to take money.
#[derive(Debug, Serialize, ToSchema)]
pub struct PaymentBody {
    /// Its id.
    #[schema(value_type = String, example = "0197f0a3-3333-7aaa-8bbb-cccccccccccc")]
    id: PaymentId,
    /// What it pays for.
    #[schema(value_type = String, example = "0197f0a3-1111-7aaa-8bbb-cccccccccccc")]
    reservation: ReservationId,
    /// Where it stands.
    status: PaymentStatusWord,
    /// The provider's name.
    #[schema(example = "fake")]
    provider: &'static str,
    /// What is asked for, minor units.
    #[schema(minimum = 0, example = 110000)]
    amount: i64,
    /// ISO 4217.
    #[schema(example = "KRW")]
    currency: &'static str,
    /// When the reservation dies unless it is paid by then.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:10:00.000Z")]
    deadline: Instant,
    /// Why it was refused or parked, in the provider's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "the card was declined")]
    failure: Option<String>,
    /// When it was asked for.
    #[serde(with = "domain::time::serde_ms")]
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T05:02:00.000Z")]
    created_at: Instant,
}

/// Where a payment stands.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(example = "requested")]
pub enum PaymentStatusWord {
    /// Asked for.
    Requested,
    /// The provider keeps the money ready.
    Authorized,
    /// The seats are committed; the money is being taken.
    Capturing,
    /// Taken.
    Captured,
    /// Refused. Another attempt may follow.
    Declined,
    /// Given up before any money was taken.
    Voided,
    /// Given back, whole.
    Refunded,
    /// Given back in part.
    PartlyRefunded,
    /// An operator looks at it.
    NeedsReview,
}

impl From<PaymentStatus> for PaymentStatusWord {
    fn from(status: PaymentStatus) -> Self {
        match status {
            PaymentStatus::Requested => Self::Requested,
            PaymentStatus::Authorized => Self::Authorized,
            PaymentStatus::Capturing => Self::Capturing,
            PaymentStatus::Captured => Self::Captured,
            PaymentStatus::Declined => Self::Declined,
            PaymentStatus::Voided => Self::Voided,
            PaymentStatus::Refunded => Self::Refunded,
            PaymentStatus::PartlyRefunded => Self::PartlyRefunded,
            PaymentStatus::NeedsReview => Self::NeedsReview,
        }
    }
}

impl From<&Payment> for PaymentBody {
    fn from(payment: &Payment) -> Self {
        Self {
            id: payment.id,
            reservation: payment.reservation,
            status: payment.status.into(),
            provider: payment.provider.as_str(),
            amount: payment.amount.amount,
            currency: payment.amount.currency.code(),
            deadline: payment.deadline,
            failure: payment.failure.clone(),
            created_at: payment.created_at,
        }
    }
}

fn body_of(payment: &Payment) -> PaymentBody {
    PaymentBody::from(payment)
}

impl From<StartPaymentError> for Problem {
    fn from(error: StartPaymentError) -> Self {
        match error {
            StartPaymentError::Reservation(error) => error.into(),
            StartPaymentError::KeyReused => Self::new(ProblemCode::IdempotencyKeyReused),
        }
    }
}

/// Starts a payment of a reservation.
///
/// The answer comes at once; the payment goes on by itself: look at it until it is `captured` or `declined`. While one
/// is open, a second call answers that one. After a decline, another token may be tried within the same deadline.
#[utoipa::path(post, path = "/v1/reservations/{id}/payments", tag = "Payments", request_body = PayBody,
    security(("api_key" = []), ("buyer_token" = [])),
    params(
        ("id" = String, Path, description = "The reservation's id", max_length = 64),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the request repeatable", min_length = 1, max_length = 255)),
    responses(
        (status = 202, description = "It is under way", body = PaymentBody,
            headers(("Location" = String, description = "Where the payment is"))),
        (status = 403, description = "`forbidden`: a key of scope ops"),
        (status = 409, description = "`invalid_transition`: the reservation is confirmed; `payment_in_flight`: it is being captured; `request_in_progress`"),
        (status = 410, description = "`reservation_gone`"),
        (status = 422, description = "`validation_failed`: an unknown provider, for one; or `idempotency_key_reused`")))]
pub async fn start_payment(
    shopper: Shopper,
    State(app): State<App>,
    Path(reservation): Path<ReservationId>,
    idempotency: Idempotency,
    JsonBody(body, digest): JsonBody<PayBody>,
) -> Result<Response, Problem> {
    let order = PaymentOrder {
        reservation,
        provider: known_provider(body.provider, app.fake_provider())?,
        token: body.token,
        return_url: body.return_url,
        idempotency: repeatable(idempotency.bind(&shopper.caller, digest), 202, body_of),
    };
    let stores = app.stores().clone();
    let outcome = app.write(async move { start(&stores, &shopper.access, order).await }).await?;
    let mut response = answer::answered(&outcome, StatusCode::ACCEPTED, body_of);
    if let Answered::New(payment) = &outcome
        && let Ok(location) = format!("/v1/payments/{}", payment.id).parse()
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

fn known_provider(word: ProviderWord, fake: FakeProvider) -> Result<Provider, Problem> {
    match (word, fake) {
        (ProviderWord::Fake, FakeProvider::Allowed) => Ok(Provider::Fake),
        (ProviderWord::Fake, FakeProvider::Refused) => {
            Err(Problem::invalid("provider", "the fake provider is switched off here"))
        }
    }
}

/// A payment.
#[utoipa::path(get, path = "/v1/payments/{id}", tag = "Payments",
    security(("api_key" = []), ("buyer_token" = [])),
    params(("id" = String, Path, description = "The payment's id", max_length = 64)),
    responses(
        (status = 200, description = "The payment", body = PaymentBody),
        (status = 403, description = "`forbidden`: a key of scope ops")))]
pub async fn get_payment(
    shopper: Shopper,
    State(app): State<App>,
    Path(id): Path<PaymentId>,
) -> Result<Json<PaymentBody>, Problem> {
    let none = || Problem::no_such("payment");
    let pg = &app.stores().pg;
    let payment = pg.find_payment(id).await?.ok_or_else(none)?;
    let head = pg.find_reservation_head(payment.reservation).await?.ok_or_else(none)?;
    if !shopper.access.covers(&head.buyer) {
        return Err(none());
    }
    Ok(Json(body_of(&payment)))
}
