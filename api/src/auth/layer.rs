//! The layer that puts a [`Caller`] on every request of the public listener, and charges its rate limit.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{API_KEY_PREFIX, ApiKeyCache, BuyerTokens, Caller, hash_of};
use crate::edge::CallerLabel;
use crate::problem::{Problem, ProblemCode};
use crate::rate::{Peer, RateLimits, Tenant, TrustedProxies};

/// What it takes to know a caller.
#[derive(Debug)]
pub struct Identity {
    /// API keys.
    pub keys: ApiKeyCache,
    /// Buyers' tokens.
    pub tokens: BuyerTokens,
    /// Who may send how much.
    pub rates: RateLimits,
    /// Proxies whose word on the client's address is taken.
    pub proxies: TrustedProxies,
}

/// Where a request comes from, past the proxies that are believed. On every request of the public listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Finds out who calls, charges its rate, and lets the request through with its [`Caller`].
pub async fn identify(State(identity): State<Arc<Identity>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer);
    let address = identity.proxies.client_of(peer, request.headers());
    match identity.admit(request.headers(), address).await {
        Ok(caller) => {
            let label = CallerLabel(caller.to_string());
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(ClientAddress(address));
            let mut response = next.run(request).await;
            response.extensions_mut().insert(label);
            response
        }
        Err(problem) => problem.into_response(),
    }
}

impl Identity {
    /// # Errors
    /// `unauthorized`, `rate_limited`, or `degraded` where keys cannot be looked up.
    async fn admit(&self, headers: &HeaderMap, address: IpAddr) -> Result<Caller, Problem> {
        let Some(credentials) = bearer(headers)? else {
            self.rates.charge(&Tenant::Address(address))?;
            return Ok(Caller::Anonymous);
        };
        if credentials.starts_with(API_KEY_PREFIX) {
            return self.admit_key(credentials, address).await;
        }
        match self.tokens.verify(credentials) {
            Some((buyer, anonymous)) => {
                self.rates.charge(&Tenant::Buyer(buyer.as_str()))?;
                if anonymous {
                    // A new anonymous buyer costs its maker nothing: its requests count for their address as well.
                    self.rates.charge(&Tenant::Address(address))?;
                }
                Ok(Caller::Buyer { buyer, anonymous })
            }
            None => {
                self.rates.charge(&Tenant::Address(address))?;
                Err(unauthorized("The token is not valid, or it has ended."))
            }
        }
    }

    async fn admit_key(&self, presented: &str, address: IpAddr) -> Result<Caller, Problem> {
        let hash = hash_of(presented);
        let known = match hash.and_then(|hash| self.keys.recent(&hash)) {
            Some(key) => Some(key),
            None => {
                // Guessing keys costs us a query each, so it is limited by where the guesses come from.
                self.rates.charge(&Tenant::Address(address))?;
                match hash {
                    None => None,
                    Some(hash) => self.keys.look_up(hash).await.map_err(|error| {
                        tracing::warn!(error = %error.0, "API keys cannot be looked up");
                        Problem::degraded()
                    })?,
                }
            }
        };
        let key = known.ok_or_else(|| unauthorized("The API key is unknown or has been revoked."))?;
        self.rates.charge(&Tenant::Key(key.id))?;
        Ok(Caller::ApiKey { id: key.id, scope: key.scope })
    }
}

fn unauthorized(detail: &str) -> Problem {
    Problem::with_detail(ProblemCode::Unauthorized, detail)
}

/// The credentials of `Authorization: Bearer …`, if any were sent.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = sent.next() else { return Ok(None) };
    let form = || unauthorized("Send `Authorization: Bearer` with an API key or a buyer token.");
    if sent.next().is_some() {
        return Err(unauthorized("Send one Authorization header, not several."));
    }
    let (scheme, credentials) = value.to_str().map_err(|_| form())?.split_once(' ').ok_or_else(form)?;
    if !scheme.eq_ignore_ascii_case("bearer") || credentials.trim().is_empty() {
        return Err(form());
    }
    Ok(Some(credentials.trim()))
}

#[cfg(test)]
mod tests {
    use super::super::KnownKey;
    use super::*;
    use crate::rate::RateSettings;
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use domain::id::ApiKeyId;
    use tower::ServiceExt as _;

    fn key_text(byte: u8) -> String {
        format!("hf_{}", URL_SAFE_NO_PAD.encode([byte; 32]))
    }

    fn router(rates: &RateSettings) -> Router {
        let known = hash_of(&key_text(1)).unwrap();
        let source: super::super::ApiKeySource = Arc::new(move |hash| {
            let key = KnownKey { id: ApiKeyId(uuid::Uuid::nil()), scope: domain::store::pg::api_keys::KeyScope::Sales };
            Box::pin(async move { Ok((hash == known).then_some(key)) })
        });
        let identity = Arc::new(Identity {
            keys: ApiKeyCache::new(source),
            tokens: BuyerTokens::new(None, Some(&[9; 32]), 60).unwrap(),
            rates: RateLimits::new(rates),
            proxies: TrustedProxies::default(),
        });
        Router::new()
            .route("/", get(async |caller: Caller| caller.to_string()))
            .layer(axum::middleware::from_fn_with_state(identity, identify))
    }

    async fn call(router: &Router, authorization: &[&str]) -> (u16, Option<u64>) {
        let mut request = axum::http::Request::builder().uri("/");
        for value in authorization {
            request = request.header("authorization", *value);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let wait = response.headers().get("retry-after").map(|it| it.to_str().unwrap().parse().unwrap());
        (response.status().as_u16(), wait)
    }

    #[tokio::test]
    async fn credentials_that_are_sent_must_be_right_even_where_none_are_needed() {
        let router = router(&RateSettings::unlimited());
        let good = format!("Bearer {}", key_text(1));
        assert_eq!(call(&router, &[]).await.0, 200);
        assert_eq!(call(&router, &[&good]).await.0, 200);
        assert_eq!(call(&router, &[&good.replace("Bearer", "bearer")]).await.0, 200);
        let unknown = format!("Bearer {}", key_text(2));
        for bad in [&unknown, "Bearer hf_x", "Bearer ", "Bearer", "Basic dTpw", "Bearer a.b.c", &key_text(1)] {
            assert_eq!(call(&router, &[bad]).await.0, 401, "{bad}");
        }
        assert_eq!(call(&router, &[&good, &good]).await.0, 401, "two headers");
    }

    #[tokio::test]
    async fn guessing_keys_is_limited_by_where_it_comes_from() {
        let rates = RateSettings { address_per_second: 1, address_burst: 5, ..RateSettings::unlimited() };
        let router = router(&rates);
        let mut refused = None;
        for byte in 2..10 {
            let (status, wait) = call(&router, &[&format!("Bearer {}", key_text(byte))]).await;
            if status == 429 {
                refused = wait;
                break;
            }
            assert_eq!(status, 401);
        }
        assert!(refused.unwrap() >= 1);
    }
}
