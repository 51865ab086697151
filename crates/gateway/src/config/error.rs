//! Errors about one key of the table.

use distlock_core::{Error, ErrorKind};

/// The beginning of every error about a key, directly before the key.
pub(super) const PREFIX: &str = "gateway.";

pub(crate) fn config_error(key: &str, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{PREFIX}{key} {problem}"))
}
