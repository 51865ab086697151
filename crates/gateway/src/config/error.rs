//! Errors about one key of the table.

use distlock_core::{Error, ErrorKind};

/// Every error about a key begins with this text, directly before the key.
pub(super) const PREFIX: &str = "gateway.";

/// An error about the value of `key`. `problem` follows the key as the rest of the sentence.
pub(crate) fn config_error(key: &str, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{PREFIX}{key} {problem}"))
}
