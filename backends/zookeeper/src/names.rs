//! The paths and names of all nodes.
//!
//! ```text
//! ROOT/locks/NAME/_c_ATTEMPT-SESSION-lock-SEQUENCE   one ephemeral node per contender;
//!                                                    the first one holds the lock
//! ROOT/records/KEY                                   one persistent node per record
//! ROOT/probe-SEQUENCE                                deleted at once; made when a session opens or
//!                                                    reconnects, to see its session id
//! ```
//!
//! Invariant: names and keys are encoded reversibly, so every allowed name is the name of one node.

use std::sync::Arc;

use distlock_core::{LockName, RecordKey, decode, encode};
use uuid::Uuid;

/// The paths of the nodes under one root.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: String,
    pub(crate) locks: String,
    pub(crate) records: String,
    pub(crate) probe_prefix: String,
}

impl Layout {
    pub(crate) fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            locks: format!("{root}/locks"),
            records: format!("{root}/records"),
            probe_prefix: format!("{root}/probe-"),
        }
    }

    /// Returns the path of the container that has a lock's contenders as its children.
    pub(crate) fn container_path(&self, name: &LockName) -> Arc<str> {
        format!("{}/{}", self.locks, encode(name.as_str())).into()
    }

    /// Returns the path of a record's node.
    pub(crate) fn record_path(&self, key: &RecordKey) -> String {
        format!("{}/{}", self.records, encode(key.as_str()))
    }
}

/// Returns the name of the lock that a container belongs to; `None` for a node that this library
/// did not create.
pub(crate) fn decode_lock_name(container: &str) -> Option<LockName> {
    LockName::new(decode(container)?).ok()
}

/// Returns the key of a record's node; `None` for a node that this library did not create.
pub(crate) fn decode_record_key(node: &str) -> Option<RecordKey> {
    RecordKey::new(decode(node)?).ok()
}

/// Returns the name of one attempt's node, without the number that the server appends. The name has
/// the form of Apache Curator's protected nodes, so that other recipes take part in the same queue.
/// The name contains the session's id, so that a node of an older session is never taken for a node
/// of this session.
pub(crate) fn contender_prefix(attempt: Uuid, session: i64) -> String {
    format!("_c_{attempt}-{session:016x}-lock-")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nodes::sequence::Sequence;

    proptest! {
        #[test]
        fn every_name_is_encoded_as_one_node_and_read_back(name in "[^\\p{Cc}]{1,60}") {
            let layout = Layout::new("/app");
            let name = LockName::new(name).unwrap();
            let container = layout.container_path(&name);
            let node = container.strip_prefix("/app/locks/").unwrap();
            prop_assert!(!node.contains('/') && node != "." && node != "..");
            prop_assert_eq!(decode_lock_name(node), Some(name));
        }

        #[test]
        fn a_contender_name_is_read_back(
            attempt in any::<u128>(),
            session in any::<i64>(),
            number in any::<i32>(),
        ) {
            let prefix = contender_prefix(Uuid::from_u128(attempt), session);
            let child = format!("{prefix}{number:010}");
            let expected = Sequence::new(i64::from(number));
            prop_assert_eq!(Sequence::parse(&child), Some(expected));
            prop_assert!(child.starts_with("_c_") && child.contains("-lock-"));
        }
    }

    #[test]
    fn nodes_of_other_programs_are_not_read_as_names() {
        assert_eq!(decode_lock_name("~zz"), None);
        assert_eq!(decode_lock_name("a b"), None);
        assert_eq!(decode_record_key("x.y"), None);
    }
}
