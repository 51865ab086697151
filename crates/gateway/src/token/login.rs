//! Login tokens: their claims, and the tokens that `token_key` signs by HS256.
//!
//! Invariant of this module: every claim is checked, and all but `nbf` and `class` are required;
//! of tokens that a public key checks, `jti` is not. This module must never repeat a token in an
//! error.

use std::{fmt, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result, SystemClock};
use distlock_kickout::{Class, Uid};
use distlock_listen::jwt::{
    Audience, Hs256, MIN_KEY_BYTES, SignedToken, Times, refused_error, unix_seconds,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{calls::PeerKey, public_key::is_no_secret};
use crate::config::{ExpectedClaims, GatewayConfig, OWN_CLAIMS, config_error};

const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The key that signs and checks login tokens. The debug form does not show the key.
#[derive(Clone)]
pub struct TokenKey {
    signing: Hs256,
    also: Option<Hs256>,
}

/// The claims of a login token.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Claims {
    /// The account.
    sub: String,
    iss: String,
    aud: Audience,
    #[serde(flatten)]
    times: Times,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    /// The class of the device, if the issuer of the token decides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<String>,
}

/// Mints a login token for an account, valid from now for `ttl`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a TTL of less than a second or more than 24 hours.
pub fn mint(key: &TokenKey, uid: &Uid, ttl: Duration) -> Result<String> {
    key.mint(uid, None, ttl)
}

/// The same as [`mint`], for a device of this class. The class that the client names is then
/// ignored.
///
/// # Errors
/// The same as for [`mint`].
pub fn mint_for_class(key: &TokenKey, uid: &Uid, class: &Class, ttl: Duration) -> Result<String> {
    key.mint(uid, Some(class), ttl)
}

impl TokenKey {
    /// Wraps a key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the key is shorter than 32 bytes, and for a public key,
    /// which is no secret.
    pub fn new(key: &[u8]) -> Result<Self> {
        check_secret("token_key", key)?;
        Ok(Self {
            signing: Hs256::new(key)?,
            also: None,
        })
    }

    /// Also accepts tokens of a second key, for the time in which one key replaces the other. The
    /// second key never signs.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn also(mut self, key: &[u8]) -> Result<Self> {
        check_secret("token_key_also", key)?;
        self.also = Some(Hs256::new(key)?);
        Ok(self)
    }

    /// Checks a login token and returns its account.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`]; the message says which check failed and never repeats the
    /// token.
    pub fn verify(&self, token: &str) -> Result<Uid> {
        self.verify_login(token).map(|(uid, _)| uid)
    }

    /// The same as [`verify`](Self::verify), with the class of the device if the token names a
    /// class.
    ///
    /// # Errors
    /// The same as for [`verify`](Self::verify).
    pub fn verify_login(&self, token: &str) -> Result<(Uid, Option<Class>)> {
        let keys = [&self.signing].into_iter().chain(&self.also);
        let claims: Claims = SignedToken::parse(token)
            .and_then(|token| token.claims_by_hs256(keys))
            .map_err(refused_error)?;
        claims.check(&OWN_CLAIMS)
    }

    /// The keys for calls between nodes.
    pub(crate) fn peers(&self) -> Result<PeerKey> {
        PeerKey::derive(&self.signing, self.also.as_ref())
    }

    fn mint(&self, uid: &Uid, class: Option<&Class>, ttl: Duration) -> Result<String> {
        if ttl < Duration::from_secs(1) || ttl > MAX_LIFETIME {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("token ttl is {ttl:?}: 1s to {MAX_LIFETIME:?} are allowed"),
            ));
        }
        let now = unix_seconds(SystemClock.wall());
        self.signing.sign(&Claims {
            sub: uid.to_string(),
            iss: OWN_CLAIMS.issuer.into(),
            aud: Audience::One(OWN_CLAIMS.audience.into()),
            times: Times::from_now(now, ttl),
            jti: Some(Uuid::new_v4().to_string()),
            class: class.map(Class::to_string),
        })
    }

    #[cfg(feature = "fuzzing")]
    pub(crate) fn signed(&self, claims: &[u8]) -> String {
        self.signing.sign_bytes(claims)
    }
}

