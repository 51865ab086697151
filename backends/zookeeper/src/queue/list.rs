//! Lists the contenders of a queue.

use std::sync::Arc;

use distlock_core::{Moment, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, entry_lost_error, translate},
    nodes::{Node, sequence::contenders_ahead_of},
    session::Session,
};

/// Lists the contenders ahead of a node, in order of arrival. If the node itself is absent, marks
/// the node as removed and returns an error.
pub(crate) async fn list_ahead(
    session: &Arc<Session>,
    node: &Arc<Node>,
    until: Moment,
) -> Result<Vec<String>> {
    let children = list_children(session, &node.parent, until).await?;
    if let Some(ahead) = contenders_ahead_of(&node.child, children) {
        return Ok(ahead);
    }
    // The servers remove a session's nodes a moment before they report the end of the session. So a
    // write first shows whether the session is alive. Only if it is, another client removed this
    // node.
    session
        .ensure_committed_since(session.clock().now(), until)
        .await?;
    session.note_removed(node);
    Err(entry_lost_error(node.loss_reason()))
}

/// Lists the children of a container. A container that does not exist has no children.
pub(crate) async fn list_children(
    session: &Arc<Session>,
    parent: &str,
    until: Moment,
) -> Result<Vec<String>> {
    loop {
        session.wait_connected(until).await?;
        let client = session.client()?;
        match session
            .await_answer(Access::Read, until, client.list_children(parent))
            .await?
        {
            Ok(children) => return Ok(children),
            Err(zk::Error::NoNode) => return Ok(Vec::new()),
            Err(zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(translate(error, Access::Read)),
        }
    }
}
