//! The parameters of a batch's statement.

use distlock_core::{AcquireRequest, FencingToken, OwnerId};
use serde::Serialize;
use uuid::Uuid;

/// An array of arrays, as `json_each` reads it.
pub(super) fn json<T: Serialize>(rows: &[T]) -> String {
    // Strings, numbers and null cannot fail to serialise.
    serde_json::to_string(rows).unwrap_or_default()
}

/// Owner ids side by side, 16 bytes each, in the order of the rows.
#[derive(Default)]
pub(super) struct IdBlob(Vec<u8>);

impl IdBlob {
    pub(super) fn of<'a>(owners: impl Iterator<Item = &'a OwnerId>) -> Vec<u8> {
        let mut ids = Self::default();
        owners.for_each(|owner| ids.push(owner.as_uuid()));
        ids.0
    }

    pub(super) fn of_uuids(uuids: impl Iterator<Item = Uuid>) -> Vec<u8> {
        let mut ids = Self::default();
        uuids.for_each(|uuid| ids.push(&uuid));
        ids.0
    }

    fn push(&mut self, id: &Uuid) {
        self.0.extend_from_slice(id.as_bytes());
    }
}

/// Tokens side by side, [`TOKEN_WIDTH`] digits each; 0 for none.
pub(super) fn tokens(tokens: impl Iterator<Item = Option<FencingToken>>) -> Vec<u8> {
    let mut digits = Vec::new();
    for token in tokens {
        let mut number = token.map_or(0, FencingToken::get);
        let start = digits.len();
        digits.resize(start + TOKEN_WIDTH, b'0');
        for digit in digits[start..].iter_mut().rev() {
            *digit += u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
        }
    }
    digits
}

/// The number of digits of the highest token, 2^53 - 1.
const TOKEN_WIDTH: usize = 16;

/// Values side by side, and the position of each.
#[derive(Default)]
pub(super) struct ValueBlob {
    /// The blob ends with one byte that belongs to no value: SQLite takes an empty blob's `substr`
    /// for NULL.
    bytes: Vec<u8>,
}

impl ValueBlob {
    pub(super) fn push(&mut self, value: &[u8]) -> (usize, usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        (start, value.len())
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// Name, TTL in microseconds, label, meta.
pub(super) fn request(request: &AcquireRequest) -> (&str, u64, &str, Option<&str>) {
    (
        request.name.as_str(),
        request.ttl.as_millis() * 1000,
        request.holder.as_str(),
        request.meta.as_ref().map(distlock_core::Meta::as_str),
    )
}

pub(super) fn token(token: Option<FencingToken>) -> Option<u64> {
    token.map(FencingToken::get)
}