impl Claims {
    /// Checks claims whose signature is good, and returns the account and the class of the device.
    ///
    /// # Errors
    /// The same as for [`TokenKey::verify`].
    pub(super) fn check(self, expected: &ExpectedClaims) -> Result<(Uid, Option<Class>)> {
        let id = self.jti.as_deref();
        if id == Some("") || expected.id && id.is_none() {
            return Err(refused_error("it is malformed or lacks a claim"));
        }
        if self.iss != expected.issuer || !self.aud.names(&expected.audience) {
            return Err(refused_error("it was issued for something else"));
        }
        let now = unix_seconds(SystemClock.wall());
        self.times.check(now).map_err(refused_error)?;
        if self.times.lifetime() > MAX_LIFETIME {
            return Err(refused_error("it is valid for more than 24 hours"));
        }
        let uid = Uid::new(self.sub)
            .map_err(|_| refused_error("its subject is not a valid account name"))?;
        let class = self.class.map(Class::new).transpose();
        Ok((
            uid,
            class.map_err(|_| refused_error("its class is not a valid one"))?,
        ))
    }

    /// When the token was issued, in seconds since 1970.
    pub(super) const fn issued(&self) -> u64 {
        self.times.iat
    }
}

impl GatewayConfig {
    /// The key that signs, together with the second key if there is one.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) when there is no signing key,
    /// when a key is shorter than 32 bytes, and when both keys are the same.
    pub fn key(&self) -> Result<TokenKey> {
        let secret = self.token_key.as_ref().ok_or_else(|| {
            config_error(
                "token_key",
                "is not set: give the same one to all nodes, in the configuration file or in \
                 DISTLOCK_GATEWAY_TOKEN_KEY (`head -c 32 /dev/urandom | base64` makes one)",
            )
        })?;
        let key = TokenKey::new(secret.expose().as_bytes())?;
        let Some(also) = &self.token_key_also else {
            return Ok(key);
        };
        // Two equal keys are a mistake: the operator believes that the node accepts two different
        // keys.
        if also.matches(secret.expose()) {
            return Err(config_error(
                "token_key_also",
                "is the same as token_key: give the other key, or none",
            ));
        }
        key.also(also.expose().as_bytes())
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(***)")
    }
}

