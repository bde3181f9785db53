//! The payment provider, seen from the flows: the seam behind which each real provider stands.
//!
//! Every call carries the payment's (or refund's) id as the provider's idempotency key, so that a call may be repeated
//! after a crash or a lost answer and still take effect once.

use std::future::Future;
use std::pin::Pin;

use crate::id::{PaymentId, RefundId};
use crate::money::Money;

/// What a provider says of a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderState {
    /// It has not ended: the buyer or the bank has still to act.
    Pending,
    /// The money is kept ready.
    Authorized,
    /// The money is taken.
    Captured,
    /// Refused, in the provider's words.
    Declined(String),
    /// Given up before any money was taken.
    Voided,
}

/// A payment as the provider has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderPayment {
    /// The provider's own name for it.
    pub reference: String,
    /// What it is for: compared with ours before anything is believed.
    pub amount: Money,
    /// Where it stands.
    pub state: ProviderState,
}

/// What a payment asks of its provider.
#[derive(Debug, Clone)]
pub struct PaymentRequest {
    /// Our payment; the idempotency key.
    pub key: PaymentId,
    /// How much.
    pub amount: Money,
    /// What the buyer's client got from the provider.
    pub token: Option<String>,
}

/// No definite answer. What happened is unknown: ask again under the same key, never guess.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the provider gave no definite answer: {0}")]
pub struct UnknownOutcome(pub String);

/// The future of a gateway's call.
pub type GatewayFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, UnknownOutcome>> + Send + 'a>>;

/// A provider. Implementations translate; they decide nothing.
pub trait PaymentGateway: Send + Sync {
    /// Asks for the money to be kept ready. A provider that can only charge answers [`ProviderState::Captured`].
    fn authorize<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment>;

    /// Takes what was authorised.
    fn capture<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment>;

    /// Gives up what was not captured. The answer says what it found: perhaps that it was captured after all.
    fn void<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment>;

    /// What the provider has under the key; none where it has never heard of it.
    fn fetch<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, Option<ProviderPayment>>;

    /// Gives back `amount` of a captured payment, once for each `key`.
    fn refund<'a>(&'a self, key: RefundId, request: &'a PaymentRequest, amount: Money) -> GatewayFuture<'a, ()>;

    /// How much of a payment the provider has given back, in minor units; none where it cannot say.
    fn refunded<'a>(&'a self, _request: &'a PaymentRequest) -> GatewayFuture<'a, Option<i64>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}
