//! API keys: `hf_` and 32 random bytes in base64url. Only their SHA-256 is stored.
//!
//! A key is looked up in the store and kept for a few seconds, so that a busy key costs no query per request and a
//! revoked one stops working within the last three seconds.
//!
//! Only hashes are ever compared, by Postgres and by this cache: how long that takes says nothing about a key, because
//! nobody can choose a hash.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::id::ApiKeyId;
use domain::runtime::clock::random_secret;
use domain::store::pg::api_keys::KeyScope;
use futures::future::BoxFuture;
use sha2::{Digest as _, Sha256};

/// What every API key begins with.
pub const API_KEY_PREFIX: &str = "hf_";

/// How long a looked-up key is believed, in milliseconds: the longest that a revoked key goes on working.
pub const KEPT_MS: u64 = 3_000;

/// The most keys kept. Unknown keys are not kept, so that nobody can fill the cache with guesses.
const KEPT_MAX: usize = 10_000;

/// A key as the store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownKey {
    /// Its id.
    pub id: ApiKeyId,
    /// What it may do.
    pub scope: KeyScope,
}

/// The store could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("API keys cannot be looked up")]
pub struct LookupError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Finds a key that is not revoked by its hash.
pub type ApiKeySource =
    Arc<dyn Fn([u8; 32]) -> BoxFuture<'static, Result<Option<KnownKey>, LookupError>> + Send + Sync>;

/// Makes a key: what is shown once, and the hash that is kept.
#[must_use]
pub fn new_api_key() -> (String, [u8; 32]) {
    let key = format!("{API_KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(random_secret()));
    let hash = Sha256::digest(key.as_bytes()).into();
    (key, hash)
}

/// SHA-256 of a presented key; none if it does not have the form of a key.
pub fn hash_of(presented: &str) -> Option<[u8; 32]> {
    let secret = presented.strip_prefix(API_KEY_PREFIX)?;
    let bytes = URL_SAFE_NO_PAD.decode(secret).ok()?;
    (bytes.len() == 32).then(|| Sha256::digest(presented.as_bytes()).into())
}

/// The keys seen lately.
pub struct ApiKeyCache {
    source: ApiKeySource,
    kept: Mutex<HashMap<[u8; 32], Kept>>,
}

#[derive(Clone, Copy)]
struct Kept {
    key: KnownKey,
    checked: Instant,
}

impl std::fmt::Debug for ApiKeyCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKeyCache").finish_non_exhaustive()
    }
}

impl ApiKeyCache {
    /// A cache in front of `source`.
    pub fn new(source: ApiKeySource) -> Self {
        Self { source, kept: Mutex::default() }
    }

    /// The key of this hash if it was checked within the last three seconds.
    pub fn recent(&self, hash: &[u8; 32]) -> Option<KnownKey> {
        let kept = *self.lock().get(hash)?;
        (kept.checked.elapsed() < Duration::from_millis(KEPT_MS)).then_some(kept.key)
    }

    /// Asks the store, and remembers.
    ///
    /// # Errors
    /// [`LookupError`] if the store cannot be asked.
    pub async fn look_up(&self, hash: [u8; 32]) -> Result<Option<KnownKey>, LookupError> {
        let checked = Instant::now();
        let found = (self.source)(hash).await?;
        let mut kept = self.lock();
        match found {
            Some(key) => {
                if kept.len() >= KEPT_MAX {
                    kept.retain(|_, kept| kept.checked.elapsed() < Duration::from_millis(KEPT_MS));
                }
                if kept.len() < KEPT_MAX {
                    kept.insert(hash, Kept { key, checked });
                }
            }
            None => {
                kept.remove(&hash);
            }
        }
        Ok(found)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Kept>> {
        // A panic while the map was held cannot leave it half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_found_by_its_hash() {
        let (key, hash) = new_api_key();
        assert_eq!(hash_of(&key), Some(hash));
        assert_ne!(new_api_key().0, key);
    }

    #[test]
    fn only_the_form_of_a_key_is_hashed() {
        let key = format!("hf_{}", URL_SAFE_NO_PAD.encode([7_u8; 32]));
        assert!(hash_of(&key).is_some());
        for bad in ["", "hf_", "hf_short", &key[3..], &format!("{key}x"), &key.to_uppercase()] {
            assert!(hash_of(bad).is_none(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_revoked_key_stops_working_at_the_next_look() {
        let hash = [1; 32];
        let key = KnownKey { id: ApiKeyId(uuid::Uuid::nil()), scope: KeyScope::Sales };
        let stored = Arc::new(Mutex::new(Some(key)));
        let answers = Arc::clone(&stored);
        let cache = ApiKeyCache::new(Arc::new(move |_| {
            let answer = *answers.lock().unwrap();
            Box::pin(async move { Ok(answer) })
        }));
        assert_eq!(cache.recent(&hash), None);
        assert_eq!(cache.look_up(hash).await.unwrap(), Some(key));
        assert_eq!(cache.recent(&hash), Some(key));
        *stored.lock().unwrap() = None;
        assert_eq!(cache.look_up(hash).await.unwrap(), None);
        assert_eq!(cache.recent(&hash), None, "what the store no longer has is forgotten at once");
    }
}
