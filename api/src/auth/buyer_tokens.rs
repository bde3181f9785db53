//! Buyer tokens: JWTs whose `sub` is the buyer.
//!
//! A token is verified by exactly one key and one algorithm. Which, is decided by whose it claims to be: ours carry the
//! key id [`OWN_KID`] and are HS256 with our secret; all others are the shop's. A token's own `alg` is never a choice.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use domain::id::Buyer;
use domain::runtime::clock::{random_secret, system_ms};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};

/// The key id of the tokens that we sign.
const OWN_KID: &str = "holdfast-anonymous";

/// What every anonymous buyer's name begins with.
const ANONYMOUS_PREFIX: &str = "anon_";

/// Clocks of shop and server may differ by so much, in seconds.
const LEEWAY_S: u64 = 30;

/// The longest token looked at, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The shortest secret accepted, in bytes: as long as the hash (RFC 7518, 3.2).
const SECRET_BYTES_MIN: usize = 32;

/// The fixed first bytes of an Ed25519 public key in DER (RFC 8410); the key's 32 bytes follow.
const ED25519_SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// How the shop signs its buyers' tokens.
#[derive(Clone, PartialEq, Eq)]
pub enum ShopKey {
    /// HS256 with this shared secret.
    Hs256(String),
    /// EdDSA; the Ed25519 public key as PEM, or as its 32 bytes in base64url (a JWK's `x`).
    EdDsa(String),
}

impl fmt::Debug for ShopKey {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hs256(_) => "ShopKey::Hs256",
            Self::EdDsa(_) => "ShopKey::EdDsa",
        })
    }
}

/// Settings that make no usable keys.
#[derive(Debug, thiserror::Error)]
pub enum BuyerTokensError {
    /// A secret that can be guessed.
    #[error("a buyer token secret has at least {SECRET_BYTES_MIN} bytes")]
    ShortSecret,
    /// Not a public key.
    #[error("the buyer token public key is neither PEM of an Ed25519 key nor 32 bytes in base64url")]
    BadPublicKey,
    /// The library refused the key.
    #[error("the buyer token key cannot be used")]
    Refused(#[from] jsonwebtoken::errors::Error),
}

/// A token that we made for a new, anonymous buyer.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    /// The new buyer.
    pub buyer: Buyer,
    /// The token to send as `Authorization: Bearer …`.
    pub token: String,
    /// When it ends, in seconds since the epoch.
    pub expires_s: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    sub: String,
    exp: i64,
}

/// Verifies buyers' tokens, and makes those of anonymous buyers.
pub struct BuyerTokens {
    shop: Option<(DecodingKey, Validation)>,
    own: Option<Own>,
}

struct Own {
    sign: EncodingKey,
    verify: DecodingKey,
    ttl_s: i64,
}

impl fmt::Debug for BuyerTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuyerTokens").field("shop", &self.shop.is_some()).field("own", &self.own.is_some()).finish()
    }
}

impl BuyerTokens {
    /// Tokens of the shop's `shop` key, and anonymous ones signed with `own_secret` that last `ttl_s` seconds; without
    /// a secret there are no anonymous buyers.
    ///
    /// # Errors
    /// [`BuyerTokensError`] names the setting at fault.
    pub fn new(shop: Option<&ShopKey>, own_secret: Option<&[u8]>, ttl_s: i64) -> Result<Self, BuyerTokensError> {
        let shop = shop.map(shop_verifier).transpose()?;
        let own = own_secret.map(|secret| own_keys(secret, ttl_s)).transpose()?;
        Ok(Self { shop, own })
    }

    /// The buyer that a token names, and whether the token is an anonymous one of ours. None for a token that is
    /// malformed, forged, ended, or signed otherwise than it must be.
    pub fn verify(&self, token: &str) -> Option<(Buyer, bool)> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let anonymous = decode_header(token).ok()?.kid.as_deref() == Some(OWN_KID);
        let claims = if anonymous {
            decode::<Claims>(token, &self.own.as_ref()?.verify, &validation(Algorithm::HS256)).ok()?
        } else {
            let (key, validation) = self.shop.as_ref()?;
            decode::<Claims>(token, key, validation).ok()?
        };
        let sub = claims.claims.sub;
        if anonymous != sub.starts_with(ANONYMOUS_PREFIX) {
            return None;
        }
        Some((Buyer::parse(&sub).ok()?, anonymous))
    }

    /// Makes a new buyer and its token; none where anonymous buyers are switched off.
    ///
    /// # Errors
    /// [`BuyerTokensError`] if the token cannot be signed.
    pub fn issue(&self) -> Result<Option<IssuedToken>, BuyerTokensError> {
        let Some(own) = &self.own else { return Ok(None) };
        let sub = format!("{ANONYMOUS_PREFIX}{}", URL_SAFE_NO_PAD.encode(&random_secret()[..16]));
        let expires_s = system_ms() / 1000 + own.ttl_s;
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some(OWN_KID.to_owned());
        let token = encode(&header, &Claims { sub: sub.clone(), exp: expires_s }, &own.sign)?;
        Ok(Buyer::parse(&sub).ok().map(|buyer| IssuedToken { buyer, token, expires_s }))
    }
}

fn shop_verifier(key: &ShopKey) -> Result<(DecodingKey, Validation), BuyerTokensError> {
    match key {
        ShopKey::Hs256(secret) if secret.len() < SECRET_BYTES_MIN => Err(BuyerTokensError::ShortSecret),
        ShopKey::Hs256(secret) => Ok((DecodingKey::from_secret(secret.as_bytes())?, validation(Algorithm::HS256))),
        ShopKey::EdDsa(text) => {
            let x = URL_SAFE_NO_PAD.encode(ed25519_public_key(text)?);
            Ok((DecodingKey::from_ed_components(&x)?, validation(Algorithm::EdDSA)))
        }
    }
}

