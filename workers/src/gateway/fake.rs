//! The fake provider: obeys the payment's token, and keeps its ledger as a real provider would, at its own place and
//! under the caller's keys.
//!
//! `tok_ok` authorises and captures · `tok_decline` refuses · `tok_delay_3s` answers after three seconds ·
//! `tok_lost_answer` charges at once, and the answer never comes · `tok_silence` and `tok_authorize_only` stay pending
//! until they are told · any other token is refused.

use std::time::Duration;

use domain::gateway::{GatewayFuture, PaymentGateway, PaymentRequest, ProviderPayment, ProviderState, UnknownOutcome};
use domain::id::RefundId;
use domain::money::Money;
use domain::store::pg::fake_ledger::LedgerEntry;
use domain::store::pg::{Pg, PgError};

/// The fake provider.
pub struct FakeGateway(Pg);

impl FakeGateway {
    /// A provider whose ledger is in that Postgres.
    #[must_use]
    pub fn new(pg: Pg) -> Self {
        Self(pg)
    }

    async fn enter(&self, request: &PaymentRequest) -> Result<ProviderPayment, UnknownOutcome> {
        let token = request.token.clone().unwrap_or_default();
        if token == "tok_delay_3s" && self.find(request).await?.is_none() {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let status = match token.as_str() {
            "tok_ok" | "tok_delay_3s" => "authorized",
            "tok_lost_answer" => "captured",
            "tok_silence" | "tok_authorize_only" => "pending",
            _ => "declined",
        };
        let entry = LedgerEntry { token, amount: request.amount, status: status.to_owned() };
        let entered = self.0.enter_in_ledger(&request.key.to_string(), &entry).await.map_err(unreachable)?;
        if entered.token == "tok_lost_answer" {
            return Err(UnknownOutcome("the connection closed before the answer".to_owned()));
        }
        Ok(answer(request, &entered))
    }

    async fn find(&self, request: &PaymentRequest) -> Result<Option<ProviderPayment>, UnknownOutcome> {
        let found = self.0.read_ledger(&request.key.to_string()).await.map_err(unreachable)?;
        Ok(found.map(|entry| answer(request, &entry)))
    }

    async fn move_on(
        &self,
        request: &PaymentRequest,
        (from, to): (&[&str], &str),
    ) -> Result<ProviderPayment, UnknownOutcome> {
        self.0.move_ledger(&request.key.to_string(), from, to).await.map_err(unreachable)?;
        let found = self.find(request).await?;
        found.ok_or_else(|| UnknownOutcome("the provider does not know this payment".to_owned()))
    }
}

fn unreachable(error: PgError) -> UnknownOutcome {
    UnknownOutcome(error.to_string())
}

fn answer(request: &PaymentRequest, entry: &LedgerEntry) -> ProviderPayment {
    let state = match entry.status.as_str() {
        "pending" => ProviderState::Pending,
        "authorized" => ProviderState::Authorized,
        "captured" => ProviderState::Captured,
        "voided" => ProviderState::Voided,
        _ if entry.token == "tok_decline" => ProviderState::Declined("the card was declined".to_owned()),
        _ => ProviderState::Declined("the token is not one of the fake provider's".to_owned()),
    };
    ProviderPayment { reference: format!("fake_{}", request.key), amount: entry.amount, state }
}

impl PaymentGateway for FakeGateway {
    fn authorize<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        Box::pin(self.enter(request))
    }

    fn capture<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        Box::pin(self.move_on(request, (&["authorized"], "captured")))
    }

    fn void<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        Box::pin(self.move_on(request, (&["pending", "authorized"], "voided")))
    }

    fn fetch<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, Option<ProviderPayment>> {
        Box::pin(self.find(request))
    }

    fn refund<'a>(&'a self, key: RefundId, request: &'a PaymentRequest, amount: Money) -> GatewayFuture<'a, ()> {
        Box::pin(async move {
            let given = self.0.refund_in_ledger(&key.to_string(), &request.key.to_string(), amount.amount).await;
            given.map_err(unreachable)
        })
    }

    fn refunded<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, Option<i64>> {
        Box::pin(async move {
            let key = request.key.to_string();
            self.0.refunded_in_ledger(&key).await.map_err(unreachable)
        })
    }
}
