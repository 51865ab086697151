//! A password type whose `Debug` output does not show the password.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretString};

/// A password. `Debug` does not show it, and dropping it overwrites its memory with zeros. Copies
/// that a database driver makes are not overwritten.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a password.
    pub fn new(password: impl Into<String>) -> Self {
        let password: String = password.into();
        Self(password.into())
    }

    /// The password itself, for the database driver. Never print the result.
    #[must_use]
    pub fn reveal(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.reveal() == other.reveal()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
