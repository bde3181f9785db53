//! A payment provider that obeys a script, keeps books of its own, and outlives crashes of its callers.
//!
//! It is a double of the network's other end only: what it keeps under a key, it keeps once, as real providers do.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::flow::finalize_payment::Gateways;
use domain::gateway::{GatewayFuture, PaymentGateway, PaymentRequest, ProviderPayment, ProviderState, UnknownOutcome};
use domain::id::{PaymentId, RefundId};
use domain::money::Money;

/// How the provider answers one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It does what it is asked.
    Obey,
    /// It refuses for good.
    Decline,
    /// It does what it is asked; the answer is lost.
    Lose,
    /// It does nothing, and gives no answer.
    Fail,
    /// It waits for the buyer.
    Pend,
    /// It charges at once instead of keeping the money ready.
    Charge,
    /// It keeps another sum.
    OtherAmount(i64),
}

/// What may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Keep the money ready.
    Authorize,
    /// Take it.
    Capture,
    /// Give up.
    Void,
    /// What is it?
    Fetch,
    /// Give it back.
    Refund,
}

/// What the provider has under one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// How much.
    pub amount: Money,
    /// Where it stands.
    pub state: ProviderState,
    /// How often money was taken under this key.
    pub captures: u32,
    /// How much was given back.
    pub refunded: i64,
}

#[derive(Default)]
struct Books {
    entries: HashMap<PaymentId, Entry>,
    refunds: HashMap<RefundId, i64>,
    script: HashMap<Ask, VecDeque<Answer>>,
    asked: Vec<(Ask, PaymentId)>,
}

/// The provider. Cheap to clone; all clones share the books.
#[derive(Clone, Default)]
pub struct ScriptedProvider(Arc<Mutex<Books>>);

impl ScriptedProvider {
    /// As the flows take it.
    #[must_use]
    pub fn gateways(&self) -> Gateways {
        Gateways { fake: Arc::new(self.clone()) }
    }

    /// Says how the next call of a kind is answered; calls without a script are obeyed.
    pub fn script(&self, ask: Ask, answers: impl IntoIterator<Item = Answer>) {
        self.books().script.entry(ask).or_default().extend(answers);
    }

    /// Forgets what was scripted: every further call is obeyed.
    pub fn obey_from_now_on(&self) {
        self.books().script.clear();
    }

    /// Closes the books and opens empty ones.
    pub fn start_afresh(&self) {
        *self.books() = Books::default();
    }

    /// The buyer does, at the provider's own page, what was waited for: the money is ready, or is taken at once. False
    /// where nothing is waited for.
    pub fn buyer_acts(&self, key: PaymentId, state: ProviderState) -> bool {
        let mut books = self.books();
        match books.entries.get_mut(&key).filter(|entry| entry.state == ProviderState::Pending) {
            None => false,
            Some(entry) => {
                entry.captures += u32::from(state == ProviderState::Captured);
                entry.state = state;
                true
            }
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has under a key.
    #[must_use]
    pub fn entry(&self, key: PaymentId) -> Option<Entry> {
        self.books().entries.get(&key).cloned()
    }

    /// All it has.
    #[must_use]
    pub fn entries(&self) -> HashMap<PaymentId, Entry> {
        self.books().entries.clone()
    }

    /// Every call, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<(Ask, PaymentId)> {
        self.books().asked.clone()
    }

    fn ask(
        &self,
        ask: Ask,
        request: &PaymentRequest,
        act: impl FnOnce(&mut Books, Answer),
    ) -> Result<Option<ProviderPayment>, UnknownOutcome> {
        let mut books = self.books();
        books.asked.push((ask, request.key));
        let answer = books.script.get_mut(&ask).and_then(VecDeque::pop_front).unwrap_or(Answer::Obey);
        if answer == Answer::Fail {
            return Err(UnknownOutcome("the line is dead".to_owned()));
        }
        act(&mut books, answer);
        if answer == Answer::Lose {
            return Err(UnknownOutcome("the answer is lost".to_owned()));
        }
        Ok(books.entries.get(&request.key).map(|entry| ProviderPayment {
            reference: format!("scripted-{}", request.key),
            amount: entry.amount,
            state: entry.state.clone(),
        }))
    }
}

fn known(found: Result<Option<ProviderPayment>, UnknownOutcome>) -> Result<ProviderPayment, UnknownOutcome> {
    found?.ok_or_else(|| UnknownOutcome("the provider has never heard of it".to_owned()))
}

impl PaymentGateway for ScriptedProvider {
    fn authorize<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        let found = self.ask(Ask::Authorize, request, |books, answer| {
            let mut amount = request.amount;
            let state = match answer {
                Answer::Obey | Answer::Lose | Answer::Fail => ProviderState::Authorized,
                Answer::Decline => ProviderState::Declined("insufficient funds".to_owned()),
                Answer::Pend => ProviderState::Pending,
                Answer::Charge => ProviderState::Captured,
                Answer::OtherAmount(other) => {
                    amount.amount = other;
                    ProviderState::Authorized
                }
            };
            let captures = u32::from(state == ProviderState::Captured);
            books.entries.entry(request.key).or_insert(Entry { amount, state, captures, refunded: 0 });
        });
        Box::pin(std::future::ready(known(found)))
    }

    fn capture<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        let found = self.ask(Ask::Capture, request, |books, answer| {
            let Some(entry) = books.entries.get_mut(&request.key) else { return };
            if entry.state != ProviderState::Authorized {
                return;
            }
            if answer == Answer::Decline {
                entry.state = ProviderState::Declined("the card was reported lost".to_owned());
            } else {
                entry.state = ProviderState::Captured;
                entry.captures += 1;
            }
        });
        Box::pin(std::future::ready(known(found)))
    }

    fn void<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, ProviderPayment> {
        let found = self.ask(Ask::Void, request, |books, _| {
            if let Some(entry) = books.entries.get_mut(&request.key)
                && matches!(entry.state, ProviderState::Pending | ProviderState::Authorized)
            {
                entry.state = ProviderState::Voided;
            }
        });
        Box::pin(std::future::ready(known(found)))
    }

    fn fetch<'a>(&'a self, request: &'a PaymentRequest) -> GatewayFuture<'a, Option<ProviderPayment>> {
        Box::pin(std::future::ready(self.ask(Ask::Fetch, request, |_, _| {})))
    }

    fn refund<'a>(&'a self, key: RefundId, request: &'a PaymentRequest, amount: Money) -> GatewayFuture<'a, ()> {
        let found = self.ask(Ask::Refund, request, |books, _| {
            if books.refunds.insert(key, amount.amount).is_none()
                && let Some(entry) = books.entries.get_mut(&request.key)
            {
                entry.refunded += amount.amount;
            }
        });
        Box::pin(std::future::ready(found.map(|_| ())))
    }
}
