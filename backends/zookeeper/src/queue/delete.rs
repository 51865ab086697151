//! Deletes nodes of this session.
//!
//! Invariant: a node that its owner gave up is deleted. If the deletion fails or takes too long, it
//! goes on in the background until it is confirmed or the session has ended. A node that remained
//! would keep every other contender from the lock.

use std::{sync::Arc, time::Duration};

use distlock_core::{Moment, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, translate},
    nodes::Node,
    session::Session,
};

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// The node existed, and this call deleted it.
    Done,
    /// The node did not exist any more.
    AlreadyGone,
}

/// Deletes a node that its owner gave up. If the deletion fails, takes longer than `until`, or the
/// caller's future is dropped, the deletion goes on in the background.
pub(crate) async fn delete_node(
    session: &Arc<Session>,
    node: &Arc<Node>,
    until: Moment,
) -> Result<Deletion> {
    let mut pending = PendingDeletion {
        session,
        node: Some(node),
    };
    let deletion = try_delete(session, node, until).await;
    if deletion.is_ok() {
        pending.node = None;
    }
    deletion
}

/// Deletes a node in the background: repeats until the deletion is confirmed or the session has
/// ended.
pub(crate) fn delete_in_background(session: &Arc<Session>, node: Arc<Node>) {
    let task_session = Arc::clone(session);
    session.spawn(async move {
        let session = task_session;
        let mut pause = Duration::from_millis(50);
        while session.end_reason().is_none() {
            let until = session.clock().now() + Duration::from_secs(60);
            match try_delete(&session, &node, until).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, path = node.path(), "cannot delete our node yet");
                    session.clock().sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    });
}

/// Deletes a node, and repeats the request after a lost connection. After an error the node may
/// still exist.
async fn try_delete(session: &Arc<Session>, node: &Arc<Node>, until: Moment) -> Result<Deletion> {
    let path = node.path();
    let mut asked_before = false;
    let deletion = loop {
        // The node is ephemeral, so the servers remove it with its session.
        if session.end_reason().is_some() {
            break Deletion::AlreadyGone;
        }
        match session.wait_connected(until).await {
            Ok(()) => {}
            Err(_) if session.end_reason().is_some() => break Deletion::AlreadyGone,
            Err(error) => return Err(error),
        }
        let Ok(client) = session.client() else {
            break Deletion::AlreadyGone;
        };
        let sent = session.request_start();
        let deleted = client.delete(&path, None);
        match session.await_answer(Access::Write, until, deleted).await? {
            Ok(()) => {
                session.note_answer(sent, true);
                break Deletion::Done;
            }
            // An earlier request of this loop deleted the node, and the answer to that request was
            // lost.
            Err(zk::Error::NoNode) if asked_before => break Deletion::Done,
            Err(zk::Error::NoNode | zk::Error::SessionExpired | zk::Error::ClientClosed) => {
                break Deletion::AlreadyGone;
            }
            Err(zk::Error::ConnectionLoss) => asked_before = true,
            Err(error) => return Err(translate(error, Access::Write)),
        }
    };
    session.nodes.remove(node);
    Ok(deletion)
}

/// A deletion that is not confirmed. Dropping it continues the deletion in the background.
struct PendingDeletion<'a> {
    session: &'a Arc<Session>,
    /// `None` = the deletion is confirmed.
    node: Option<&'a Arc<Node>>,
}

impl Drop for PendingDeletion<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node {
            delete_in_background(self.session, Arc::clone(node));
        }
    }
}
