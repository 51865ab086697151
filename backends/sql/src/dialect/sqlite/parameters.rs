//! The encodings of a batch's values as parameters of one statement.

use serde::Serialize;
use uuid::Uuid;

/// The rows as a JSON array for `json_each`.
pub(super) fn json<T: Serialize>(rows: &[T]) -> String {
    // Strings, numbers and null cannot fail to serialise.
    serde_json::to_string(rows).unwrap_or_default()
}

/// All ids as one blob: 16 bytes for each id, in the order of the rows.
pub(super) fn id_blob<'a>(ids: impl Iterator<Item = &'a Uuid>) -> Vec<u8> {
    ids.flat_map(|id| *id.as_bytes()).collect()
}

/// All values as one blob. The statement cuts each value out by its position.
#[derive(Default)]
pub(super) struct ValueBlob {
    /// The values one after the other. [`Self::into_bytes`] adds one byte that belongs to no value,
    /// because SQLite's `substr` of an empty blob is NULL.
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
