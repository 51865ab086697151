//! The roster as the store has it: the incarnations that are alive or may have left records.

use std::collections::{BTreeMap, BTreeSet};

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::ident::{Boot, NodeId};

/// The incarnations that are alive, or may have left records behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    /// Format of the record.
    v: u8,
    /// Id of this roster; `None` without a record. A new record gets a new id, so a node notices
    /// that the store was emptied.
    pub(crate) id: Option<Uuid>,
    pub(crate) nodes: BTreeMap<NodeId, BTreeSet<Boot>>,
}

/// Format of the roster; a reader refuses any other.
const FORMAT: u8 = 1;

impl Default for Roster {
    fn default() -> Self {
        Self {
            v: FORMAT,
            id: None,
            nodes: BTreeMap::new(),
        }
    }
}

impl Roster {
    /// Returns the roster if its format is known.
    pub(crate) fn check_format(self) -> Result<Self> {
        if self.v == FORMAT {
            return Ok(self);
        }
        let says = format!(
            "the roster of nodes has format {}, this version knows {FORMAT}",
            self.v
        );
        Err(Error::new(ErrorKind::Corrupt, says))
    }

    /// Adds an incarnation. Returns true if it was missing.
    pub(crate) fn add(&mut self, node: &NodeId, boot: Boot) -> bool {
        self.nodes.entry(node.clone()).or_default().insert(boot)
    }

    /// Removes an incarnation. Returns true if it was there.
    pub(crate) fn remove(&mut self, node: &NodeId, boot: Boot) -> bool {
        let Some(boots) = self.nodes.get_mut(node) else {
            return false;
        };
        let was = boots.remove(&boot);
        if boots.is_empty() {
            self.nodes.remove(node);
        }
        was
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The names of all nodes on the roster.
    pub(crate) fn into_node_names(self) -> BTreeSet<NodeId> {
        self.nodes.into_keys().collect()
    }
}
