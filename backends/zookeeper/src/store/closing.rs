//! Closes a session without taking a lock from a holder that trusts it.
//!
//! Invariant: the session ends at the servers only after its last lease has ended. Until then a
//! holder trusts its lock, so the holder's node must stay.

use std::{sync::Arc, time::Duration};

use distlock_core::LossReason;

use crate::{queue::delete::delete_in_background, session::Session};

/// Gives up every queue entry, waits until no lock is held any more, and closes the session, so
/// that contenders behind its nodes are woken at once. The node of a held lock stays until its
/// lease has ended.
pub(super) async fn close_session(session: &Arc<Session>) {
    give_up_entries_and_wait(session).await;
    let states = session.watch_client_states();
    session.end(LossReason::SessionLost);
    if let Some(mut states) = states {
        let client_closed = async { while !states.changed().await.is_terminated() {} };
        tokio::select! {
            () = client_closed => {}
            () = session.clock().sleep(Duration::from_secs(1)) => {}
        }
    }
}

/// Gives up every queue entry, and waits until the last lease has ended or was released.
async fn give_up_entries_and_wait(session: &Arc<Session>) {
    for node in session.nodes.begin_closing() {
        // The node is deleted now, so that no contender behind it waits for the last lease of the
        // session.
        if node.mark_gone(LossReason::SessionLost) {
            delete_in_background(session, node);
        }
    }
    loop {
        let removed = session.nodes.next_removal();
        if session.end_reason().is_some() || session.nodes.held_nodes().is_empty() {
            return;
        }
        tokio::select! {
            () = removed => {}
            _ = session.wait_for_end() => return,
        }
    }
}
