use std::time::UNIX_EPOCH;

use distlock_core::{Clock as _, SystemClock};
use distlock_gateway::{TokenKey, fuzzing::signed};
use serde_json::{Map, Value};

use crate::text::is_bounded;

/// Allowed difference of clocks in seconds, plus one second for the time of this run.
const LEEWAY: i64 = 61;
/// Longest lifetime of a token in seconds.
const LONGEST: i64 = 24 * 3600;

/// Checks login tokens: bytes without a signature, and claims that are signed. The times in the
/// claims are relative to the present time, so that a corpus does not expire.
pub fn login_tokens(data: &[u8]) {
    let Ok(key) = TokenKey::new(&[7; 32]) else {
        unreachable!("32 bytes are a key");
    };
    if let Ok(text) = str::from_utf8(data) {
        let Err(error) = key.verify_login(text) else {
            panic!("a token that nobody signed is good: {text}");
        };
        is_bounded(&error, 0);
    }
    let now = SystemClock.wall().duration_since(UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or_default();
    let claims = serde_json::from_slice(data)
        .ok()
        .map(|mut claims: Map<String, Value>| {
            for time in ["iat", "exp", "nbf"] {
                let given = claims.get_mut(time);
                let Some((given, offset)) = given.and_then(|it| Some((it.as_i64()?, it))) else {
                    continue;
                };
                *offset = now.saturating_add(given).into();
            }
            claims
        });
    let token = match &claims {
        Some(claims) => signed(&key, Value::Object(claims.clone()).to_string().as_bytes()),
        None => signed(&key, data),
    };
    // A node with another key must refuse the token, whatever the claims are.
    let other = TokenKey::new(&[8; 32]).map(|other| other.verify_login(&token).is_ok());
    assert!(matches!(other, Ok(false)), "another key takes it");
    match key.verify_login(&token) {
        Ok((uid, _)) => {
            let Some(claims) = claims else {
                panic!("claims that are no JSON object are good");
            };
            let time = |name: &str| claims.get(name).and_then(Value::as_i64);
            let (iat, exp) = (time("iat").unwrap_or(i64::MAX), time("exp").unwrap_or(0));
            assert_eq!(claims["sub"], uid.as_str());
            assert!(exp + LEEWAY >= now && iat <= now + LEEWAY, "{claims:?}");
            assert!(exp.saturating_sub(iat) <= LONGEST, "{claims:?}");
            assert!(
                time("nbf").is_none_or(|from| from <= now + LEEWAY),
                "{claims:?}"
            );
        }
        Err(error) => is_bounded(&error, 0),
    }
}
