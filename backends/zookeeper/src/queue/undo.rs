//! Undoes creations with an unknown outcome.
//!
//! Invariant: a creation that may have happened is either registered as a node, or stored in the
//! session's tables until it is undone. The node is ephemeral, so the end of the session undoes the
//! creation too.

use std::{sync::Arc, time::Duration};

use distlock_core::{Moment, OwnerId, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, translate},
    names::contender_prefix,
    nodes::UnknownCreation,
    session::Session,
};

/// The time for which the undo of a timed-out attempt is delayed. A caller that asks again in this
/// time resumes the attempt and its node.
const RETRY_WINDOW: Duration = Duration::from_secs(2);

/// An attempt that is entering a queue. Dropping it starts a task that undoes `creation`.
pub(super) struct PendingEntry<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) owner: OwnerId,
    /// The creation that may have happened; `None` = there is nothing to undo.
    pub(super) creation: Option<UnknownCreation>,
    /// Whether the caller will not ask again. If it is `false`, the undo waits for
    /// [`RETRY_WINDOW`].
    pub(super) given_up: bool,
}

impl Drop for PendingEntry<'_> {
    fn drop(&mut self) {
        let Some(creation) = self.creation.take() else {
            return;
        };
        if self.session.end_reason().is_some() {
            return;
        }
        let (session, owner) = (Arc::clone(self.session), self.owner);
        let delay = if self.given_up {
            Duration::ZERO
        } else {
            RETRY_WINDOW
        };
        session.nodes.remember_unknown(owner, creation);
        let task_session = Arc::clone(&session);
        session.spawn(async move {
            let session = task_session;
            session.clock().sleep(delay).await;
            undo_if_not_retried(&session, owner).await;
        });
    }
}

/// Finds and deletes the node of a creation whose outcome is unknown. `true` = there was a node.
async fn delete_created(
    session: &Arc<Session>,
    creation: &UnknownCreation,
    until: Moment,
) -> Result<bool> {
    let prefix = contender_prefix(creation.id, session.id());
    let mut found = false;
    loop {
        session.wait_connected(until).await?;
        let client = session.client()?;
        // The server processes the listing after every request that was sent before it. The listing
        // is as new as the state that a quorum has committed.
        session.send_barrier_write(&client);
        let listed = client.list_children(&creation.parent);
        let children = match session.await_answer(Access::Read, until, listed).await? {
            Ok(children) => children,
            Err(zk::Error::NoNode) => return Ok(found),
            Err(zk::Error::ConnectionLoss) => continue,
            Err(error) => return Err(translate(error, Access::Read)),
        };
        let Some(child) = children.iter().find(|child| child.starts_with(&prefix)) else {
            return Ok(found);
        };
        found = true;
        let path = format!("{}/{child}", creation.parent);
        match session
            .await_answer(Access::Write, until, client.delete(&path, None))
            .await?
        {
            // The queue is listed once more. After a lost connection the node may still exist.
            // After an answer, the listing shows that the attempt has no other node.
            Ok(()) | Err(zk::Error::NoNode | zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(translate(error, Access::Write)),
        }
    }
}

/// Undoes a creation of this owner whose outcome is unknown. `true` = the node existed.
pub(crate) async fn undo_unknown_creation(
    session: &Arc<Session>,
    owner: OwnerId,
    until: Moment,
) -> Result<bool> {
    let Some(creation) = session.nodes.take_unknown(owner) else {
        return Ok(false);
    };
    let mut pending = PendingEntry {
        session,
        owner,
        creation: Some(creation.clone()),
        given_up: true,
    };
    let found = delete_created(session, &creation, until).await?;
    pending.creation = None;
    Ok(found)
}

/// Undoes a creation of this owner, unless a caller has resumed it. Repeats the undo until it is
/// confirmed or the session has ended.
async fn undo_if_not_retried(session: &Arc<Session>, owner: OwnerId) {
    let Some(creation) = session.nodes.take_unknown(owner) else {
        return;
    };
    while session.end_reason().is_none() {
        let until = session.clock().now() + Duration::from_secs(60);
        match delete_created(session, &creation, until).await {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "cannot clean up after a lost attempt yet");
                session.clock().sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
