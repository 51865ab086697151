//! The forms in which a batch's values travel.

use serde::Serialize;
use uuid::Uuid;

/// An array, as `json_each` reads it.
pub(super) fn json<T: Serialize>(rows: &[T]) -> String {
    // Strings, numbers and null cannot fail to serialise.
    serde_json::to_string(rows).unwrap_or_default()
}

/// Ids side by side, 16 bytes each, in the order of the rows.
pub(super) fn id_blob<'a>(ids: impl Iterator<Item = &'a Uuid>) -> Vec<u8> {
    ids.flat_map(|id| *id.as_bytes()).collect()
}

/// Values side by side, and the position of each.
#[derive(Default)]
pub(super) struct ValueBlob {
    /// The blob ends with one byte that belongs to no value: SQLite takes an empty blob's `substr`
    /// for NULL.
    bytes: Vec<u8>,
}

impl ValueBlob {
    /// Appends a value, and returns its start and length.
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
