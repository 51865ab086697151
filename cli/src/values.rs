//! Values on the command line.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, time::Duration};

use distlock::{FencingToken, LockName};

use crate::exit::Outcome;

/// For clap: `5s`, `500ms`, `1m30s`, `2h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    distlock::config::parse_duration(text).map_err(|error| error.message().to_owned())
}

/// For clap: a duration, or `0`, which needs no unit.
pub(crate) fn wait(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    duration(text)
}

/// For clap: a fencing token.
pub(crate) fn token(text: &str) -> Result<FencingToken, String> {
    let number: u64 = text
        .parse()
        .map_err(|_| "a token is a whole number below 2^53".to_owned())?;
    FencingToken::new(number).map_err(|error| error.message().to_owned())
}

/// A lock name; a command line can carry bytes that are not UTF-8.
pub(crate) fn lock_name(name: &OsStr) -> Outcome<LockName> {
    Ok(LockName::from_bytes(name.as_bytes())?)
}
