//! Secrets of the configuration.
//!
//! This module must never show a secret, and never compare a secret in a time that depends on its
//! content.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use sha2::Sha256;
use uuid::Uuid;

/// A secret from the configuration. Its debug form does not show the secret, and dropping it
/// overwrites its memory with zeros.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        let secret: String = secret.into();
        Self(secret.into())
    }

    /// Makes a new secret: two random UUIDs have 244 random bits.
    pub(crate) fn random() -> Self {
        let (one, two) = (Uuid::new_v4().simple(), Uuid::new_v4().simple());
        Self::new(format!("{one}{two}"))
    }

    /// Whether `other` is this secret. The comparison takes a constant time.
    pub(crate) fn matches(&self, other: &str) -> bool {
        constant_time_eq(self.expose().as_bytes(), other.as_bytes())
    }

    /// The secret itself, for its intended receiver.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Compares two secrets in a time that does not show where they differ. The comparison uses the
/// HMACs of both secrets, which have equal lengths.
pub(crate) fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_match_only_if_all_bytes_are_equal() {
        assert!(constant_time_eq(b"abc", b"abc"));
        assert!(
            !constant_time_eq(b"abc", b"abd")
                && !constant_time_eq(b"abc", b"ab")
                && !constant_time_eq(b"", b"a")
        );
    }
}
