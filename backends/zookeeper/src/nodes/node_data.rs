//! The data of a contender's node, which names the holder.
//!
//! The data names the owner only by a digest. The id itself releases the lock, and every client
//! that may read the node would learn it.

use distlock_core::{AcquireRequest, FencingToken, HolderInfo, HolderLabel, OwnerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A node's data as distlock writes it. Other recipes write other data.
#[derive(Serialize, Deserialize)]
struct NodeData {
    /// The version of this format.
    distlock: u32,
    holder: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meta: Option<String>,
    /// A digest of the owner. Different owners have different digests, and the digest does not
    /// reveal the id.
    owner: Uuid,
}

/// Encodes the data for the node of a request.
pub(crate) fn encode(request: &AcquireRequest) -> Vec<u8> {
    let fields = NodeData {
        distlock: 1,
        holder: request.holder.as_str().to_owned(),
        meta: request.meta.as_ref().map(|meta| meta.as_str().to_owned()),
        owner: request.owner.tag(),
    };
    // Cannot fail: strings and numbers always serialise.
    serde_json::to_vec(&fields).unwrap_or_default()
}

/// Returns the description of a granted request's holder that other clients see.
pub(crate) fn holder_info(request: &AcquireRequest, token: FencingToken) -> HolderInfo {
    let mut info = HolderInfo::new(request.holder.as_str());
    info.meta = request.meta.as_ref().map(|meta| meta.as_str().to_owned());
    info.token = Some(token);
    info
}

/// Returns whether a node's data names this owner.
pub(crate) fn is_owned_by(data: &[u8], owner: OwnerId) -> bool {
    serde_json::from_slice::<NodeData>(data).is_ok_and(|fields| fields.owner == owner.tag())
}

/// Reads the holder from a node's data. Data that another recipe wrote becomes the holder's label.
pub(crate) fn parse_holder(data: &[u8], token: FencingToken) -> HolderInfo {
    let mut info = match serde_json::from_slice::<NodeData>(data) {
        Ok(fields) => {
            let mut info = HolderInfo::new(fields.holder);
            info.meta = fields.meta;
            info
        }
        Err(_) => HolderInfo::new(foreign_label(data)),
    };
    info.token = Some(token);
    info
}

/// Returns the holder of a node that these credentials may not read.
pub(crate) fn unreadable_holder() -> HolderInfo {
    HolderInfo::new("(unknown: other credentials)")
}

/// Returns a label made from data that another recipe wrote.
fn foreign_label(data: &[u8]) -> String {
    let mut label: String = String::from_utf8_lossy(data)
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    label.truncate(label.floor_char_boundary(HolderLabel::MAX_BYTES));
    if label.trim().is_empty() {
        "(unknown: not taken by distlock)".into()
    } else {
        label
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{LockName, Meta, Ttl};

    use super::*;

    #[test]
    fn encoded_data_is_parsed_and_hides_the_owner() {
        let owner = OwnerId::new();
        let mut request = AcquireRequest::new(
            LockName::new("a").unwrap(),
            owner,
            Ttl::from_millis(1000).unwrap(),
            HolderLabel::new("me@here:1").unwrap(),
        );
        request.meta = Some(Meta::new("{\"job\": 7}").unwrap());
        let data = encode(&request);
        let token = FencingToken::new(5).unwrap();
        assert_eq!(parse_holder(&data, token), holder_info(&request, token));
        assert!(is_owned_by(&data, owner) && !is_owned_by(&data, OwnerId::new()));
        let text = String::from_utf8(data).unwrap();
        assert!(!text.contains(&owner.as_uuid().to_string()));
    }

    #[test]
    fn data_of_other_recipes_becomes_a_label() {
        let token = FencingToken::new(5).unwrap();
        for (data, label) in [
            (&b"10.0.0.1"[..], "10.0.0.1"),
            (b"", "(unknown: not taken by distlock)"),
            (b"\x1b[31mred\n", "[31mred"),
            (b"{\"distlock\":1}", "{\"distlock\":1}"),
        ] {
            assert_eq!(parse_holder(data, token).holder, label);
        }
        let long = "é".repeat(200);
        assert_eq!(parse_holder(long.as_bytes(), token).holder.len(), 128);
        assert!(!parse_holder(&[0xff, 0xfe], token).holder.is_empty());
    }
}
