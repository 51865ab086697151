//! Reads the children of a container.

use std::sync::Arc;

use distlock_core::{Moment, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, meaning, out_of_line},
    nodes::{Node, sequence::ahead_of},
    session::Session,
};

/// Who is ahead of a node, first come first.
pub(crate) async fn ahead(
    session: &Arc<Session>,
    node: &Arc<Node>,
    until: Moment,
) -> Result<Vec<String>> {
    let children = children(session, &node.parent, until).await?;
    if let Some(ahead) = ahead_of(&node.child, children) {
        return Ok(ahead);
    }
    // The servers remove a session's nodes a moment before they tell it that it is over.
    session.prove(session.clock().now(), until).await?;
    session.removed(node);
    Err(out_of_line())
}

/// The children of a container; none when there is no such container.
pub(crate) async fn children(
    session: &Arc<Session>,
    parent: &str,
    until: Moment,
) -> Result<Vec<String>> {
    loop {
        session.connected(until).await?;
        let client = session.client()?;
        match session
            .answer(Access::Read, until, client.list_children(parent))
            .await?
        {
            Ok(children) => return Ok(children),
            Err(zk::Error::NoNode) => return Ok(Vec::new()),
            Err(zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(meaning(error, Access::Read)),
        }
    }
}
