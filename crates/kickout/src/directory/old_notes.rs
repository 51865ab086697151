//! Notes (`rev/<node>/<boot>/<uid>`) that nodes of the previous version wrote.
//!
//! No node reads them any more; the sweeper removes those of dead incarnations.

use distlock_core::{Deleted, Entry, RecordKey, Result, Version};

use crate::{
    directory::access::Directory,
    model::ident::{Boot, NodeId},
};

/// A note that a node of the previous version wrote for another node.
#[derive(Clone, Debug)]
pub(crate) struct OldNote {
    key: RecordKey,
    pub(crate) node: NodeId,
    pub(crate) boot: Boot,
    version: Version,
}

impl OldNote {
    pub(crate) const fn key(&self) -> &RecordKey {
        &self.key
    }
}

impl Directory {
    /// A page of the old notes, in the order of keys. Keys of any other form are left out.
    pub(crate) async fn old_notes(
        &self,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<OldNote>> {
        let page = self.records.scan("rev/", after, limit).await?;
        let read = |(key, entry): (RecordKey, Entry)| {
            let mut parts = key.as_str().splitn(4, '/').skip(1);
            let node = NodeId::new(parts.next()?).ok()?;
            let boot = Boot::new(parts.next()?.parse().ok()?);
            Some(OldNote {
                node,
                boot,
                version: entry.version,
                key,
            })
        };
        Ok(page.into_iter().filter_map(read).collect())
    }

    /// Removes a note unless it was written again after it was read.
    pub(crate) async fn remove_old_note(&self, note: &OldNote) -> Result<Deleted> {
        self.records.delete(&note.key, note.version).await
    }
}
