//! Lists the contenders of a queue.

use std::sync::Arc;

use distlock_core::{Moment, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, entry_removed, translate},
    nodes::{Node, sequence::ahead_of},
    session::Session,
};

/// The contenders ahead of a node, in order of arrival.
pub(crate) async fn list_ahead(
    session: &Arc<Session>,
    node: &Arc<Node>,
    until: Moment,
) -> Result<Vec<String>> {
    let children = list_children(session, &node.parent, until).await?;
    if let Some(ahead) = ahead_of(&node.child, children) {
        return Ok(ahead);
    }
    // The servers remove a session's nodes a moment before they report its end. So a write first
    // shows whether the session is alive.
    session.confirm_since(session.clock().now(), until).await?;
    session.note_removed(node);
    Err(entry_removed())
}

/// The children of a container; empty when the container does not exist.
pub(crate) async fn list_children(
    session: &Arc<Session>,
    parent: &str,
    until: Moment,
) -> Result<Vec<String>> {
    loop {
        session.wait_connected(until).await?;
        let client = session.client()?;
        match session
            .answer(Access::Read, until, client.list_children(parent))
            .await?
        {
            Ok(children) => return Ok(children),
            Err(zk::Error::NoNode) => return Ok(Vec::new()),
            Err(zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(translate(error, Access::Read)),
        }
    }
}
