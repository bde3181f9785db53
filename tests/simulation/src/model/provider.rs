//! The provider's end of the line: what it keeps under a key, it keeps once.

use domain::gateway::{ProviderPayment, ProviderState};
use domain::money::{Currency, Money};

use super::world::{Entry, EntryState, Index, Plan, World};

/// How the provider answers one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    Surplus,
}

impl Answer {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Obey, Self::Decline, Self::Lose, Self::Fail, Self::Pend, Self::Charge, Self::Surplus];
}

/// What the provider is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Keep the money ready.
    Authorize,
    /// What is it?
    Fetch,
    /// Take it.
    Capture,
    /// Give up.
    Void,
    /// Give it back.
    Refund,
}

/// Won, without asking the table of currencies each time.
#[must_use]
pub fn won(amount: i64) -> Money {
    static WON: std::sync::LazyLock<Option<Currency>> = std::sync::LazyLock::new(|| "KRW".parse().ok());
    let Some(currency) = *WON else { unreachable!("KRW is a currency") };
    Money { amount, currency }
}

impl World {
    /// One call: what the provider has then, or nothing where its answer is lost.
    pub fn ask(&mut self, plan: &Plan, (payment, ask): (Index, Ask), answer: Answer) -> Option<ProviderPayment> {
        if answer == Answer::Fail {
            return None;
        }
        self.act(payment, ask, answer);
        if answer == Answer::Lose {
            return None;
        }
        let amount = self.amount(plan, payment);
        self.payment(payment).entry.map(|entry| ProviderPayment {
            reference: String::new(),
            amount: won(amount + i64::from(entry.surplus)),
            state: match entry.state {
                EntryState::Pending => ProviderState::Pending,
                EntryState::Authorized => ProviderState::Authorized,
                EntryState::Captured => ProviderState::Captured,
                EntryState::Declined => ProviderState::Declined(String::new()),
                EntryState::Voided => ProviderState::Voided,
            },
        })
    }

    fn act(&mut self, payment: Index, ask: Ask, answer: Answer) {
        let slot = &mut self.payment_mut(payment).entry;
        let Some(entry) = slot else {
            if ask == Ask::Authorize {
                *slot = Some(first_entry(answer));
            }
            return;
        };
        match (ask, entry.state) {
            (Ask::Capture, EntryState::Authorized) if answer == Answer::Decline => entry.state = EntryState::Declined,
            (Ask::Capture, EntryState::Authorized) => {
                entry.state = EntryState::Captured;
                entry.captures += 1;
            }
            (Ask::Void, EntryState::Pending | EntryState::Authorized) => entry.state = EntryState::Voided,
            // Once for each key, and a late refund has one key.
            (Ask::Refund, EntryState::Captured) => entry.refunds = 1,
            _ => {}
        }
        if entry.captures > 1 {
            self.break_with("I5: the provider took money twice under one key");
        }
    }

    /// The buyer does, at the provider's own page, what was waited for.
    pub fn buyer_acts(&mut self, payment: Index, charged: bool) -> bool {
        let Some(entry) = &mut self.payment_mut(payment).entry else { return false };
        if entry.state != EntryState::Pending {
            return false;
        }
        entry.state = if charged { EntryState::Captured } else { EntryState::Authorized };
        entry.captures += u8::from(charged);
        true
    }
}

fn first_entry(answer: Answer) -> Entry {
    let state = match answer {
        Answer::Obey | Answer::Lose | Answer::Fail | Answer::Surplus => EntryState::Authorized,
        Answer::Decline => EntryState::Declined,
        Answer::Pend => EntryState::Pending,
        Answer::Charge => EntryState::Captured,
    };
    let captures = u8::from(state == EntryState::Captured);
    Entry { state, surplus: i8::from(answer == Answer::Surplus), captures, refunds: 0 }
}
