//! Parsers of this crate for the fuzz targets of the repository: no part of its interface.

use distlock_core::{AcquireRequest, FencingToken, HolderInfo, OwnerId, Result};

use crate::{
    nodes::{node_data, sequence::Sequence},
    records,
};

/// Who a contender's node belongs to.
#[must_use]
pub fn holder(data: &[u8], token: FencingToken) -> HolderInfo {
    node_data::parse(data, token)
}

/// Whether a node's data names this owner.
#[must_use]
pub fn names(data: &[u8], owner: OwnerId) -> bool {
    node_data::is_owned_by(data, owner)
}

/// The data of a request's node.
#[must_use]
pub fn written(request: &AcquireRequest) -> Vec<u8> {
    node_data::encode(request)
}

/// Whether one child stands before another in the queue; `None` where one is no contender's.
#[must_use]
pub fn is_before(one: &str, other: &str) -> Option<bool> {
    Some(Sequence::of(one)?.is_before(Sequence::of(other)?))
}

/// The value in a record's node; `None` where the record is deleted.
///
/// # Errors
/// What this library never writes.
pub fn record(data: Vec<u8>) -> Result<Option<Vec<u8>>> {
    records::value(data)
}
