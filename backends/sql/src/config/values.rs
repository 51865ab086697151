//! Reads, checks and writes the values of options.

use std::{fmt::Write as _, time::Duration};

use distlock_core::{Error, ErrorKind, Result, parse_duration};

/// The range of the option `reap_after`.
pub(crate) const REAP_AFTER: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(365 * 24 * 3600));

/// The word, quoted for a shell.
pub(crate) fn quoted(word: &str) -> String {
    if word
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-~+@,:=%".contains(&byte))
    {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Escapes the characters that have a meaning of their own in a URL's path.
pub(crate) fn escape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~+@,:=".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
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

/// A prefix becomes part of statements: only characters that need no quoting in any dialect may
/// pass.
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

pub(crate) fn unknown(name: &str, backend: &str, known: &[&str]) -> Error {
    let nearest = known
        .iter()
        .max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)))
        .filter(|known| strsim::jaro_winkler(name, known) > 0.75);
    let hint = match nearest {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known are {}", known.join(", ")),
    };
    invalid(format!("unknown option {name:?} for {backend}: {hint}"))
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}