fn own_keys(secret: &[u8], ttl_s: i64) -> Result<Own, BuyerTokensError> {
    if secret.len() < SECRET_BYTES_MIN {
        return Err(BuyerTokensError::ShortSecret);
    }
    Ok(Own { sign: EncodingKey::from_secret(secret)?, verify: DecodingKey::from_secret(secret)?, ttl_s })
}

/// One algorithm, an end, and a subject. Audiences are the shop's own affair.
fn validation(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.leeway = LEEWAY_S;
    validation.validate_nbf = true;
    validation.validate_aud = false;
    validation.set_required_spec_claims(&["exp", "sub"]);
    validation
}

fn ed25519_public_key(text: &str) -> Result<[u8; 32], BuyerTokensError> {
    let text = text.trim();
    let bytes = if text.starts_with("-----BEGIN") {
        let base64: String = text.lines().map(str::trim).filter(|line| !line.starts_with("-----")).collect();
        let der = STANDARD.decode(base64).map_err(|_| BuyerTokensError::BadPublicKey)?;
        der.strip_prefix(&ED25519_SPKI_PREFIX).ok_or(BuyerTokensError::BadPublicKey)?.to_vec()
    } else {
        URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| BuyerTokensError::BadPublicKey)?
    };
    bytes.try_into().map_err(|_| BuyerTokensError::BadPublicKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn shop() -> BuyerTokens {
        BuyerTokens::new(Some(&ShopKey::Hs256(SECRET.into())), Some(&[9; 32]), 60).unwrap()
    }

    fn sign(header: &Header, claims: &serde_json::Value, secret: &[u8]) -> String {
        encode(header, claims, &EncodingKey::from_secret(secret).unwrap()).unwrap()
    }

    fn in_s(seconds: i64) -> i64 {
        system_ms() / 1000 + seconds
    }

    #[test]
    fn the_shops_token_names_its_buyer_until_it_ends() {
        let header = Header::new(Algorithm::HS256);
        let token = |claims| shop().verify(&sign(&header, &claims, SECRET.as_bytes()));
        let (buyer, anonymous) = token(serde_json::json!({"sub": "u1", "exp": in_s(60), "aud": "shop"})).unwrap();
        assert_eq!((buyer.as_str(), anonymous), ("u1", false));
        assert!(token(serde_json::json!({"sub": "u1", "exp": in_s(-31)})).is_none(), "it has ended");
        assert!(token(serde_json::json!({"sub": "u1", "exp": in_s(60), "nbf": in_s(50)})).is_none(), "not yet");
        assert!(token(serde_json::json!({"sub": "u1"})).is_none(), "it would never end");
        assert!(token(serde_json::json!({"exp": in_s(60)})).is_none(), "nobody's");
        assert!(token(serde_json::json!({"sub": "", "exp": in_s(60)})).is_none(), "nobody's");
        assert!(token(serde_json::json!({"sub": "anon_x", "exp": in_s(60)})).is_none(), "that is one of ours");
    }

    #[test]
    fn a_forged_token_names_nobody() {
        let claims = serde_json::json!({"sub": "u1", "exp": in_s(60)});
        let other_secret = sign(&Header::new(Algorithm::HS256), &claims, b"another secret of enough length!");
        let other_algorithm = sign(&Header::new(Algorithm::HS512), &claims, SECRET.as_bytes());
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let unsigned = format!("{}.{}.", part(serde_json::json!({"alg": "none"})), part(claims.clone()));
        let mut ours = Header::new(Algorithm::HS256);
        ours.kid = Some(OWN_KID.into());
        let wrong_kid = sign(&ours, &serde_json::json!({"sub": "anon_x", "exp": in_s(60)}), SECRET.as_bytes());
        for token in [other_secret, other_algorithm, unsigned, wrong_kid, String::new(), "a.b.c".into()] {
            assert!(shop().verify(&token).is_none(), "{token}");
        }
    }

    #[test]
    fn a_public_key_cannot_be_used_as_an_hs256_secret() {
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        let tokens = BuyerTokens::new(Some(&ShopKey::EdDsa(x.into())), None, 60).unwrap();
        let claims = serde_json::json!({"sub": "u1", "exp": in_s(60)});
        assert!(tokens.verify(&sign(&Header::new(Algorithm::HS256), &claims, x.as_bytes())).is_none());
    }

    #[test]
    fn an_ed25519_key_is_read_as_pem_and_as_base64url() {
        let raw = URL_SAFE_NO_PAD.decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
        let der = [&ED25519_SPKI_PREFIX[..], &raw].concat();
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
        assert_eq!(ed25519_public_key(&pem).unwrap().to_vec(), raw);
        assert!(ed25519_public_key("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----").is_err());
        assert!(ed25519_public_key("AAAA").is_err());
    }

    #[test]
    fn an_anonymous_buyer_is_new_each_time_and_can_be_switched_off() {
        let (one, two) = (shop().issue().unwrap().unwrap(), shop().issue().unwrap().unwrap());
        assert_ne!(one.buyer, two.buyer);
        assert_eq!(shop().verify(&one.token), Some((one.buyer, true)));
        let off = BuyerTokens::new(Some(&ShopKey::Hs256(SECRET.into())), None, 60).unwrap();
        assert!(off.issue().unwrap().is_none());
        assert!(off.verify(&two.token).is_none());
    }

    #[test]
    fn a_short_secret_is_refused_at_start() {
        assert!(BuyerTokens::new(Some(&ShopKey::Hs256("short".into())), None, 60).is_err());
        assert!(BuyerTokens::new(None, Some(b"short"), 60).is_err());
    }
}
