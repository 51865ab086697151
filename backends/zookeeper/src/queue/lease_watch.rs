//! Watches the nodes of one session, and ends leases that were not renewed and entries in a queue
//! that nobody waits at.
//!
//! The ensemble keeps an ephemeral node as long as its session lives. But a lock must not outlast
//! its lease after its holder stopped renewing. So this task deletes the node when the lease has
//! ended by the clock of this host, and never earlier. The holder's own deadline is earlier by the
//! margin.
//!
//! In the same way a contender must not keep its entry after its caller stopped polling the future
//! of its acquire: the entry would come first in the queue, and nobody would take the lock. So an
//! entry lasts as long as at every other store, unless the contender keeps it
//! (`wait.rs`).

use std::{sync::Arc, time::Duration};

use distlock_core::LossReason;
use tokio::task::JoinSet;
use zookeeper_client::{self as zk, EventType};

use super::{delete::delete_in_background, undo::undo_creation};
use crate::{
    error::as_connection_loss,
    nodes::{Node, NodeStatus},
    session::Session,
};

/// The time for which the report of a loss is delayed while its cause is looked for.
const CAUSE_TIMEOUT: Duration = Duration::from_millis(250);

/// Watches the nodes of a session for deletion by other clients, and deletes the nodes of expired
/// leases and entries. Runs as long as the session lives.
pub(crate) async fn watch_leases(session: Arc<Session>) {
    let mut watches = JoinSet::new();
    loop {
        let due = session.nodes.take_due_work(session.clock().now());
        for node in due.to_watch {
            watches.spawn(watch_node(Arc::clone(&session), node));
        }
        for node in due.expired {
            if node.mark_expired(session.clock().now()) {
                tracing::debug!(
                    path = node.path(),
                    "a lease or a queue entry expired: its node is deleted"
                );
                session
                    .context()
                    .ended_leases
                    .remember(node.owner, LossReason::Expired);
                delete_in_background(&session, node);
            }
        }
        for creation in due.to_undo {
            session.spawn(undo_creation(Arc::clone(&session), creation));
        }
        let pause = async {
            match due.pause {
                Some(pause) => session.clock().sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = session.wait_for_end() => return,
            () = session.nodes.work_added.notified() => {}
            () = pause => {}
            Some(_) = watches.join_next() => {}
        }
    }
}

/// Watches one node until its owner gives it up. Marks the node as removed when another client has
/// deleted it.
async fn watch_node(session: Arc<Session>, node: Arc<Node>) {
    let path = node.path();
    let far = session.clock().now() + Duration::from_secs(24 * 3600);
    while !node.is_leaving_or_gone() {
        if session.wait_connected(far).await.is_err() {
            return;
        }
        let Ok(client) = session.client() else { return };
        session.context().requests.add(1);
        let asked = client.check_and_watch_stat(&path).await;
        match asked.map_err(as_connection_loss) {
            Ok((Some(stat), _)) if stat.ephemeral_owner != session.id() => break,
            Ok((Some(_), watcher)) => {
                drop(client);
                // The end of the session is checked first. Once the session's client was aborted,
                // polling a watch of it panics.
                let event = tokio::select! {
                    biased;
                    _ = session.wait_for_end() => return,
                    event = watcher.changed() => event,
                };
                match event.event_type {
                    EventType::NodeDeleted => break,
                    EventType::Session => return,
                    _ => {}
                }
            }
            Ok((None, _)) => break,
            Err(zk::Error::ConnectionLoss) => {}
            Err(error) => {
                tracing::debug!(%error, path, "cannot watch our own node");
                return;
            }
        }
    }
    // Either another client deleted the node, or the session has expired, which removes all of its
    // nodes. In the first case a waiter fails; in the second case the waiter enters the queue
    // again. So the task finds out which of the two happened.
    let patience = match node.status() {
        NodeStatus::Held => CAUSE_TIMEOUT,
        _ => session.max_trust(),
    };
    let asked = session.clock().now();
    let _ = session
        .ensure_committed_since(asked, asked + patience)
        .await;
    session.note_removed(&node);
}
