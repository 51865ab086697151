//! The roster as the store holds it.

use std::collections::{BTreeMap, BTreeSet};

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::ident::{Boot, NodeId};

/// The incarnations that are, or were and may have left something behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    /// Format of the record.
    v: u8,
    /// Made anew with the record, so that a store that was emptied is noticed; `None` = there is no
    /// record.
    pub(crate) id: Option<Uuid>,
    pub(crate) nodes: BTreeMap<NodeId, BTreeSet<Boot>>,
}

/// Format of the roster; a reader refuses another one.
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
    /// Refuses, by name, a format that this version does not know.
    pub(crate) fn known(self) -> Result<Self> {
        if self.v == FORMAT {
            return Ok(self);
        }
        let says = format!(
            "the roster of nodes has format {}, this version knows {FORMAT}",
            self.v
        );
        Err(Error::new(ErrorKind::Corrupt, says))
    }

    /// Whether it was not there.
    pub(crate) fn add(&mut self, node: &NodeId, boot: Boot) -> bool {
        self.nodes.entry(node.clone()).or_default().insert(boot)
    }

    /// Whether it was there.
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

    /// Their names.
    pub(crate) fn names(self) -> BTreeSet<NodeId> {
        self.nodes.into_keys().collect()
    }
}
