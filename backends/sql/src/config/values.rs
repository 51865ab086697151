//! Reads, checks and writes the values of options.

use std::{path::Path, time::Duration};

use distlock_backend_kit::{DriverOption, percent_encode_path};
use distlock_core::{Error, ErrorKind, Result, parse_duration};

/// The range of the option `reap_after`.
pub(crate) const REAP_AFTER: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(365 * 24 * 3600));

/// The option `reap_after` of every dialect.
pub(crate) const REAP_AFTER_OPTION: DriverOption = DriverOption::new(
    "reap_after",
    "1 s to 365 d: how long the row of a free lock stays",
    "1h",
);

/// The option `migrate` of every dialect.
pub(crate) const MIGRATE: DriverOption =
    DriverOption::new("migrate", "`false`: never create tables", "true");

/// The option `table_prefix` of every dialect.
pub(crate) const TABLE_PREFIX: DriverOption =
    DriverOption::new("table_prefix", "prefix of the tables' names", "nothing");

/// A path for a URL. U+FFFD replaces what is not UTF-8.
pub(crate) fn escape(path: &Path) -> String {
    percent_encode_path(path.to_string_lossy().as_bytes())
}

pub(crate) fn flag(option: &str, value: &str) -> Result<bool> {
    value.parse().map_err(|_| {
        invalid(format!(
            "option `{option}`: {value:?} is neither `true` nor `false`"
        ))
    })
}

pub(crate) fn duration(option: &str, value: &str) -> Result<Duration> {
    parse_duration(value)
        .map_err(|error| invalid(format!("option `{option}`: {}", error.message())))
}

pub(crate) fn check_range(
    option: &str,
    value: Duration,
    (min, max): (Duration, Duration),
) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(format!(
        "option `{option}`: {value:?} is outside {min:?} to {max:?}"
    )))
}

/// Checks a table prefix. The prefix becomes part of every statement, so that only characters that
/// need no quoting in any dialect are allowed.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let mut bytes = prefix.bytes();
    let plain = bytes
        .next()
        .is_none_or(|first| first == b'_' || first.is_ascii_lowercase())
        && bytes.all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && prefix.len() <= 32;
    if plain {
        return Ok(());
    }
    Err(invalid(format!(
        "option `table_prefix`: {prefix:?} is not a lower-case letter or `_`, followed by at most \
            31 lower-case letters, \
         digits or `_`"
    )))
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}
