//! Money: minor units and an ISO 4217 currency, never a float.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An ISO 4217 currency. KRW and JPY have no minor digits, USD has two, BHD three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Currency(iso_currency::Currency);

impl Currency {
    /// The number of minor digits: how many of an amount's digits stand behind the point.
    #[must_use]
    pub fn minor_digits(self) -> u32 {
        self.0.exponent().map_or(0, u32::from)
    }

    /// The three letters.
    #[must_use]
    pub fn code(self) -> &'static str {
        self.0.code()
    }
}

/// A text that names no currency.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an ISO 4217 currency code such as KRW or USD")]
pub struct CurrencyError;

impl FromStr for Currency {
    type Err = CurrencyError;
    fn from_str(text: &str) -> Result<Self, CurrencyError> {
        iso_currency::Currency::from_code(text).map(Self).ok_or(CurrencyError)
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An amount in minor units of a currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Money {
    /// Minor units: 55000 is ₩55,000 and $550.00.
    pub amount: i64,
    /// The currency.
    pub currency: Currency,
}

impl Money {
    /// The largest price of one seat, in minor units; a reservation's sum of at most 100 such prices cannot overflow.
    pub const AMOUNT_MAX: i64 = 1_000_000_000_000;
}

impl fmt::Display for Money {
    /// As people read it: `KRW 55000`, `USD 550.00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.currency.minor_digits();
        let unit = 10_i64.pow(digits);
        let sign = if self.amount < 0 { "-" } else { "" };
        let amount = self.amount.unsigned_abs();
        let unit_abs = unit.unsigned_abs();
        if digits == 0 {
            write!(f, "{} {sign}{amount}", self.currency)
        } else {
            let width = usize::try_from(digits).unwrap_or(0);
            write!(f, "{} {sign}{}.{:0width$}", self.currency, amount / unit_abs, amount % unit_abs)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_currency_is_written_with_its_own_minor_digits() {
        let money = |amount, code: &str| Money { amount, currency: code.parse().unwrap() }.to_string();
        assert_eq!(money(55000, "KRW"), "KRW 55000");
        assert_eq!(money(80, "JPY"), "JPY 80");
        assert_eq!(money(1005, "USD"), "USD 10.05");
        assert_eq!(money(1234, "BHD"), "BHD 1.234");
        assert_eq!(money(-5, "USD"), "USD -0.05");
    }
}
