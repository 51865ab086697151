//! Values on the command line.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, time::Duration};

use distlock::{FencingToken, HolderLabel, LockName};

use crate::exit::{Failure, Outcome};

/// For clap: `5s`, `500ms`, `1m30s`, `2h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    distlock::config::parse_duration(text).map_err(|error| error.message().to_owned())
}

/// For clap: a duration, or `0`, which needs no unit.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    parse_duration(text)
}

/// For clap: a fencing token.
pub(crate) fn parse_token(text: &str) -> Result<FencingToken, String> {
    let number: u64 = text
        .parse()
        .map_err(|_| "a token is a whole number below 2^53".to_owned())?;
    FencingToken::new(number).map_err(|error| error.message().to_owned())
}

/// For clap: an exit code.
pub(crate) fn parse_exit_code(text: &str) -> Result<u8, String> {
    text.parse()
        .map_err(|_| "an exit code is a whole number from 0 to 255".to_owned())
}

/// For clap: a number per second.
pub(crate) fn parse_rate(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "a rate is a whole number, so many a second".to_owned())
}

/// For clap: a session of the gateway.
pub(crate) fn parse_session(text: &str) -> Result<uuid::Uuid, String> {
    uuid::Uuid::try_parse(text)
        .map_err(|_| "a session is a UUID, as `distlock gateway lookup` shows it".to_owned())
}

/// The value of `--holder`.
pub(crate) fn parse_holder(label: &str) -> Outcome<HolderLabel> {
    HolderLabel::new(label).map_err(|error| Failure::usage(format!("--holder: {error}")))
}

/// A lock name; a command line can carry bytes that are not UTF-8.
pub(crate) fn parse_lock_name(name: &OsStr) -> Outcome<LockName> {
    Ok(LockName::from_bytes(name.as_bytes())?)
}
