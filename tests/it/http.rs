//! The HTTP contract, through the real router over real stores.

mod callers;
mod commands;
mod form;
mod operators;
mod stream;
mod trouble;

use domain::flow::Stores;
use domain::store::pg::api_keys::KeyScope;
use holdfast_tests::sale::{Sale, SalePlan};
use holdfast_tests::stores::TestStores;
use holdfast_tests::web::{Ask, Web, api_key};
use serde_json::{Value, json};

/// A process, an event on sale, a key of scope sales.
pub(super) struct Shop {
    pub(super) test: TestStores,
    pub(super) web: Web,
    pub(super) sale: Sale,
    pub(super) sales: String,
}

impl Shop {
    pub(super) async fn open(plan: SalePlan) -> Self {
        let test = TestStores::start().await;
        let sale = Sale::open(&test.stores, plan).await;
        let web = Web::start(&test.stores).await;
        let sales = api_key(&test.stores, KeyScope::Sales).await;
        Self { test, web, sale, sales }
    }

    pub(super) fn stores(&self) -> &Stores {
        &self.test.stores
    }

    /// A hold of seats of block B1 by an API key for that buyer.
    pub(super) fn hold_for(&self, buyer: &str, seats: &[&str]) -> Ask {
        let body = json!({ "seats": seats.iter().map(|seat| place(seat)).collect::<Vec<_>>(), "buyer": buyer });
        Ask::new("POST", self.holds()).json(&body).by(&self.sales)
    }

    pub(super) fn holds(&self) -> String {
        format!("/v1/events/{}/reservations", self.sale.event)
    }

    pub(super) fn block(&self) -> String {
        format!("/v1/events/{}/blocks/B1/seats", self.sale.event)
    }
}

/// A seat by row and column in block B1: `A-1`.
pub(super) fn place(seat: &str) -> Value {
    let (row, column) = seat.split_once('-').expect("row and column");
    json!({ "block": "B1", "row": row, "column": column })
}
