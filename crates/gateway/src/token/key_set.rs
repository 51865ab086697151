//! The keys of a JWK set (RFC 7517, 5), each of which a token names.
//!
//! This module must never let two keys have one name: a token would be checked with either.

use distlock_core::excerpt;
use serde::Deserialize;
use serde_json::Value;

use super::public_key::{Jwk, PublicKey};

/// Most keys of a set, and longest name of one in bytes. A real set has a few keys.
const MOST_KEYS: usize = 64;
const LONGEST_NAME: usize = 256;

/// Public keys with their names.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<(Option<String>, PublicKey)>);

/// The key for a token.
#[derive(Debug)]
pub(super) enum KeyChoice<'a> {
    Known(&'a PublicKey),
    Unknown,
    /// The token names no key, and there is not exactly one.
    Unnamed,
}

/// A set that was read, with one reason for each key that is not used.
#[derive(Debug)]
pub(super) struct ReadSet {
    pub(super) keys: KeySet,
    pub(super) ignored: Vec<String>,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl KeySet {
    /// Reads a set. A key that cannot be used does no harm to the others, as the RFC asks.
    ///
    /// # Errors
    /// The reason why the set cannot be used, as the rest of a sentence about it.
    pub(super) fn parse(body: &[u8]) -> Result<ReadSet, String> {
        let document: Document = serde_json::from_slice(body)
            .map_err(|error| format!("is not a JWK set in JSON (line {})", error.line()))?;
        let found = document.keys.len();
        if found > MOST_KEYS {
            return Err(format!("has {found} keys: at most {MOST_KEYS} are allowed"));
        }
        let mut keys: Vec<(Option<String>, PublicKey)> = Vec::new();
        let mut ignored = Vec::new();
        for (at, value) in document.keys.into_iter().enumerate() {
            let number = at + 1;
            let Ok(jwk) = serde_json::from_value::<Jwk>(value) else {
                ignored.push(format!("key {number} is not a JWK"));
                continue;
            };
            let name = jwk.kid();
            let shown = name.map_or_else(
                || format!("key {number}"),
                |name| format!("\"{}\"", excerpt(name)),
            );
            if name.is_some_and(|name| name.len() > LONGEST_NAME) {
                ignored.push(format!(
                    "{shown} has a name of more than {LONGEST_NAME} bytes"
                ));
                continue;
            }
            match jwk.public_key() {
                Err(why) => ignored.push(format!("{shown} {why}")),
                // Nobody knows which of the two is meant.
                Ok(_) if name.is_some() && keys.iter().any(|(it, _)| it.as_deref() == name) => {
                    return Err(format!("has two keys of the name {shown}"));
                }
                Ok(key) => keys.push((name.map(str::to_owned), key)),
            }
        }
        if keys.len() > 1 {
            keys.retain(|(name, _)| {
                if name.is_none() {
                    ignored.push("a key without a name (kid) stands beside others".into());
                }
                name.is_some()
            });
        }
        if keys.is_empty() {
            let why = ignored.join("; ");
            return Err(format!("has no key that can check a login token: {why}"));
        }
        Ok(ReadSet {
            keys: Self(keys),
            ignored,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key for a token that names this key.
    pub(super) fn choose(&self, name: Option<&str>) -> KeyChoice<'_> {
        match (name, self.0.as_slice()) {
            // Without any key nobody can say whether a name is needed.
            (_, []) => KeyChoice::Unknown,
            // Whatever name a token gives to a key that has none, the signature decides.
            (None, [(_, key)]) | (Some(_), [(None, key)]) => KeyChoice::Known(key),
            (None, _) => KeyChoice::Unnamed,
            (Some(_), keys) => keys
                .iter()
                .find(|(known, _)| known.as_deref() == name)
                .map_or(KeyChoice::Unknown, |(_, key)| KeyChoice::Known(key)),
        }
    }
}
