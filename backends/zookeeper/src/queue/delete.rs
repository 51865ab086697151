//! Deletes nodes of this session.
//!
//! Invariant: a node that was left is deleted, or its deletion goes on in the background until it
//! is confirmed or the session has ended. A remaining node would keep the lock from everybody.

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
    /// The node existed, and this request deleted it.
    Done,
    /// The node was gone before.
    AlreadyGone,
}

/// Deletes a node that was left. Goes on in the background when that takes too long, or when the
/// caller's future is dropped.
pub(crate) async fn delete(
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
        while session.ended().is_none() {
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

async fn try_delete(session: &Arc<Session>, node: &Arc<Node>, until: Moment) -> Result<Deletion> {
    let path = node.path();
    let mut asked_before = false;
    let deletion = loop {
        // An ephemeral node vanishes with its session.
        if session.ended().is_some() {
            break Deletion::AlreadyGone;
        }
        match session.wait_connected(until).await {
            Ok(()) => {}
            Err(_) if session.ended().is_some() => break Deletion::AlreadyGone,
            Err(error) => return Err(error),
        }
        let Ok(client) = session.client() else {
            break Deletion::AlreadyGone;
        };
        let sent = session.request_start();
        let deleted = session.send(|| client.delete(&path, None));
        match session.answer(Access::Write, until, deleted).await? {
            Ok(()) => {
                session.note_answer(sent, true);
                break Deletion::Done;
            }
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

struct PendingDeletion<'a> {
    session: &'a Arc<Session>,
    node: Option<&'a Arc<Node>>,
}

impl Drop for PendingDeletion<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node {
            delete_in_background(self.session, Arc::clone(node));
        }
    }
}
