//! Tokens of calls between nodes: each token is valid for one call, once.
//!
//! The keys are derived from `token_key`. So a login token is never valid for a call, and the token
//! of a call is never valid for a login. A token names caller, callee, method and body, and is
//! valid for 30 s. The callee refuses a second use of the token's id.

use std::time::{Duration, SystemTime};

use distlock_core::Result;
use distlock_kickout::NodeId;
use distlock_listen::jwt::{self, Hs256, refused_error, unix_seconds};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::config::constant_time_eq;

const PURPOSE: &str = "distlock calls between nodes, version 1";
/// Lifetime of a token, and the greatest allowed difference between the clocks of two nodes.
const LIFETIME: Duration = Duration::from_secs(30);

/// The keys for calls between nodes. The debug form does not show them.
#[derive(Clone, Debug)]
pub(crate) struct PeerKey {
    signing: Hs256,
    also: Option<Hs256>,
}

/// A call: the caller, the callee and the method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
    /// The path of the method.
    pub(crate) method: &'a str,
}

#[derive(Debug, Deserialize, Serialize)]
struct CallClaims {
    /// The calling node.
    iss: String,
    /// The node that is called.
    aud: String,
    /// The method.
    sub: String,
    /// SHA-256 of the request's body, in hexadecimal digits.
    body: String,
    iat: u64,
    exp: u64,
    jti: Uuid,
}

/// A call with a valid token.
#[derive(Debug)]
pub(crate) struct CheckedCall {
    /// The calling node.
    pub(crate) from: String,
    pub(crate) hash: BodyHash,
    /// The id of the token.
    pub(crate) id: Uuid,
    /// The second since 1970 after which the token is refused for its age.
    pub(crate) until: u64,
}

/// The hash of the body for which a token is valid.
#[derive(Debug)]
pub(crate) struct BodyHash(String);

impl BodyHash {
    pub(crate) fn matches(&self, body: &[u8]) -> bool {
        constant_time_eq(self.0.as_bytes(), sha256(body).as_bytes())
    }
}

impl PeerKey {
    pub(super) fn derive(signing: &Hs256, also: Option<&Hs256>) -> Result<Self> {
        Ok(Self {
            signing: signing.derive(PURPOSE)?,
            also: also.map(|key| key.derive(PURPOSE)).transpose()?,
        })
    }

    pub(crate) fn sign(&self, call: Call<'_>, body: &[u8], now: SystemTime) -> Result<String> {
        let now = unix_seconds(now);
        self.signing.sign(&CallClaims {
            iss: call.from.into(),
            aud: call.to.into(),
            sub: call.method.into(),
            body: sha256(body),
            iat: now,
            exp: now + LIFETIME.as_secs(),
            jti: Uuid::new_v4(),
        })
    }

    /// The node that a refused token names as the caller, if the name could be one. Nothing proves
    /// that name.
    pub(crate) fn unproven_caller(token: &str) -> Option<NodeId> {
        NodeId::new(jwt::unproven_claims(token)?.iss?).ok()
    }

    /// Checks that a token is valid for this method of this node, before anything of the body is
    /// read. The caller must check the body's hash, and refuse an id that was used before.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`](distlock_core::ErrorKind::AccessDenied); the message says which
    /// check failed.
    pub(crate) fn check(
        &self,
        token: &str,
        to: &str,
        method: &str,
        now: SystemTime,
    ) -> Result<CheckedCall> {
        let keys = [&self.signing].into_iter().chain(&self.also);
        let claims: CallClaims = jwt::read_claims(token, keys).map_err(refused_error)?;
        if claims.aud != to {
            return Err(refused_error("it was issued for another node"));
        }
        if claims.sub != method {
            return Err(refused_error("it was issued for another method"));
        }
        check_time(claims.iat, claims.exp, now)?;
        Ok(CheckedCall {
            from: claims.iss,
            hash: BodyHash(claims.body),
            id: claims.jti,
            until: claims.iat.saturating_add(LIFETIME.as_secs()),
        })
    }
}

fn check_time(issued: u64, expires: u64, now: SystemTime) -> Result<()> {
    let now = unix_seconds(now);
    if expires < now || issued.abs_diff(now) > LIFETIME.as_secs() {
        return Err(refused_error(
            "it was not issued within 30 s of now: is the clock of one of the two nodes wrong?",
        ));
    }
    Ok(())
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use distlock_core::{Clock as _, SystemClock};

    use super::{
        super::{TokenKey, mint},
        *,
    };

    const CALL: Call<'_> = Call {
        from: "n2",
        to: "n1",
        method: "/distlock.v1.Peer/Kick",
    };

    fn key(byte: u8) -> TokenKey {
        TokenKey::new(&[byte; 32]).unwrap()
    }

    fn now() -> SystemTime {
        SystemClock.wall()
    }

    fn check(key: &PeerKey, token: &str, now: SystemTime) -> Result<CheckedCall, String> {
        let checked = key.check(token, CALL.to, CALL.method, now);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_good_for_its_call_alone() {
        let key = key(7).peers().unwrap();
        let token = key.sign(CALL, b"body", now()).unwrap();
        let call = check(&key, &token, now()).unwrap();
        assert_eq!(call.from, "n2");
        let body = call.hash;
        assert!(body.matches(b"body") && !body.matches(b"bodY") && !body.matches(b""));
        let refusal = |to, method| key.check(&token, to, method, now()).unwrap_err();
        assert!(refusal("n3", CALL.method).message().contains("node"));
        let other = refusal(CALL.to, "/distlock.v1.Peer/Deliver");
        assert!(other.message().contains("method"), "{other}");
    }

    #[test]
    fn a_token_is_good_for_half_a_minute_by_either_clock() {
        let key = key(7).peers().unwrap();
        let seconds = Duration::from_secs;
        for (age, good) in [(29, true), (32, false), (6 * 24 * 3600, false)] {
            let then = now() - seconds(age);
            let token = key.sign(CALL, b"", then).unwrap();
            assert_eq!(check(&key, &token, now()).is_ok(), good, "{age} s old");
            let ahead = key.sign(CALL, b"", now() + seconds(age)).unwrap();
            assert_eq!(check(&key, &ahead, now()).is_ok(), good, "{age} s ahead");
        }
    }

    #[test]
    fn a_token_for_another_purpose_is_refused() {
        let logins = key(7);
        let peers = logins.peers().unwrap();
        let anna = distlock_kickout::Uid::new("anna").unwrap();
        let login = mint(&logins, &anna, Duration::from_secs(60)).unwrap();
        let call = peers.sign(CALL, b"", now()).unwrap();
        let refusal = check(&peers, &login, now()).unwrap_err();
        assert!(refusal.contains("signature"), "{refusal}");
        assert!(logins.verify(&call).is_err());
    }

    #[test]
    fn during_a_key_change_calls_of_either_key_are_accepted() {
        let (old, new) = (key(7), key(8));
        let before = key(7).also(&[8; 32]).unwrap().peers().unwrap();
        let after = key(8).also(&[7; 32]).unwrap().peers().unwrap();
        for signs in [&old, &new] {
            let signs = signs.peers().unwrap();
            let call = signs.sign(CALL, b"", now()).unwrap();
            for checks in [&before, &after] {
                check(checks, &call, now()).unwrap();
            }
        }
        let call = old.peers().unwrap().sign(CALL, b"", now()).unwrap();
        let refusal = check(&new.peers().unwrap(), &call, now()).unwrap_err();
        assert!(refusal.contains("signature"), "{refusal}");
        let shown = format!("{before:?}");
        assert!(!shown.contains('7') && shown.contains("***"), "{shown}");
    }
}
