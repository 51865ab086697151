//! Login tokens: JSON Web Tokens signed with HS256, exactly that algorithm, and every claim required.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use distlock_core::{Clock, Error, ErrorKind, Result, SystemClock};
use distlock_kickout::{Class, Uid};
use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, EncodingKey, Header, Validation,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{ErrorKind as JwtErrorKind, Result as JwtResult},
    signature::{self, Signer, Verifier},
};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use uuid::Uuid;

use crate::config::invalid;

const ISSUER: &str = "distlock";
const CLIENTS: &str = "distlock-gateway";
const PEERS: &str = "distlock-peer";
/// How far the clocks of nodes may be apart. Not any further, so that what somebody reads off the wire is not good for ever.
const NODES_APART: Duration = Duration::from_secs(7 * 24 * 3600);
const MAX_TOKEN_BYTES: usize = 4096;
const MIN_KEY_BYTES: usize = 32;
const LEEWAY_SECONDS: u64 = 5;
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The key that signs and checks login tokens. Never shown.
#[derive(Clone)]
pub struct TokenKey {
    signs: EncodingKey,
    checks: DecodingKey,
    also: Option<DecodingKey>,
}

/// What a login token says.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Claims {
    /// The account.
    pub sub: String,
    /// Who issued it.
    pub iss: String,
    /// For whom.
    pub aud: String,
    /// Issued at, seconds since 1970.
    pub iat: u64,
    /// Expires at, seconds since 1970.
    pub exp: u64,
    /// Not valid before, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<u64>,
    /// A unique id.
    pub jti: String,
    /// The class of the device, where whoever signs the token decides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// Mints a login token for an account, valid from now for `ttl`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a TTL of less than a second or more than 24 hours.
pub fn mint(key: &TokenKey, uid: &Uid, ttl: Duration) -> Result<String> {
    key.mint_for(CLIENTS, uid.as_str(), None, ttl, SystemClock.wall())
}

/// As [`mint`], for a device of this class, whatever its client says.
///
/// # Errors
/// As [`mint`].
pub fn mint_for_class(key: &TokenKey, uid: &Uid, class: &Class, ttl: Duration) -> Result<String> {
    key.mint_for(CLIENTS, uid.as_str(), Some(class), ttl, SystemClock.wall())
}

impl TokenKey {
    /// Wraps a key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when it is shorter than 32 bytes.
    pub fn new(key: &[u8]) -> Result<Self> {
        long_enough("token_key", key)?;
        // Set once per process. If the program has installed a provider of its own, that one serves HS256 as well.
        let _ = HS256_ONLY.install_default();
        Ok(Self {
            signs: EncodingKey::from_secret(key),
            checks: DecodingKey::from_secret(key),
            also: None,
        })
    }

    /// Accepts what is signed with another key as well, while one key takes the place of the other. It never signs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when it is shorter than 32 bytes.
    pub fn also(mut self, key: &[u8]) -> Result<Self> {
        long_enough("token_key_also", key)?;
        self.also = Some(DecodingKey::from_secret(key));
        Ok(self)
    }

    /// Checks a login token and says whose it is.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`]; the message says which check failed and never repeats the token.
    pub fn verify(&self, token: &str) -> Result<Uid> {
        self.verify_login(token).map(|(uid, _)| uid)
    }

