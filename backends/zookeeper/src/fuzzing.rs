//! Parsers of this crate for the fuzz targets of the repository; not part of the public interface.

use distlock_core::{AcquireRequest, FencingToken, HolderInfo, OwnerId, Result};

use crate::{
    nodes::{node_data, sequence::Sequence},
    records,
};

/// Returns the holder that the data of a contender's node names.
#[must_use]
pub fn parse_holder(data: &[u8], token: FencingToken) -> HolderInfo {
    node_data::parse_holder(data, token)
}

/// Returns whether a node's data names this owner.
#[must_use]
pub fn is_owned_by(data: &[u8], owner: OwnerId) -> bool {
    node_data::is_owned_by(data, owner)
}

/// Returns the data that this library writes to the node of a request.
#[must_use]
pub fn encode_holder(request: &AcquireRequest) -> Vec<u8> {
    node_data::encode(request)
}

/// Returns whether one child is before another in the queue; `None` when one of the two is not a
/// contender's node.
#[must_use]
pub fn is_before(one: &str, other: &str) -> Option<bool> {
    Some(Sequence::parse(one)?.is_before(Sequence::parse(other)?))
}

/// Returns the value in a record's node; `None` when the record is deleted.
///
/// # Errors
/// [`ErrorKind::Corrupt`](distlock_core::ErrorKind::Corrupt) for data that this library never
/// writes.
pub fn decode_record(data: Vec<u8>) -> Result<Option<Vec<u8>>> {
    records::decode_value("", data)
}
