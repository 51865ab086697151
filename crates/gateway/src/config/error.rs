//! Errors about one key of the table.

use distlock_core::{Error, ErrorKind};

/// What every error about a key begins with, directly before the key.
pub(super) const PREFIX: &str = "gateway.";

pub(crate) fn invalid(key: &str, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{PREFIX}{key} {problem}"))
}
