//! Who calls: an API key, a buyer's token, or nobody in particular.
//!
//! Credentials are looked at once, at the edge; handlers see a [`Caller`] and ask it for what they need. Credentials
//! that are sent and wrong are refused everywhere, also where none are needed: their sender believes to be somebody.

mod api_keys;
mod buyer_tokens;
mod layer;

use std::fmt;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use domain::flow::Access;
use domain::id::{ApiKeyId, Buyer};
use domain::store::pg::api_keys::KeyScope;

pub use api_keys::{API_KEY_PREFIX, ApiKeyCache, ApiKeySource, KnownKey, LookupError, hash_of, new_api_key};
pub use buyer_tokens::{BuyerTokens, BuyerTokensError, IssuedToken, ShopKey};
pub(crate) use layer::ClientAddress;
pub use layer::{Identity, identify};

use crate::problem::{Problem, ProblemCode};

/// Who sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The holder of an API key.
    ApiKey {
        /// The key's id, not its secret.
        id: ApiKeyId,
        /// What it may do.
        scope: KeyScope,
    },
    /// A buyer with a token of the shop's or of ours.
    Buyer {
        /// Its name.
        buyer: Buyer,
        /// Whether the token is one that we gave to an unknown caller: anybody can have many of those.
        anonymous: bool,
    },
    /// No credentials.
    Anonymous,
}

impl Caller {
    /// A name for the idempotency store: two callers never share one.
    pub fn idempotency_name(&self) -> String {
        match self {
            Self::ApiKey { id, .. } => format!("key:{id}"),
            Self::Buyer { buyer, .. } => format!("buyer:{}", buyer.as_str()),
            Self::Anonymous => "anonymous".to_owned(),
        }
    }

    /// Requires an API key of scope `admin`.
    ///
    /// # Errors
    /// `unauthorized` without credentials, `forbidden` with others.
    pub fn require_admin(&self) -> Result<ApiKeyId, Problem> {
        match self {
            Self::ApiKey { id, scope: KeyScope::Admin } => Ok(*id),
            Self::ApiKey { scope: KeyScope::Sales | KeyScope::Ops, .. } | Self::Buyer { .. } => {
                Err(Problem::with_detail(ProblemCode::Forbidden, "This needs an API key of scope admin."))
            }
            Self::Anonymous => Err(Problem::new(ProblemCode::Unauthorized)),
        }
    }

    /// Whose reservations this caller may see and change.
    ///
    /// # Errors
    /// `unauthorized` without credentials, `forbidden` with an API key of scope `ops`.
    pub fn access(&self) -> Result<Access, Problem> {
        match self {
            Self::ApiKey { scope: KeyScope::Sales | KeyScope::Admin, .. } => Ok(Access::Any),
            Self::ApiKey { scope: KeyScope::Ops, .. } => Err(Problem::with_detail(
                ProblemCode::Forbidden,
                "This needs an API key of scope sales or a buyer token.",
            )),
            Self::Buyer { buyer, .. } => Ok(Access::Own(buyer.clone())),
            Self::Anonymous => Err(Problem::new(ProblemCode::Unauthorized)),
        }
    }

    /// The buyer of a new reservation: a buyer buys for itself, an API key names whom it buys for.
    ///
    /// # Errors
    /// `unauthorized`, `forbidden` (a buyer names another, or a key of scope `ops`), `validation_failed` (a key names
    /// nobody).
    pub fn buyer_of_hold(&self, named: Option<Buyer>) -> Result<Buyer, Problem> {
        match (self.access()?, named) {
            (Access::Any, Some(buyer)) => Ok(buyer),
            (Access::Any, None) => Err(Problem::invalid("buyer", "an API key must name the buyer it reserves for")),
            (Access::Own(own), Some(named)) if own != named => {
                Err(Problem::with_detail(ProblemCode::Forbidden, "A buyer reserves for itself only."))
            }
            (Access::Own(own), _) => Ok(own),
        }
    }
}

impl fmt::Display for Caller {
    /// For the log: ids, never secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiKey { id, scope } => write!(f, "{}:{id}", scope.as_str()),
            Self::Buyer { buyer, .. } => write!(f, "buyer:{}", buyer.as_str()),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        // Without the identity layer nobody is anybody: a route that was mounted outside of it stays shut.
        Ok(parts.extensions.get::<Caller>().cloned().unwrap_or(Caller::Anonymous))
    }
}

/// An extractor that only an API key of scope `admin` passes. It stands before the body in a handler's arguments, so
/// that a stranger is refused for who it is and not for what it sent.
#[derive(Debug, Clone, Copy)]
pub struct Admin(pub ApiKeyId);

impl<S: Sync> FromRequestParts<S> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Caller::from_request_parts(parts, state).await?.require_admin().map(Self)
    }
}

/// An extractor that whoever may reserve passes: a buyer, or an API key of scope `sales` or `admin`.
#[derive(Debug, Clone)]
pub struct Shopper {
    /// Who it is.
    pub caller: Caller,
    /// Whose reservations it may see and change.
    pub access: Access,
}

impl<S: Sync> FromRequestParts<S> for Shopper {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        Ok(Self { access: caller.access()?, caller })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buyer(name: &str) -> Buyer {
        Buyer::parse(name).unwrap()
    }

    fn key(scope: KeyScope) -> Caller {
        Caller::ApiKey { id: ApiKeyId(uuid::Uuid::nil()), scope }
    }

    #[test]
    fn a_buyer_reserves_for_itself_only_and_a_key_must_name_one() {
        let own = Caller::Buyer { buyer: buyer("u1"), anonymous: false };
        assert_eq!(own.buyer_of_hold(None).unwrap(), buyer("u1"));
        assert_eq!(own.buyer_of_hold(Some(buyer("u1"))).unwrap(), buyer("u1"));
        assert_eq!(own.buyer_of_hold(Some(buyer("u2"))).unwrap_err().code(), ProblemCode::Forbidden);
        assert_eq!(key(KeyScope::Sales).buyer_of_hold(Some(buyer("u2"))).unwrap(), buyer("u2"));
        assert_eq!(key(KeyScope::Sales).buyer_of_hold(None).unwrap_err().places()[0].path, "buyer");
        assert_eq!(key(KeyScope::Ops).buyer_of_hold(Some(buyer("u2"))).unwrap_err().code(), ProblemCode::Forbidden);
        assert_eq!(Caller::Anonymous.buyer_of_hold(None).unwrap_err().code(), ProblemCode::Unauthorized);
    }

    #[test]
    fn only_an_admin_key_sets_up() {
        assert!(key(KeyScope::Admin).require_admin().is_ok());
        for other in [key(KeyScope::Sales), key(KeyScope::Ops), Caller::Buyer { buyer: buyer("u"), anonymous: true }] {
            assert_eq!(other.require_admin().unwrap_err().code(), ProblemCode::Forbidden, "{other}");
        }
        assert_eq!(Caller::Anonymous.require_admin().unwrap_err().code(), ProblemCode::Unauthorized);
    }

    #[test]
    fn two_callers_never_share_an_idempotency_name() {
        let id = ApiKeyId(uuid::Uuid::nil());
        let rival = Caller::Buyer { buyer: buyer(&format!("key:{id}")), anonymous: false };
        let names =
            [key(KeyScope::Sales).idempotency_name(), rival.idempotency_name(), Caller::Anonymous.idempotency_name()];
        assert_ne!(names[0], names[1]);
        assert_ne!(names[1], names[2]);
    }
}
