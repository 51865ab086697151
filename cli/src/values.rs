//! Parses values of the command line.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, time::Duration};

use distlock::{FencingToken, HolderLabel, LockName};
use distlock_server::OperationGroup;

use crate::exit::{Failure, Outcome};

/// Parses a duration such as `5s`, `500ms`, `1m30s` or `2h`, for clap.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    distlock::config::parse_duration(text).map_err(|error| error.message().to_owned())
}

/// Parses a duration or `0`, which needs no unit, for clap.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    parse_duration(text)
}

/// Parses a fencing token, for clap.
pub(crate) fn parse_token(text: &str) -> Result<FencingToken, String> {
    let number: u64 = text
        .parse()
        .map_err(|_| "a token is a whole number below 2^53".to_owned())?;
    FencingToken::new(number).map_err(|error| error.message().to_owned())
}

/// Some of the permits of a semaphore: `2/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) count: u32,
    pub(crate) capacity: u32,
}

/// Parses a number of permits and the number that there are, for clap.
pub(crate) fn parse_permits(text: &str) -> Result<Permits, String> {
    let problem = || "two whole numbers are expected: 2/8 is two of eight permits".to_owned();
    let (count, capacity) = text.split_once('/').ok_or_else(problem)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| problem());
    Ok(Permits {
        count: number(count)?,
        capacity: number(capacity)?,
    })
}

/// Parses an exit code, for clap.
pub(crate) fn parse_exit_code(text: &str) -> Result<u8, String> {
    text.parse()
        .map_err(|_| "an exit code is a whole number from 0 to 255".to_owned())
}

/// Parses a number per second, for clap.
pub(crate) fn parse_rate(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "a rate is a whole number, so many a second".to_owned())
}

/// Parses the id of a session with a gateway, for clap.
pub(crate) fn parse_session(text: &str) -> Result<uuid::Uuid, String> {
    uuid::Uuid::try_parse(text)
        .map_err(|_| "a session is a UUID, as `distlock gateway lookup` shows it".to_owned())
}

/// Parses a group of operations of a lock server's token, for clap.
pub(crate) fn parse_operation(text: &str) -> Result<OperationGroup, String> {
    text.parse()
        .map_err(|error: distlock::Error| error.message().to_owned())
}

/// Checks the value of `--holder`.
pub(crate) fn parse_holder(label: &str) -> Outcome<HolderLabel> {
    HolderLabel::new(label).map_err(|error| Failure::usage(format!("--holder: {error}")))
}

/// Checks a lock name. A command line can contain bytes that are not UTF-8.
pub fn parse_lock_name(name: &OsStr) -> Outcome<LockName> {
    Ok(LockName::from_bytes(name.as_bytes())?)
}
