//! What a contender's node says about whom it belongs to.

use distlock_core::{AcquireRequest, FencingToken, HolderInfo, HolderLabel, OwnerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A node's data. Other recipes write other things.
#[derive(Serialize, Deserialize)]
struct NodeData {
    /// The format.
    distlock: u32,
    holder: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meta: Option<String>,
    /// A digest of the owner: it tells owners apart and gives none away.
    owner: Uuid,
}

/// The data of a request's node.
pub(crate) fn encode(request: &AcquireRequest) -> Vec<u8> {
    let card = NodeData {
        distlock: 1,
        holder: request.holder.as_str().to_owned(),
        meta: request.meta.as_ref().map(|meta| meta.as_str().to_owned()),
        owner: request.owner.tag(),
    };
    // Strings and numbers always serialise.
    serde_json::to_vec(&card).unwrap_or_default()
}

/// As others see a request that has a token.
pub(crate) fn holder_info(request: &AcquireRequest, token: FencingToken) -> HolderInfo {
    let mut info = HolderInfo::new(request.holder.as_str());
    info.meta = request.meta.as_ref().map(|meta| meta.as_str().to_owned());
    info.token = Some(token);
    info
}

/// Whether a node's data names this owner.
pub(crate) fn is_owned_by(data: &[u8], owner: OwnerId) -> bool {
    serde_json::from_slice::<NodeData>(data).is_ok_and(|card| card.owner == owner.tag())
}

/// Who a node belongs to. Any text of another recipe is taken as a label.
pub(crate) fn parse(data: &[u8], token: FencingToken) -> HolderInfo {
    let mut info = match serde_json::from_slice::<NodeData>(data) {
        Ok(card) => {
            let mut info = HolderInfo::new(card.holder);
            info.meta = card.meta;
            info
        }
        Err(_) => HolderInfo::new(foreign_label(data)),
    };
    info.token = Some(token);
    info
}

/// Whose node may not be read.
pub(crate) fn unreadable() -> HolderInfo {
    HolderInfo::new("(unknown: other credentials)")
}

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
    fn what_is_written_is_read_and_the_owner_is_not() {
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
        assert_eq!(parse(&data, token), holder_info(&request, token));
        assert!(is_owned_by(&data, owner) && !is_owned_by(&data, OwnerId::new()));
        let text = String::from_utf8(data).unwrap();
        assert!(!text.contains(&owner.as_uuid().to_string()));
    }

    #[test]
    fn other_recipes_write_anything() {
        let token = FencingToken::new(5).unwrap();
        for (data, label) in [
            (&b"10.0.0.1"[..], "10.0.0.1"),
            (b"", "(unknown: not taken by distlock)"),
            (b"\x1b[31mred\n", "[31mred"),
            (b"{\"distlock\":1}", "{\"distlock\":1}"),
        ] {
            assert_eq!(parse(data, token).holder, label);
        }
        let long = "é".repeat(200);
        assert_eq!(parse(long.as_bytes(), token).holder.len(), 128);
        assert!(!parse(&[0xff, 0xfe], token).holder.is_empty());
    }
}
