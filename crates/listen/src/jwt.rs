//! JSON Web Tokens in compact form (RFC 7519): their form, their times, and signatures by HS256.
//!
//! This module must never let a token's header choose the algorithm: that is a property of the key.
//! The module uses well-kept libraries for the HMAC and the encoding, but no library for all of
//! JWT. Those libraries choose their cryptography once per process, and a program that embeds a
//! server may have made another choice.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use distlock_core::{Error, ErrorKind, Result};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize, de::DeserializeOwned, de::IgnoredAny};
use sha2::Sha256;

/// The algorithm of a common secret, in the header of a token.
pub const HS256: &str = "HS256";
/// `{"alg":"HS256","typ":"JWT"}`
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";
const MAX_TOKEN_BYTES: usize = 4096;
/// The difference between the clocks of issuer and reader that is allowed, in seconds.
const LEEWAY: u64 = 5;

/// A key that is shorter can be guessed.
pub const MIN_KEY_BYTES: usize = 32;

/// A key that signs and checks.
#[derive(Clone)]
pub struct Hs256(Hmac<Sha256>);

/// The reason why a token is refused.
pub type TokenProblem = &'static str;

const MALFORMED: TokenProblem = "it is malformed or lacks a claim";
const WRONG_SIGNATURE: TokenProblem = "its signature is wrong: it was issued with another key";

/// A token in its parts. Only its form is known to be right.
#[derive(Debug)]
pub struct SignedToken<'a> {
    header: Header,
    /// What the signature is of: the header and the claims, as they were sent.
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

/// The members of a header that are read. All other members are claims of the sender and decide
/// nothing.
#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    /// The name of the key, where there are several.
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that a reader must understand or refuse (RFC 7515, 4.1.11). This reader
    /// understands none.
    #[serde(default)]
    crit: Option<IgnoredAny>,
}

impl fmt::Debug for Hs256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Hs256 {
    /// Wraps a key.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the key cannot be used; keys of every length can.
    pub fn new(secret: &[u8]) -> Result<Self> {
        Hmac::new_from_slice(secret)
            .map(Self)
            .map_err(|error| Error::new(ErrorKind::Internal, "key cannot be used").caused_by(error))
    }

    /// Derives another key, a different key for each purpose. Only the holder of this key can
    /// derive the same key.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn derive(&self, purpose: &str) -> Result<Self> {
        Self::new(&self.mac_of(purpose.as_bytes()).finalize().into_bytes())
    }

    /// Signs these claims.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the claims cannot be written as JSON.
    pub fn sign(&self, claims: &impl Serialize) -> Result<String> {
        let claims = serde_json::to_vec(claims).map_err(|error| {
            Error::new(ErrorKind::Internal, "token could not be signed").caused_by(error)
        })?;
        Ok(self.sign_bytes(&claims))
    }

    /// The same as [`sign`](Self::sign), for claims that are serialised already.
    #[must_use]
    pub fn sign_bytes(&self, claims: &[u8]) -> String {
        let signed = format!("{HEADER}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = self.mac_of(signed.as_bytes()).finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn mac_of(&self, bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(bytes);
        mac
    }
}

impl<'a> SignedToken<'a> {
    /// Takes a token apart.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub fn parse(token: &'a str) -> Result<Self, TokenProblem> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err("it is longer than 4096 bytes");
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, claims) = signed.split_once('.').ok_or(MALFORMED)?;
        let header: Header = decode_json(header)?;
        if header.crit.is_some() {
            return Err("its header asks for an extension that is not understood (crit)");
        }
        Ok(Self {
            header,
            signed,
            claims,
            signature: decode(signature)?,
        })
    }

    /// The algorithm that the header claims. It may only exclude keys of other algorithms, and must
    /// never decide how a key is used.
    #[must_use]
    pub fn alg(&self) -> &str {
        &self.header.alg
    }

    /// The name of the key that the header claims.
    #[must_use]
    pub fn kid(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// The claims, if `is_signature` accepts the signed bytes and their signature.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub fn claims_if<T: DeserializeOwned>(
        &self,
        is_signature: impl FnOnce(&[u8], &[u8]) -> bool,
    ) -> Result<T, TokenProblem> {
        if !is_signature(self.signed.as_bytes(), &self.signature) {
            return Err(WRONG_SIGNATURE);
        }
        decode_json(self.claims)
    }

    /// The claims, if one of these keys has signed them by HS256.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub fn claims_by_hs256<'k, T: DeserializeOwned>(
        &self,
        keys: impl IntoIterator<Item = &'k Hs256>,
    ) -> Result<T, TokenProblem> {
        if self.alg() != HS256 {
            return Err("it is not signed with HS256");
        }
        // The comparison takes the same time wherever the first difference is.
        self.claims_if(|signed, signature| {
            let is_of = |key: &Hs256| key.mac_of(signed).verify_slice(signature).is_ok();
            keys.into_iter().any(is_of)
        })
    }

    /// The claims without any check. They may only serve to refuse the token.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub fn unproven_claims<T: DeserializeOwned>(&self) -> Result<T, TokenProblem> {
        decode_json(self.claims)
    }
}

fn decode(part: &str) -> Result<Vec<u8>, TokenProblem> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| MALFORMED)
}

fn decode_json<T: DeserializeOwned>(part: &str) -> Result<T, TokenProblem> {
    serde_json::from_slice(&decode(part)?).map_err(|_| MALFORMED)
}