    /// As [`verify`](Self::verify), with the class of the device where the token names it.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn verify_login(&self, token: &str) -> Result<(Uid, Option<Class>)> {
        let claims = self.claims(token, CLIENTS)?;
        if claims.iat > seconds(SystemClock.wall()) + LEEWAY_SECONDS {
            return Err(refused("it was issued in the future"));
        }
        if claims.exp.saturating_sub(claims.iat) > MAX_LIFETIME.as_secs() {
            return Err(refused("it is valid for more than 24 hours"));
        }
        let uid =
            Uid::new(claims.sub).map_err(|_| refused("its subject is not a valid account name"))?;
        let class = claims.class.map(Class::new).transpose();
        Ok((
            uid,
            class.map_err(|_| refused("its class is not a valid one"))?,
        ))
    }

    pub(crate) fn mint_for_peers(&self, node: &str, now: SystemTime) -> Result<String> {
        self.mint_for(PEERS, node, None, Duration::from_secs(60), now)
    }

    /// Checks that a call is of a node with a key that is accepted here. The clocks of nodes may be days apart: what a call names is
    /// exact, so one that comes late or again does no harm.
    pub(crate) fn verify_peer(&self, token: &str) -> Result<()> {
        let claims = self.claims(token, PEERS)?;
        if claims.iat.abs_diff(seconds(SystemClock.wall())) > NODES_APART.as_secs() {
            return Err(refused("it was issued more than 7 days from now"));
        }
        Ok(())
    }

    fn mint_for(
        &self,
        audience: &str,
        subject: &str,
        class: Option<&Class>,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<String> {
        if ttl < Duration::from_secs(1) || ttl > MAX_LIFETIME {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("token ttl is {ttl:?}: 1s to {MAX_LIFETIME:?} are allowed"),
            ));
        }
        let now = seconds(now);
        self.sign(&Claims {
            sub: subject.into(),
            iss: ISSUER.into(),
            aud: audience.into(),
            iat: now,
            exp: now + ttl.as_secs(),
            nbf: Some(now),
            jti: Uuid::new_v4().to_string(),
            class: class.map(Class::to_string),
        })
    }

    fn sign(&self, claims: &impl Serialize) -> Result<String> {
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &self.signs).map_err(|error| {
            Error::new(ErrorKind::Internal, "token could not be signed").caused_by(error)
        })
    }

    fn claims(&self, token: &str, audience: &str) -> Result<Claims> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(refused("it is longer than 4096 bytes"));
        }
        let mut rules = Validation::new(Algorithm::HS256);
        rules.leeway = LEEWAY_SECONDS;
        rules.validate_exp = audience == CLIENTS;
        rules.validate_nbf = audience == CLIENTS;
        rules.set_audience(&[audience]);
        rules.set_issuer(&[ISSUER]);
        // `iat` and `jti` are required by the type of the claims.
        rules.set_required_spec_claims(&["exp", "sub", "aud", "iss"]);
        let decoded = |key| jsonwebtoken::decode::<Claims>(token, key, &rules);
        // Always in this order. A `kid` in the token's header is not looked at: it is the sender's word, and there are two keys
        // at most. The signature is checked before the claims, so what is wrong with those is the same with either key.
        let claims = match (decoded(&self.checks), &self.also) {
            (Err(error), Some(also)) if *error.kind() == JwtErrorKind::InvalidSignature => {
                decoded(also)
            }
            (decided, _) => decided,
        };
        let claims = claims
            .map_err(|error| {
                refused(match error.kind() {
                    JwtErrorKind::ExpiredSignature => "it has expired",
                    JwtErrorKind::ImmatureSignature => "it is not valid yet",
                    JwtErrorKind::InvalidSignature => "its signature is wrong",
                    JwtErrorKind::InvalidAlgorithm => "it is not signed with HS256",
                    JwtErrorKind::InvalidAudience | JwtErrorKind::InvalidIssuer => {
                        "it was issued for something else"
                    }
                    _ => "it is malformed or lacks a claim",
                })
            })?
            .claims;
        if claims.jti.is_empty() {
            return Err(refused("it is malformed or lacks a claim"));
        }
        Ok(claims)
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(***)")
    }
}

/// A text that only who knows the secret can make, and that does not tell it; another one for every purpose.
pub(crate) fn derived(secret: &str, purpose: &str) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?;
    mac.update(purpose.as_bytes());
    let bytes = mac.finalize().into_bytes();
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares two secrets in a time that does not tell where they differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    let digest = |secret: &[u8]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"compare").ok()?;
        mac.update(secret);
        Some(mac)
    };
    match (digest(a), digest(b)) {
        (Some(a), Some(b)) => a.verify_slice(&b.finalize().into_bytes()).is_ok(),
        _ => false,
    }
}

