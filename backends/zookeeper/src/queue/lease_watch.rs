//! Watches the nodes of one session, and ends leases that were not renewed.
//!
//! The ensemble keeps an ephemeral node as long as its session lives. But a lock must not outlive
//! its lease when its holder stopped renewing. So this task deletes the node when the lease has
//! ended by the clock of this host, and never before. The holder's own deadline is earlier, because
//! it is counted with a margin.

use std::{sync::Arc, time::Duration};

use distlock_core::LossReason;
use tokio::task::JoinSet;
use zookeeper_client::{self as zk, EventType};

use super::delete::delete_in_background;
use crate::{
    error::as_connection_loss,
    nodes::{Node, NodeStatus},
    session::Session,
};

/// How long the report of a loss to a holder is delayed while the cause of the loss is looked for.
const CAUSE_TIMEOUT: Duration = Duration::from_millis(250);

/// Watches the nodes of a session for deletion by other clients, and deletes the nodes of leases
/// that have ended. Runs as long as the session lives.
pub(crate) async fn watch_leases(session: Arc<Session>) {
    let mut watches = JoinSet::new();
    loop {
        let due = session.nodes.take_due_work(session.clock().now());
        for node in due.to_watch {
            watches.spawn(watch_node(Arc::clone(&session), node));
        }
        for node in due.expired {
            if node.mark_gone(LossReason::Expired) {
                tracing::debug!(path = node.path(), "lease ran out, deleting its node");
                session
                    .context()
                    .ended_leases
                    .remember(node.owner, LossReason::Expired);
                delete_in_background(&session, node);
            }
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

/// Watches one node until its owner lets go, and marks it as removed when another client has
/// deleted it.
async fn watch_node(session: Arc<Session>, node: Arc<Node>) {
    let path = node.path();
    let far = session.clock().now() + Duration::from_secs(24 * 3600);
    while !node.has_let_go() {
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
                // The end of the session first: a watch must not be polled once its client was
                // aborted, because it panics then.
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
    // Either another client deleted the node, or the session has ended at the servers, which
    // removes all of its nodes. A waiter fails in the first case and enters the queue again in the
    // second, so find out which of the two happened.
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
