//! Undoes creations with an unknown outcome.
//!
//! Invariant: a creation that may have happened is either registered as a node, or remembered with
//! the session until it is undone. The end of the session undoes it too, since the node is
//! ephemeral.

use std::{sync::Arc, time::Duration};

use distlock_core::{Moment, OwnerId, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, translate},
    names::contender,
    nodes::UnknownCreation,
    session::Session,
};

/// How long an attempt that timed out is kept for a caller that asks again, before it is undone.
const RETRY_WINDOW: Duration = Duration::from_secs(2);

/// An attempt that is entering a queue. Dropping it undoes a creation that may have happened.
pub(super) struct PendingEntry<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) owner: OwnerId,
    /// The creation that may have happened.
    pub(super) creation: Option<UnknownCreation>,
    /// `true` = the caller will not ask again; otherwise the undo waits for [`RETRY_WINDOW`].
    pub(super) given_up: bool,
}

impl Drop for PendingEntry<'_> {
    fn drop(&mut self) {
        let Some(creation) = self.creation.take() else {
            return;
        };
        if self.session.ended().is_some() {
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
            clean_up(&session, owner).await;
        });
    }
}

/// Finds and deletes the nodes of a creation. `true` = there was one.
async fn undo(session: &Arc<Session>, creation: &UnknownCreation, until: Moment) -> Result<bool> {
    let prefix = contender(creation.id, session.id());
    let mut found = false;
    loop {
        session.wait_connected(until).await?;
        let client = session.client()?;
        // The listing comes after every request that was sent before, and is as new as what a
        // quorum has committed.
        session.barrier_write(&client);
        let listed = client.list_children(&creation.parent);
        let children = match session.answer(Access::Read, until, listed).await? {
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
            .answer(Access::Write, until, client.delete(&path, None))
            .await?
        {
            // List once more, to be sure that this was the only node.
            Ok(()) | Err(zk::Error::NoNode | zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(translate(error, Access::Write)),
        }
    }
}

/// Undoes a creation of this owner whose outcome is unknown. `true` = the node existed.
pub(crate) async fn undo_unknown(
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
    let found = undo(session, &creation, until).await?;
    pending.creation = None;
    Ok(found)
}

/// Undoes a creation that no caller took up again.
async fn clean_up(session: &Arc<Session>, owner: OwnerId) {
    let Some(creation) = session.nodes.take_unknown(owner) else {
        return;
    };
    while session.ended().is_none() {
        let until = session.clock().now() + Duration::from_secs(60);
        match undo(session, &creation, until).await {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "cannot clean up after a lost attempt yet");
                session.clock().sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