fn long_enough(name: &str, key: &[u8]) -> Result<()> {
    if key.len() >= MIN_KEY_BYTES {
        return Ok(());
    }
    let problem = format!(
        "is {} bytes long: at least {MIN_KEY_BYTES} are needed",
        key.len()
    );
    Err(invalid(name, &problem))
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("token refused: {why}"))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The crate's own provider bundles every algorithm it knows (and an RSA implementation with a known timing leak); one is
/// enough here.
static HS256_ONLY: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| match (algorithm, key.family()) {
        (Algorithm::HS256, AlgorithmFamily::Hmac) => Hs256::new(key.as_bytes()).map(|it| it as _),
        _ => Err(JwtErrorKind::InvalidAlgorithm.into()),
    },
    verifier_factory: |algorithm, key| match (algorithm, key.family()) {
        (Algorithm::HS256, AlgorithmFamily::Hmac) => {
            Hs256::new(key.try_get_as_bytes()?).map(|it| it as _)
        }
        _ => Err(JwtErrorKind::InvalidAlgorithm.into()),
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct Hs256(Hmac<Sha256>);

impl Hs256 {
    fn new(key: &[u8]) -> JwtResult<Box<Self>> {
        let keyed = Hmac::new_from_slice(key).map_err(|_| JwtErrorKind::InvalidKeyFormat)?;
        Ok(Box::new(Self(keyed)))
    }
}

impl Signer<Vec<u8>> for Hs256 {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        let mut mac = self.0.clone();
        mac.update(message);
        Ok(mac.finalize().into_bytes().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let mut mac = self.0.clone();
        mac.update(message);
        // Compares in constant time.
        mac.verify_slice(signature)
            .map_err(signature::Error::from_source)
    }
}

impl JwtSigner for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn key() -> TokenKey {
        TokenKey::new(&[7; 32]).unwrap()
    }

    fn now() -> u64 {
        seconds(SystemClock.wall())
    }

    fn claims() -> Value {
        json!({
            "sub": "anna", "iss": ISSUER, "aud": CLIENTS, "iat": now(), "exp": now() + 60, "nbf": now(), "jti": "1",
        })
    }

    fn refusal(claims: &Value) -> String {
        let token = key().sign(claims).unwrap();
        key().verify(&token).unwrap_err().to_string()
    }

    #[test]
    fn a_minted_token_is_good_for_its_account_and_nothing_else() {
        let anna = Uid::new("anna").unwrap();
        let token = mint(&key(), &anna, Duration::from_secs(60)).unwrap();
        assert_eq!(key().verify(&token).unwrap(), anna);
        assert!(key().verify_peer(&token).is_err());
        let peer = key().mint_for_peers("n1", SystemClock.wall()).unwrap();
        assert!(key().verify_peer(&peer).is_ok());
        assert!(key().verify(&peer).is_err());
        assert!(TokenKey::new(&[8; 32]).unwrap().verify(&token).is_err());
    }

    #[test]
    fn while_the_key_changes_either_is_accepted_and_the_first_signs() {
        let (old, new, third) = ([7; 32], [8; 32], [9; 32]);
        let alone = |key: &[u8]| TokenKey::new(key).unwrap();
        let before = alone(&old).also(&new).unwrap();
        let after = alone(&new).also(&old).unwrap();
        let anna = Uid::new("anna").unwrap();
        let client = |key: &TokenKey| mint(key, &anna, Duration::from_secs(60)).unwrap();
        let peer = |key: &TokenKey| key.mint_for_peers("n1", SystemClock.wall()).unwrap();
        // Each with whom accepts its tokens, and who does not.
        for (signs, accept, refuse) in [
            (&alone(&old), [&before, &after], alone(&new)),
            (&before, [&alone(&old), &after], alone(&new)),
            (&alone(&new), [&before, &after], alone(&old)),
            (&after, [&before, &alone(&new)], alone(&old)),
        ] {
            for key in accept {
                assert_eq!(key.verify(&client(signs)).unwrap(), anna);
                key.verify_peer(&peer(signs)).unwrap();
                assert!(key.verify(&peer(signs)).is_err());
                assert!(key.verify_peer(&client(signs)).is_err());
            }
            assert!(refuse.verify(&client(signs)).is_err());
            assert!(refuse.verify_peer(&peer(signs)).is_err());
        }
        let stranger = alone(&third);
        for key in [&before, &after] {
            for refusal in [
                key.verify(&client(&stranger)).unwrap_err(),
                key.verify_peer(&peer(&stranger)).unwrap_err(),
            ] {
                assert!(refusal.message().contains("signature"), "{refusal}");
            }
            // Claims count with either key, and what is wrong is told.
            for signs in [&alone(&old), &alone(&new)] {
                let mut late = claims();
                late["exp"] = json!(now() - 6);
                let refusal = key.verify(&signs.sign(&late).unwrap()).unwrap_err();
                assert!(refusal.message().contains("expired"), "{refusal}");
            }
        }
    }

    #[test]
    fn the_header_does_not_choose_the_key() {
        let both = key().also(&[8; 32]).unwrap();
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("/dev/null".into());
        for (secret, good) in [([7; 32], true), ([8; 32], true), ([0; 32], false)] {
            let secret = EncodingKey::from_secret(&secret);
            let token = jsonwebtoken::encode(&header, &claims(), &secret).unwrap();
            assert_eq!(both.verify(&token).is_ok(), good);
        }
    }

    #[test]
    fn every_claim_is_needed_and_checked() {
        assert!(key().verify(&key().sign(&claims()).unwrap()).is_ok());
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
            ("aud", json!(PEERS), "something else"),
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
        // Clocks may differ a little.
        let mut late = claims();
        late["exp"] = json!(now() - 2);
        assert!(key().verify(&key().sign(&late).unwrap()).is_ok());
    }

    #[test]
    fn limits() {
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
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
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

    #[test]
    fn secrets_are_compared_whole() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abc", b"abd") && !same(b"abc", b"ab") && !same(b"", b"a"));
    }
}