fn check_secret(name: &str, key: &[u8]) -> Result<()> {
    if key.len() < MIN_KEY_BYTES {
        let problem = format!(
            "is {} bytes long: at least {MIN_KEY_BYTES} are needed (`head -c 32 /dev/urandom | \
             base64` makes a key)",
            key.len()
        );
        return Err(config_error(name, &problem));
    }
    // Everybody knows a public key, and could sign with it as a secret.
    if is_no_secret(key) {
        let problem = "is a key of a key pair: give a random text here, and the public key in \
                       login_key_file";
        return Err(config_error(name, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ISSUER: &str = "distlock";
    const CLIENT_AUDIENCE: &str = "distlock-gateway";

    fn key() -> TokenKey {
        TokenKey::new(&[7; 32]).unwrap()
    }

    fn now() -> u64 {
        unix_seconds(SystemClock.wall())
    }

    fn claims() -> Value {
        json!({
            "sub": "anna", "iss": ISSUER, "aud": CLIENT_AUDIENCE, "iat": now(), "exp": now() + 60,
            "nbf": now(), "jti": "1",
        })
    }

    fn refusal(claims: &Value) -> String {
        let token = key().signing.sign(claims).unwrap();
        key().verify(&token).unwrap_err().to_string()
    }

    #[test]
    fn a_minted_token_is_accepted_only_by_its_key() {
        let anna = Uid::new("anna").unwrap();
        let token = mint(&key(), &anna, Duration::from_secs(60)).unwrap();
        assert_eq!(key().verify(&token).unwrap(), anna);
        assert!(TokenKey::new(&[8; 32]).unwrap().verify(&token).is_err());
    }

    #[test]
    fn during_a_key_change_either_key_is_accepted_and_the_first_signs() {
        let (old, new, third) = ([7; 32], [8; 32], [9; 32]);
        let alone = |key: &[u8]| TokenKey::new(key).unwrap();
        let before = alone(&old).also(&new).unwrap();
        let after = alone(&new).also(&old).unwrap();
        let anna = Uid::new("anna").unwrap();
        let client = |key: &TokenKey| mint(key, &anna, Duration::from_secs(60)).unwrap();
        // Each row has a signing key, two keys that accept its tokens, and one key that refuses
        // them.
        for (signs, accept, refuse) in [
            (&alone(&old), [&before, &after], alone(&new)),
            (&before, [&alone(&old), &after], alone(&new)),
            (&alone(&new), [&before, &after], alone(&old)),
            (&after, [&before, &alone(&new)], alone(&old)),
        ] {
            for key in accept {
                assert_eq!(key.verify(&client(signs)).unwrap(), anna);
            }
            assert!(refuse.verify(&client(signs)).is_err());
        }
        let stranger = alone(&third);
        for key in [&before, &after] {
            let refusal = key.verify(&client(&stranger)).unwrap_err();
            assert!(refusal.message().contains("signature"), "{refusal}");
            // The claims are checked with either key.
            for signs in [&alone(&old), &alone(&new)] {
                let mut late = claims();
                late["exp"] = json!(now() - 6);
                let refusal = key.verify(&signs.signing.sign(&late).unwrap()).unwrap_err();
                assert!(refusal.message().contains("expired"), "{refusal}");
            }
        }
    }

    #[test]
    fn every_claim_is_needed_and_checked() {
        assert!(
            key()
                .verify(&key().signing.sign(&claims()).unwrap())
                .is_ok()
        );
        for claim in ["sub", "iss", "aud", "iat", "exp", "jti"] {
            let mut claims = claims();
            claims.as_object_mut().unwrap().remove(claim);
            assert!(refusal(&claims).contains("lacks a claim"), "{claim}");
        }
        for (claim, value, says) in [
            ("exp", json!(now() - 6), "expired"),
            ("nbf", json!(now() + 20), "not valid yet"),
            ("iat", json!(now() + 20), "issued in the future"),
            ("exp", json!(now() + 25 * 3600), "more than 24 hours"),
            ("iss", json!("somebody"), "something else"),
            ("aud", json!("distlock-peer"), "something else"),
            ("aud", json!(["other", "distlock"]), "something else"),
            ("aud", json!([]), "something else"),
            ("aud", json!([CLIENT_AUDIENCE, 1]), "lacks a claim"),
            ("sub", json!(""), "not a valid account name"),
            ("sub", json!("a\u{1b}"), "not a valid account name"),
            ("jti", json!(""), "lacks a claim"),
        ] {
            let mut claims = claims();
            claims[claim] = value;
            assert!(
                refusal(&claims).contains(says),
                "{claim}: {}",
                refusal(&claims)
            );
        }
        // The clocks of issuer and node may differ a little.
        let mut late = claims();
        late["exp"] = json!(now() - 2);
        assert!(key().verify(&key().signing.sign(&late).unwrap()).is_ok());
    }

    /// RFC 7519 allows an array of names, also with a single name in it.
    #[test]
    fn the_audience_may_be_one_of_several_names() {
        for audience in [json!([CLIENT_AUDIENCE]), json!(["other", CLIENT_AUDIENCE])] {
            let mut claims = claims();
            claims["aud"] = audience;
            let token = key().signing.sign(&claims).unwrap();
            assert_eq!(key().verify(&token).unwrap().as_str(), "anna", "{claims}");
        }
    }

    #[test]
    fn keys_ttls_and_tokens_beyond_their_limits_are_refused() {
        let error = TokenKey::new(&[7; 31]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let error = key().also(&[7; 31]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.message().contains("token_key_also is 31"), "{error}");
        let anna = Uid::new("anna").unwrap();
        for ttl in [Duration::ZERO, Duration::from_secs(24 * 3600 + 1)] {
            let error = mint(&key(), &anna, ttl).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let long = "x".repeat(4097);
        assert!(
            key()
                .verify(&long)
                .unwrap_err()
                .to_string()
                .contains("4096")
        );
        for key in [key(), key().also(&[8; 32]).unwrap()] {
            assert_eq!(format!("{key:?}"), "TokenKey(***)");
        }
    }
}