/// The claims of a token that one of these keys has signed. Only the signature is checked.
///
/// # Errors
/// The reason why the token is refused.
pub fn read_claims<'a, T: DeserializeOwned>(
    token: &str,
    keys: impl IntoIterator<Item = &'a Hs256>,
) -> Result<T, TokenProblem> {
    SignedToken::parse(token)?.claims_by_hs256(keys)
}

/// Claims of a token that nobody has checked, so they may only appear in the text of a refusal.
#[derive(Debug, Deserialize)]
pub struct UnprovenClaims {
    /// The issuer that the token names.
    pub iss: Option<String>,
}

/// The claims of a token, without any check.
#[must_use]
pub fn unproven_claims(token: &str) -> Option<UnprovenClaims> {
    let claims = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice(&claims).ok()
}

/// The error of a refused token.
#[must_use]
pub fn refused_error(why: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("token refused: {why}"))
}

/// The audience: one name, or several in an array (RFC 7519, 4.1.3). Some libraries write an array
/// for a single name too.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Audience {
    /// One name.
    One(String),
    /// Several names.
    Several(Vec<String>),
}

impl Audience {
    /// Whether the token is for this audience.
    #[must_use]
    pub fn names(&self, audience: &str) -> bool {
        match self {
            Self::One(name) => name == audience,
            Self::Several(names) => names.iter().any(|name| name == audience),
        }
    }
}

/// The claims about time, in seconds since 1970.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Times {
    /// When the token was issued.
    pub iat: u64,
    /// When the token expires.
    pub exp: u64,
    /// When the token begins to be valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<u64>,
}

impl Times {
    /// The times of a token that is valid from `now` for `ttl`.
    #[must_use]
    pub const fn from_now(now: u64, ttl: Duration) -> Self {
        Self {
            iat: now,
            exp: now.saturating_add(ttl.as_secs()),
            nbf: Some(now),
        }
    }

    /// Whether a token with these times is valid at this time, with a leeway for the clocks of
    /// issuer and reader.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub fn check(&self, now: u64) -> Result<(), TokenProblem> {
        if self.exp.saturating_add(LEEWAY) < now {
            return Err("it has expired");
        }
        if self.nbf.is_some_and(|from| from > now + LEEWAY) {
            return Err("it is not valid yet");
        }
        if self.iat > now + LEEWAY {
            return Err("it was issued in the future");
        }
        Ok(())
    }

    /// The time from issue to expiry.
    #[must_use]
    pub const fn lifetime(&self) -> Duration {
        Duration::from_secs(self.exp.saturating_sub(self.iat))
    }

    /// The time from `now` until the token is refused for its age.
    #[must_use]
    pub const fn left(&self, now: u64) -> Duration {
        Duration::from_secs(self.exp.saturating_add(LEEWAY).saturating_sub(now))
    }
}

/// Seconds since 1970.
#[must_use]
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Validation, decode, encode};
    use serde_json::{Value, json};

    use super::*;

    fn signed(header: &Value, claims: &[u8], key: &Hs256) -> String {
        let header = URL_SAFE_NO_PAD.encode(header.to_string());
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = key.mac_of(signed.as_bytes()).finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn a_header_cannot_choose_the_key() {
        let keys = [7, 8].map(|byte| Hs256::new(&[byte; 32]).unwrap());
        let header = json!({"alg": "HS256", "kid": "/dev/null", "jwk": {"k": "AA"}});
        for (secret, good) in [(7, true), (8, true), (0, false)] {
            let token = signed(&header, b"{}", &Hs256::new(&[secret; 32]).unwrap());
            assert_eq!(read_claims::<Value>(&token, &keys).is_ok(), good);
        }
    }

    #[test]
    fn a_header_with_demands_is_refused() {
        let key = Hs256::new(&[7; 32]).unwrap();
        for (header, says) in [
            (json!({"alg": "HS256", "crit": ["exp"], "exp": 1}), "crit"),
            (json!({"alg": "HS256", "crit": []}), "crit"),
            (json!({"alg": "none"}), "HS256"),
            (json!({"alg": "HS512"}), "HS256"),
            (json!({"typ": "JWT"}), "malformed"),
        ] {
            let why = read_claims::<Value>(&signed(&header, b"{}", &key), [&key]).unwrap_err();
            assert!(why.contains(says), "{header}: {why}");
        }
    }

    /// The well-known library and this module read each other's tokens, and refuse the same tokens.
    #[test]
    fn tokens_agree_with_a_well_known_library() {
        let (secret, claims) = ([7; 32], json!({"sub": "anna", "exp": u32::MAX}));
        let key = Hs256::new(&secret).unwrap();
        let theirs = encode(
            &jsonwebtoken::Header::new(Algorithm::HS256),
            &claims,
            &EncodingKey::from_secret(&secret),
        );
        let ours = key.sign(&claims).unwrap();
        let reads = |token: &str| {
            let mut rules = Validation::new(Algorithm::HS256);
            rules.validate_exp = false;
            let theirs = decode::<Value>(token, &DecodingKey::from_secret(&secret), &rules);
            (
                theirs.ok().map(|it| it.claims),
                read_claims(token, [&key]).ok(),
            )
        };
        for token in [theirs.unwrap(), ours] {
            assert_eq!(reads(&token), (Some(claims.clone()), Some(claims.clone())));
            for at in 0..token.len() {
                for change in [".", "A", "_", "=", ""] {
                    let mut broken = token.clone();
                    broken.replace_range(at..=at, change);
                    let (theirs, ours) = reads(&broken);
                    assert_eq!(theirs, ours, "{broken}");
                }
            }
        }
    }
}
