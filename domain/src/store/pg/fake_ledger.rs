//! What the fake provider keeps at its own place: it outlives workers, as a real provider does. No flow reads it.

use crate::money::Money;

use super::{Pg, PgError};

/// A payment in the fake provider's ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The token that it was asked with.
    pub token: String,
    /// How much.
    pub amount: Money,
    /// `pending`, `authorized`, `captured`, `declined` or `voided`.
    pub status: String,
}

impl Pg {
    /// Enters a payment once under its key; a repeat finds the first.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn enter_in_ledger(&self, key: &str, entry: &LedgerEntry) -> Result<LedgerEntry, PgError> {
        let captures = i32::from(entry.status == "captured");
        sqlx::query!(
            "INSERT INTO fake_provider_ledger (key, token, amount, currency, status, captures)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT ON CONSTRAINT fake_provider_ledger_pkey DO NOTHING",
            key,
            entry.token,
            entry.amount.amount,
            entry.amount.currency.code(),
            entry.status,
            captures
        )
        .execute(self.pool())
        .await?;
        self.read_ledger(key).await?.ok_or_else(|| PgError::unreadable("fake_provider_ledger", "key", key))
    }

    /// The payment under a key.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn read_ledger(&self, key: &str) -> Result<Option<LedgerEntry>, PgError> {
        let row = sqlx::query!("SELECT token, amount, currency, status FROM fake_provider_ledger WHERE key = $1", key)
            .fetch_optional(self.pool())
            .await?;
        row.map(|row| {
            let currency = row.currency.parse();
            let currency = currency.map_err(|_| PgError::unreadable("fake_provider_ledger", "currency", key))?;
            Ok(LedgerEntry { token: row.token, amount: Money { amount: row.amount, currency }, status: row.status })
        })
        .transpose()
    }

    /// Moves a payment from one of `from` to `to`, once.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn move_ledger(&self, key: &str, from: &[&str], to: &str) -> Result<(), PgError> {
        sqlx::query!(
            "UPDATE fake_provider_ledger SET status = $3, captures = captures + CASE WHEN $3 = 'captured' THEN 1 ELSE 0 END
             WHERE key = $1 AND status = ANY ($2)",
            key,
            from as &[&str],
            to
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Gives back once under a refund's key.
    ///
    /// # Errors
    /// [`PgError`]; also where more would be given back than was taken.
    pub async fn refund_in_ledger(&self, refund_key: &str, key: &str, amount: i64) -> Result<(), PgError> {
        sqlx::query!(
            "WITH given AS (
                 INSERT INTO fake_provider_refunds (key, payment_key, amount) VALUES ($1, $2, $3)
                 ON CONFLICT ON CONSTRAINT fake_provider_refunds_pkey DO NOTHING RETURNING amount)
             UPDATE fake_provider_ledger SET refunded = refunded + given.amount FROM given WHERE key = $2",
            refund_key,
            key,
            amount
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// How much of a payment was given back; none where it is not in the ledger.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn refunded_in_ledger(&self, key: &str) -> Result<Option<i64>, PgError> {
        let refunded = sqlx::query_scalar!("SELECT refunded FROM fake_provider_ledger WHERE key = $1", key)
            .fetch_optional(self.pool())
            .await?;
        Ok(refunded)
    }
}
