//! The model's provider behind the engine's own seam: it answers what the model was answered, and notices a question
//! that the model did not ask.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::flow::finalize_payment::Gateways;
use domain::gateway::{GatewayFuture, PaymentGateway, PaymentRequest, ProviderPayment, ProviderState, UnknownOutcome};
use domain::id::{PaymentId, RefundId};
use domain::money::Money;

use crate::model::provider::{Answer, Ask};

/// What is kept under one key.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) state: ProviderState,
    pub(super) amount: Money,
    pub(super) captures: u8,
    pub(super) refunded: i64,
}

#[derive(Default)]
struct Books {
    kept: HashMap<PaymentId, Kept>,
    refunds: HashMap<RefundId, i64>,
    expected: VecDeque<(Ask, Answer)>,
    surprise: Option<String>,
}

/// The provider; clones share the books.
#[derive(Clone, Default)]
pub(super) struct Provider(Arc<Mutex<Books>>);

impl Provider {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gateways(&self) -> Gateways {
        Gateways { fake: Arc::new(self.clone()) }
    }

    pub(super) fn expect(&self, asked: &[(Ask, Answer)]) {
        self.books().expected = asked.iter().copied().collect();
    }

    /// What was asked otherwise than the model asked.
    pub(super) fn surprise(&self) -> Option<String> {
        let mut books = self.books();
        let left = books.expected.drain(..).next().map(|left| format!("{left:?} was not asked"));
        books.surprise.take().or(left)
    }

    pub(super) fn kept(&self, key: PaymentId) -> Option<Kept> {
        self.books().kept.get(&key).cloned()
    }

    pub(super) fn buyer_acts(&self, key: PaymentId, charged: bool) {
        if let Some(kept) = self.books().kept.get_mut(&key) {
            kept.state = if charged { ProviderState::Captured } else { ProviderState::Authorized };
            kept.captures += u8::from(charged);
        }
    }

    fn ask(
        &self,
        ask: Ask,
        request: &PaymentRequest,
        refund: Option<(RefundId, Money)>,
    ) -> Result<Option<ProviderPayment>, UnknownOutcome> {
        let mut books = self.books();
        let answer = match books.expected.pop_front() {
            Some((expected, answer)) if expected == ask => answer,
            other => {
                books.surprise.get_or_insert(format!("{ask:?} was asked, the model has {other:?}"));
                Answer::Fail
            }
        };
        let lost = || UnknownOutcome("the line is dead".to_owned());
        if answer == Answer::Fail {
            return Err(lost());
        }
        books.act(ask, request, answer, refund);
        if answer == Answer::Lose {
            return Err(lost());
        }
        Ok(books.kept.get(&request.key).map(|kept| ProviderPayment {
            reference: format!("model-{}", request.key),
            amount: kept.amount,
            state: kept.state.clone(),
        }))
    }
}

impl Books {
    fn act(&mut self, ask: Ask, request: &PaymentRequest, answer: Answer, refund: Option<(RefundId, Money)>) {
        if let Some((key, amount)) = refund {
            let is_new = self.refunds.insert(key, amount.amount).is_none();
            if let Some(kept) = self.kept.get_mut(&request.key).filter(|_| is_new) {
                kept.refunded += amount.amount;
            }
            return;
        }
        let Some(kept) = self.kept.get_mut(&request.key) else {
            if ask == Ask::Authorize {
                let kept = first_kept(request, answer);
                self.kept.insert(request.key, kept);
            }
            return;
        };
        match (ask, &kept.state) {
            (Ask::Capture, ProviderState::Authorized) if answer == Answer::Decline => {
                kept.state = ProviderState::Declined("lost card".to_owned());
            }
            (Ask::Capture, ProviderState::Authorized) => {
                kept.state = ProviderState::Captured;
                kept.captures += 1;
            }
            (Ask::Void, ProviderState::Pending | ProviderState::Authorized) => kept.state = ProviderState::Voided,
            _ => {}
        }
    }
}

fn first_kept(request: &PaymentRequest, answer: Answer) -> Kept {
    let mut amount = request.amount;
    amount.amount += i64::from(answer == Answer::Surplus);
    let state = match answer {
        Answer::Obey | Answer::Lose | Answer::Fail | Answer::Surplus => ProviderState::Authorized,
        Answer::Decline => ProviderState::Declined("no money".to_owned()),
        Answer::Pend => ProviderState::Pending,
        Answer::Charge => ProviderState::Captured,
    };
    let captures = u8::from(state == ProviderState::Captured);
    Kept { state, amount, captures, refunded: 0 }
}

fn known(found: Result<Option<ProviderPayment>, UnknownOutcome>) -> Result<ProviderPayment, UnknownOutcome> {
    found?.ok_or_else(|| UnknownOutcome("the provider has never heard of it".to_owned()))
}

impl PaymentGateway for Provider {
    fn authorize<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        Box::pin(std::future::ready(known(self.ask(Ask::Authorize, request, None))))
    }

    fn capture<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        Box::pin(std::future::ready(known(self.ask(Ask::Capture, request, None))))
    }

    fn void<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        Box::pin(std::future::ready(known(self.ask(Ask::Void, request, None))))
    }

    fn fetch<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, Option<ProviderPayment>> {
        Box::pin(std::future::ready(self.ask(Ask::Fetch, request, None)))
    }

    fn refund<'a>(&'a self, key: RefundId, request: &'a PaymentRequest, amount: Money) -> GatewayFuture<'a, ()> {
        Box::pin(std::future::ready(self.ask(Ask::Refund, request, Some((key, amount))).map(|_| ())))
    }
}
