//! What the shapes of several endpoints share: money, words, pages.

use domain::id::IdError;
use domain::money;
use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::Problem;

/// An amount of money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Money {
    /// Minor units: 55000 is ₩55,000 and $550.00.
    #[schema(example = 55000, minimum = 0)]
    pub amount: i64,
    /// ISO 4217.
    #[schema(example = "KRW", min_length = 3, max_length = 3)]
    pub currency: &'static str,
}

impl From<money::Money> for Money {
    fn from(money: money::Money) -> Self {
        Self { amount: money.amount, currency: money.currency.code() }
    }
}

/// The four words of a seat's status, for the description of the API.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SeatStatusWord {
    /// It can be held.
    Available,
    /// A reservation holds it until its deadline, or is paying for it.
    Held,
    /// It is sold.
    Sold,
    /// It is kept from sale.
    Blocked,
}

/// Which part of a list.
#[derive(Debug, Deserialize, Validate, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// How many at most.
    #[garde(inner(range(min = 1, max = 200)))]
    #[param(minimum = 1, maximum = 200, default = 50, example = 50)]
    limit: Option<i64>,
    /// Where to go on: the `next_cursor` of the page before.
    #[garde(inner(length(min = 1, max = 64)))]
    #[param(min_length = 1, max_length = 64)]
    cursor: Option<String>,
}

/// A list's length where the caller names none.
pub const LIMIT_DEFAULT: i64 = 50;

impl Page {
    /// How many at most.
    pub fn limit(&self) -> i64 {
        self.limit.unwrap_or(LIMIT_DEFAULT)
    }

    /// The id after which to go on.
    ///
    /// # Errors
    /// `validation_failed` for a cursor that is none of ours.
    pub fn after<I: std::str::FromStr<Err = IdError>>(&self) -> Result<Option<I>, Problem> {
        read_cursor(self.cursor.as_deref())
    }
}

/// Reads a cursor: the id of the last thing on the page before.
///
/// # Errors
/// `validation_failed` for a text that is no cursor of ours.
pub fn read_cursor<I: std::str::FromStr<Err = IdError>>(cursor: Option<&str>) -> Result<Option<I>, Problem> {
    cursor.map(str::parse).transpose().map_err(|_| Problem::invalid("cursor", "not a `next_cursor` of this list"))
}

/// Cuts what was read as `limit + 1` things down to `limit`. Returns the cursor of the next page, if there is one.
pub fn cut_page<T>(things: &mut Vec<T>, limit: i64, id: impl Fn(&T) -> String) -> Option<String> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if things.len() <= limit {
        return None;
    }
    things.truncate(limit);
    things.last().map(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_cursor_only_where_more_follows() {
        let mut things = vec![1, 2, 3];
        assert_eq!(cut_page(&mut things, 2, ToString::to_string), Some("2".to_owned()));
        assert_eq!(things, [1, 2]);
        assert_eq!(cut_page(&mut things, 2, ToString::to_string), None);
    }

    #[test]
    fn a_foreign_cursor_is_refused_by_name() {
        assert!(read_cursor::<domain::id::SeatId>(None).unwrap().is_none());
        let problem = read_cursor::<domain::id::SeatId>(Some("x")).unwrap_err();
        assert_eq!(problem.places()[0].path, "cursor");
    }
}
