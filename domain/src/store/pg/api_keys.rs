//! API keys: shown once, kept as a hash.

use crate::id::ApiKeyId;
use crate::runtime::clock::new_uuid;
use crate::time::Instant;

use super::{Pg, PgError};

/// What an API key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyScope {
    /// Sets up venues and events, and may do all that `Sales` may.
    Admin,
    /// Reserves and pays for any buyer.
    Sales,
    /// The operators' listener.
    Ops,
}

impl KeyScope {
    /// The word in SQL and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Sales => "sales",
            Self::Ops => "ops",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "admin" => Some(Self::Admin),
            "sales" => Some(Self::Sales),
            "ops" => Some(Self::Ops),
            _ => None,
        }
    }
}

/// An API key without its secret.
#[derive(Debug, Clone)]
pub struct ApiKey {
    /// Its id.
    pub id: ApiKeyId,
    /// What its maker calls it.
    pub name: String,
    /// What it may do.
    pub scope: KeyScope,
    /// When it was made.
    pub created_at: Instant,
    /// When it was revoked.
    pub revoked_at: Option<Instant>,
}

impl Pg {
    /// Keeps a new key by the SHA-256 of its secret.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn insert_api_key(&self, name: &str, scope: KeyScope, hash: &[u8; 32]) -> Result<ApiKeyId, PgError> {
        let id = ApiKeyId(new_uuid());
        sqlx::query!(
            "INSERT INTO api_keys (id, name, scope, hash) VALUES ($1, $2, $3, $4)",
            id.0,
            name,
            scope.as_str(),
            &hash[..]
        )
        .execute(self.pool())
        .await?;
        Ok(id)
    }

    /// The live key with that hash.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn find_api_key(&self, hash: &[u8; 32]) -> Result<Option<(ApiKeyId, KeyScope)>, PgError> {
        let row = sqlx::query!("SELECT id, scope FROM api_keys WHERE hash = $1 AND revoked_at IS NULL", &hash[..])
            .fetch_optional(self.pool())
            .await?;
        row.map(|row| {
            let scope =
                KeyScope::from_word(&row.scope).ok_or_else(|| PgError::unreadable("api_keys", "scope", row.id))?;
            Ok((ApiKeyId(row.id), scope))
        })
        .transpose()
    }

    /// All keys, oldest first.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn list_api_keys(&self) -> Result<Vec<ApiKey>, PgError> {
        let rows = sqlx::query!("SELECT id, name, scope, created_at, revoked_at FROM api_keys ORDER BY id")
            .fetch_all(self.pool())
            .await?;
        rows.into_iter()
            .map(|row| {
                let scope = KeyScope::from_word(&row.scope);
                Ok(ApiKey {
                    id: ApiKeyId(row.id),
                    name: row.name,
                    scope: scope.ok_or_else(|| PgError::unreadable("api_keys", "scope", row.id))?,
                    created_at: row.created_at,
                    revoked_at: row.revoked_at,
                })
            })
            .collect()
    }

    /// Revokes a key. False where no live key has that id.
    ///
    /// # Errors
    /// [`PgError`].
    pub async fn revoke_api_key(&self, id: ApiKeyId) -> Result<bool, PgError> {
        let done = sqlx::query!("UPDATE api_keys SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL", id.0)
            .execute(self.pool())
            .await?;
        Ok(done.rows_affected() == 1)
    }
}
