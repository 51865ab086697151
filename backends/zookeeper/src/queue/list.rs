//! Lists the contenders of a queue, and reads the holder that is stored in a contender's node.

use std::sync::Arc;

use distlock_core::{HolderInfo, Moment, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, entry_lost_error, translate},
    nodes::{
        Node,
        node_data::{parse_holder, unreadable_holder},
        sequence::contenders_ahead_of,
        token_from_czxid,
    },
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

/// Reads the holder that is stored in the data of a contender's node. Returns `None` when the node
/// is gone.
pub(crate) async fn read_holder(
    session: &Session,
    path: &str,
    until: Moment,
) -> Result<Option<HolderInfo>> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    match session
        .await_answer(Access::Read, until, client.get_data(path))
        .await?
    {
        Ok((data, stat)) => Ok(Some(parse_holder(&data, token_from_czxid(stat.czxid)?))),
        Err(zk::Error::NoNode) => Ok(None),
        // These credentials may not read the data. But the node is in the queue, and every client
        // may read the node's stat, which has the token.
        Err(zk::Error::NoAuth) => {
            let stat = client.check_stat(path);
            let stat = session.await_answer(Access::Read, until, stat).await?;
            let Some(stat) = stat.map_err(|error| translate(error, Access::Read))? else {
                return Ok(None);
            };
            let mut info = unreadable_holder();
            info.token = Some(token_from_czxid(stat.czxid)?);
            Ok(Some(info))
        }
        Err(error) => Err(translate(error, Access::Read)),
    }
}

/// Reads the holder that is stored in a child, for a message to people. Returns `None` when the
/// child is gone or cannot be read: no operation must fail only because the holder is unreadable.
pub(crate) async fn try_read_holder(
    session: &Session,
    parent: &str,
    child: &str,
    until: Moment,
) -> Option<HolderInfo> {
    let path = format!("{parent}/{child}");
    read_holder(session, &path, until).await.ok().flatten()
}
