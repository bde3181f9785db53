//! Who may see the operators' listener.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::store::pg::api_keys::KeyScope;

use crate::auth::{Identity, hash_of};
use crate::edge::CallerLabel;
use crate::problem::{Problem, ProblemCode};
use crate::settings::OpsSettings;

/// Lets operators in.
#[derive(Debug, Clone)]
pub struct Guard {
    identity: Arc<Identity>,
    asks_for_key: bool,
}

impl Guard {
    /// A guard for the listener of these settings: off a loopback address a key is always asked for.
    pub fn new(settings: &OpsSettings, identity: Arc<Identity>) -> Self {
        Self { identity, asks_for_key: settings.key || !settings.addr.ip().is_loopback() }
    }

    /// Who asks, if it may see what is guarded.
    ///
    /// # Errors
    /// `unauthorized`, `forbidden`, or `degraded` where keys cannot be looked up.
    pub async fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<CallerLabel, Problem> {
        // A page from elsewhere, open in an operator's browser, could send its cookies and credentials along.
        if is_foreign_page(method, headers) {
            return Err(Problem::with_detail(
                ProblemCode::Forbidden,
                "This listener takes no requests of other pages.",
            ));
        }
        if !self.asks_for_key {
            // A name that somebody pointed at 127.0.0.1 must not open this listener to that somebody's page.
            return if names_loopback(headers) {
                Ok(CallerLabel("loopback".to_owned()))
            } else {
                Err(Problem::with_detail(ProblemCode::Forbidden, "Call this listener as 127.0.0.1 or localhost."))
            };
        }
        let presented = presented_key(headers).ok_or_else(|| Problem::new(ProblemCode::Unauthorized))?;
        let hash = hash_of(&presented).ok_or_else(|| Problem::new(ProblemCode::Unauthorized))?;
        let known = match self.identity.keys.recent(&hash) {
            Some(key) => Some(key),
            None => self.identity.keys.look_up(hash).await.map_err(|_| Problem::degraded())?,
        };
        match known {
            None => Err(Problem::new(ProblemCode::Unauthorized)),
            Some(key) if key.scope == KeyScope::Ops => Ok(CallerLabel(format!("ops:{}", key.id))),
            Some(_) => Err(Problem::with_detail(ProblemCode::Forbidden, "This needs an API key of scope ops.")),
        }
    }
}

/// Lets a request through that [`Guard::admit`] admits.
pub async fn admit(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.admit(request.method(), request.headers()).await {
        Ok(label) => {
            let mut response = next.run(request).await;
            response.extensions_mut().insert(label);
            response
        }
        Err(problem) if problem.code() == ProblemCode::Unauthorized => {
            let mut response = problem.into_response();
            // A browser then asks for a name (any) and a password (the key), which is all that the board needs.
            let schemes = HeaderValue::from_static(r#"Basic realm="holdfast operators", charset="UTF-8""#);
            response.headers_mut().insert(header::WWW_AUTHENTICATE, schemes);
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// The key of `Authorization: Bearer KEY`, or of Basic with the key as the password.
fn presented_key(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credentials) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(credentials.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    let (_name, password) = pair.split_once(':')?;
    Some(password.to_owned())
}

fn is_foreign_page(method: &Method, headers: &HeaderMap) -> bool {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    if matches!(site, Some("cross-site" | "same-site")) && *method != Method::GET {
        return true;
    }
    match (text(header::ORIGIN), text(header::HOST)) {
        (Some(origin), Some(host)) => origin.split_once("://").is_none_or(|(_, own)| own != host),
        (Some(_), None) => true,
        (None, _) => false,
    }
}

fn names_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|value| value.to_str().ok()) else {
        // HTTP/1.1 always has one; only our own tests call without a connection.
        return true;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{ApiKeyCache, ApiKeySource, BuyerTokens, KnownKey};
    use crate::rate::{RateLimits, RateSettings, TrustedProxies};
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use domain::id::ApiKeyId;

    fn key(byte: u8) -> String {
        format!("hf_{}", URL_SAFE_NO_PAD.encode([byte; 32]))
    }

    fn guard(addr: &str, asks: bool) -> Guard {
        let (ops, admin) = (hash_of(&key(1)).unwrap(), hash_of(&key(2)).unwrap());
        let source: ApiKeySource = Arc::new(move |hash| {
            let scope = match hash {
                hash if hash == ops => Some(KeyScope::Ops),
                hash if hash == admin => Some(KeyScope::Admin),
                _ => None,
            };
            Box::pin(async move { Ok(scope.map(|scope| KnownKey { id: ApiKeyId(uuid::Uuid::nil()), scope })) })
        });
        let identity = Identity {
            keys: ApiKeyCache::new(source),
            tokens: BuyerTokens::new(None, None, 60).unwrap(),
            rates: RateLimits::new(&RateSettings::unlimited()),
            proxies: TrustedProxies::default(),
        };
        let settings = OpsSettings { addr: addr.parse().unwrap(), key: asks, drain_ms: 0, stop_ms: 0 };
        Guard::new(&settings, Arc::new(identity))
    }

    async fn status(guard: &Guard, method: Method, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(header::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        guard.admit(&method, &map).await.map_or_else(|problem| problem.status().as_u16(), |_| 200)
    }

    #[tokio::test]
    async fn beyond_loopback_only_an_ops_key_opens_it() {
        for guard in [guard("0.0.0.0:8081", false), guard("127.0.0.1:8081", true)] {
            let get = async |authorization: &str| {
                status(&guard, Method::GET, &[("host", "10.0.0.1:8081"), ("authorization", authorization)]).await
            };
            assert_eq!(status(&guard, Method::GET, &[("host", "127.0.0.1:8081")]).await, 401);
            assert_eq!(get(&format!("Bearer {}", key(1))).await, 200);
            assert_eq!(get(&format!("Basic {}", STANDARD.encode(format!("me:{}", key(1))))).await, 200);
            assert_eq!(get(&format!("Bearer {}", key(2))).await, 403, "an admin key is no operator's");
            assert_eq!(get(&format!("Bearer {}", key(3))).await, 401);
            assert_eq!(get("Basic nonsense").await, 401);
        }
    }

    #[tokio::test]
    async fn loopback_is_open_to_this_machine_and_to_no_page_from_elsewhere() {
        let guard = guard("127.0.0.1:8081", false);
        let host = ("host", "127.0.0.1:8081");
        assert_eq!(status(&guard, Method::GET, &[host]).await, 200);
        assert_eq!(status(&guard, Method::GET, &[("host", "localhost:8081")]).await, 200);
        assert_eq!(status(&guard, Method::GET, &[("host", "[::1]:8081")]).await, 200);
        assert_eq!(status(&guard, Method::PUT, &[host, ("origin", "http://127.0.0.1:8081")]).await, 200);
        assert_eq!(status(&guard, Method::GET, &[("host", "rebound.example:8081")]).await, 403);
        assert_eq!(status(&guard, Method::PUT, &[host, ("origin", "http://evil.example")]).await, 403);
        assert_eq!(status(&guard, Method::PUT, &[host, ("origin", "null")]).await, 403);
        assert_eq!(status(&guard, Method::PUT, &[host, ("sec-fetch-site", "cross-site")]).await, 403);
    }
}
