//! Small values that many messages hold.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, FencingToken, OwnerId, Result, Ttl};
use uuid::Uuid;

/// A message that breaks a rule of the protocol.
pub(crate) fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, problem)
}

/// A message without a part that it must have.
pub(crate) fn missing(part: &str) -> Error {
    invalid(format!("the message has no {part}"))
}

// The bytes are a secret, so only their number is named.
pub(crate) fn uuid(what: &str, bytes: &[u8]) -> Result<Uuid> {
    Uuid::from_slice(bytes)
        .map_err(|_| invalid(format!("{what} has {} bytes: it needs 16", bytes.len())))
}

pub(crate) fn owner(bytes: &[u8]) -> Result<OwnerId> {
    Ok(OwnerId::from_uuid(uuid("the owner", bytes)?))
}

pub(crate) fn owner_bytes(owner: OwnerId) -> Vec<u8> {
    owner.as_uuid().as_bytes().to_vec()
}

pub(crate) fn ttl(us: u64) -> Result<Ttl> {
    Ttl::new(Duration::from_micros(us))
}

pub(crate) fn token(number: Option<u64>) -> Result<Option<FencingToken>> {
    number.map(FencingToken::new).transpose()
}
