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
use domain::id::{ApiKeyId, Buyer};
use utoipa::ToSchema;

pub use api_keys::{API_KEY_PREFIX, ApiKeyCache, ApiKeySource, KnownKey, LookupError, hash_of};
pub use buyer_tokens::{BuyerTokens, BuyerTokensError, IssuedToken, ShopKey};
pub use layer::{Identity, identify};

use crate::problem::{Problem, ProblemCode};

/// What an API key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ToSchema)]
pub enum Scope {
    /// Sets up venues and events.
    Admin,
    /// Reserves and pays for any buyer.
    Sales,
    /// Sees the operators' listener.
    Ops,
}

impl Scope {
    /// The word in SQL, on the command line and in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Sales => "sales",
            Self::Ops => "ops",
        }
    }

    /// Reads the word.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "admin" => Some(Self::Admin),
            "sales" => Some(Self::Sales),
            "ops" => Some(Self::Ops),
            _ => None,
        }
    }
}

/// Who sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The holder of an API key.
    ApiKey {
        /// The key's id, not its secret.
        id: ApiKeyId,
        /// What it may do.
        scope: Scope,
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
            Self::ApiKey { id, scope: Scope::Admin } => Ok(*id),
            Self::ApiKey { scope: Scope::Sales | Scope::Ops, .. } | Self::Buyer { .. } => {
                Err(Problem::with_detail(ProblemCode::Forbidden, "This needs an API key of scope admin."))
            }
            Self::Anonymous => Err(Problem::new(ProblemCode::Unauthorized)),
        }
    }

    /// Whose reservations this caller may see and change.
    ///
    /// # Errors
    /// `unauthorized` without credentials, `forbidden` with an API key of scope `ops`.
    pub fn reach(&self) -> Result<Reach<'_>, Problem> {
        match self {
            Self::ApiKey { scope: Scope::Sales | Scope::Admin, .. } => Ok(Reach::AnyBuyer),
            Self::ApiKey { scope: Scope::Ops, .. } => Err(Problem::with_detail(
                ProblemCode::Forbidden,
                "This needs an API key of scope sales or a buyer token.",
            )),
            Self::Buyer { buyer, .. } => Ok(Reach::Only(buyer)),
            Self::Anonymous => Err(Problem::new(ProblemCode::Unauthorized)),
        }
    }

    /// The buyer of a new reservation: a buyer buys for itself, an API key names whom it buys for.
    ///
    /// # Errors
    /// `unauthorized`, `forbidden` (a buyer names another, or a key of scope `ops`), `validation_failed` (a key names
    /// nobody).
    pub fn buyer_of_hold(&self, named: Option<Buyer>) -> Result<Buyer, Problem> {
        match (self.reach()?, named) {
            (Reach::AnyBuyer, Some(buyer)) => Ok(buyer),
            (Reach::AnyBuyer, None) => Err(Problem::invalid("buyer", "an API key must name the buyer it reserves for")),
            (Reach::Only(own), Some(named)) if *own != named => {
                Err(Problem::with_detail(ProblemCode::Forbidden, "A buyer reserves for itself only."))
            }
            (Reach::Only(own), _) => Ok(own.clone()),
        }
    }
}

/// Whose reservations a caller may see and change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach<'a> {
    /// Anybody's.
    AnyBuyer,
    /// Its own.
    Only(&'a Buyer),
}

impl Reach<'_> {
    /// Whether a reservation of `buyer` is within reach.
    pub fn covers(self, buyer: &Buyer) -> bool {
        match self {
            Self::AnyBuyer => true,
            Self::Only(own) => own == buyer,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn buyer(name: &str) -> Buyer {
        Buyer::parse(name).unwrap()
    }

    fn key(scope: Scope) -> Caller {
        Caller::ApiKey { id: ApiKeyId(uuid::Uuid::nil()), scope }
    }

    #[test]
    fn a_buyer_reserves_for_itself_only_and_a_key_must_name_one() {
        let own = Caller::Buyer { buyer: buyer("u1"), anonymous: false };
        assert_eq!(own.buyer_of_hold(None).unwrap(), buyer("u1"));
        assert_eq!(own.buyer_of_hold(Some(buyer("u1"))).unwrap(), buyer("u1"));
        assert_eq!(own.buyer_of_hold(Some(buyer("u2"))).unwrap_err().code(), ProblemCode::Forbidden);
        assert_eq!(key(Scope::Sales).buyer_of_hold(Some(buyer("u2"))).unwrap(), buyer("u2"));
        assert_eq!(key(Scope::Sales).buyer_of_hold(None).unwrap_err().places()[0].path, "buyer");
        assert_eq!(key(Scope::Ops).buyer_of_hold(Some(buyer("u2"))).unwrap_err().code(), ProblemCode::Forbidden);
        assert_eq!(Caller::Anonymous.buyer_of_hold(None).unwrap_err().code(), ProblemCode::Unauthorized);
    }

    #[test]
    fn only_an_admin_key_sets_up() {
        assert!(key(Scope::Admin).require_admin().is_ok());
        for other in [key(Scope::Sales), key(Scope::Ops), Caller::Buyer { buyer: buyer("u"), anonymous: true }] {
            assert_eq!(other.require_admin().unwrap_err().code(), ProblemCode::Forbidden, "{other}");
        }
        assert_eq!(Caller::Anonymous.require_admin().unwrap_err().code(), ProblemCode::Unauthorized);
    }

    #[test]
    fn two_callers_never_share_an_idempotency_name() {
        let id = ApiKeyId(uuid::Uuid::nil());
        let rival = Caller::Buyer { buyer: buyer(&format!("key:{id}")), anonymous: false };
        let names =
            [key(Scope::Sales).idempotency_name(), rival.idempotency_name(), Caller::Anonymous.idempotency_name()];
        assert_ne!(names[0], names[1]);
        assert_ne!(names[1], names[2]);
    }
}
