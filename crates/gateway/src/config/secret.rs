//! What is never shown.

use std::fmt;

use serde::Deserialize;

use crate::token;

/// A secret from the configuration: never shown.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Compares in constant time.
    pub(crate) fn matches(&self, other: &str) -> bool {
        token::same(self.0.as_bytes(), other.as_bytes())
    }

    /// The secret itself, for sending it where it belongs.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
