//! Undoes creations without an answer.
//!
//! Invariant: a creation that may have happened is either registered as a node, or stored in the
//! session's tables until it is undone. The node is ephemeral, so the end of the session undoes the
//! creation too.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::queue_entry::ENTRY_LEASE;
use distlock_core::{Moment, OwnerId, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, entry_expired_error, session_ended_error, translate},
    names::contender_prefix,
    nodes::UnknownCreation,
    session::Session,
};

/// The time for which the undo of a timed-out attempt is delayed. A caller that asks again in this
/// time resumes the attempt and its node.
const RETRY_WINDOW: Duration = Duration::from_secs(2);

/// An attempt that is entering a queue. Dropping it has the lease watch undo a creation that it did
/// not settle.
pub(super) struct PendingEntry<'a> {
    session: &'a Arc<Session>,
    owner: OwnerId,
    /// Whether the session's tables have a creation of this attempt.
    sent: bool,
    /// Whether the caller will not ask again. If it is `false`, the undo waits for
    /// [`RETRY_WINDOW`].
    pub(super) given_up: bool,
}

impl<'a> PendingEntry<'a> {
    pub(super) const fn new(session: &'a Arc<Session>, owner: OwnerId) -> Self {
        Self {
            session,
            owner,
            sent: false,
            given_up: true,
        }
    }

    /// Notes that a creation is sent now, or was sent by an earlier attempt. It is undone when this
    /// attempt has not settled it in time: the caller may keep its future and not poll it any more,
    /// and the node would then keep every other contender from the lock. An attempt that is polled
    /// ends at `until` at the latest.
    pub(super) fn note_creation(&mut self, creation: &UnknownCreation, until: Moment) {
        let undo_at = until.max(self.session.clock().now() + ENTRY_LEASE);
        let nodes = &self.session.nodes;
        nodes.remember_unknown(self.owner, creation.clone(), undo_at);
        self.sent = true;
    }

    /// Ends the undo, because the outcome of the creation is known. An error means that the undo
    /// has begun, so this attempt must not use the node.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.sent = false;
        match self.session.nodes.take_unknown(self.owner) {
            Some(_) => Ok(()),
            // The end of a session empties the tables.
            None if self.session.end_reason().is_some() => Err(session_ended_error()),
            None => Err(entry_expired_error()),
        }
    }
}

impl Drop for PendingEntry<'_> {
    fn drop(&mut self) {
        if self.sent {
            let delay = if self.given_up {
                Duration::ZERO
            } else {
                RETRY_WINDOW
            };
            let undo_at = self.session.clock().now() + delay;
            self.session.nodes.undo_unknown_at(self.owner, undo_at);
        }
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

/// Undoes a creation of this owner that has no answer. `true` = the node existed.
pub(crate) async fn undo_unknown_creation(
    session: &Arc<Session>,
    owner: OwnerId,
    until: Moment,
) -> Result<bool> {
    let Some(creation) = session.nodes.take_unknown(owner) else {
        return Ok(false);
    };
    let mut pending = PendingEntry::new(session, owner);
    pending.note_creation(&creation, until);
    let found = delete_created(session, &creation, until).await?;
    // If the lease watch undoes the creation as well by now, it finds nothing.
    let _ = pending.settle();
    Ok(found)
}

/// Undoes a creation. Repeats the undo until it is confirmed or the session has ended.
pub(super) async fn undo_creation(session: Arc<Session>, creation: UnknownCreation) {
    while session.end_reason().is_none() {
        let until = session.clock().now() + Duration::from_secs(60);
        match delete_created(&session, &creation, until).await {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "cannot clean up after a lost attempt yet");
                session.clock().sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
