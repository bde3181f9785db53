//! What belongs to the installation as a whole.

use super::{Pg, PgError};

impl Pg {
    /// The installation's value of that name; `value` becomes it where there was none.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn keep_installation_value(&self, name: &str, value: &str) -> Result<String, PgError> {
        sqlx::query!(
            "INSERT INTO installation (name, value) VALUES ($1, $2) ON CONFLICT ON CONSTRAINT installation_pkey DO NOTHING",
            name,
            value
        )
        .execute(self.pool())
        .await?;
        let kept =
            sqlx::query_scalar!("SELECT value FROM installation WHERE name = $1", name).fetch_one(self.pool()).await?;
        Ok(kept)
    }
}
