//! Follows the connection of a session: reconnects, and the check that a new connection still
//! carries the session.
//!
//! Invariant: the connection counts as verified only after a node that was created on this very
//! connection has shown the session's id.

use std::{sync::Arc, time::Duration};

use distlock_core::LossReason;
use zookeeper_client as zk;

use super::{
    state::{ConnectionState, RequestStart, Session},
    tree::probe_session,
};
use crate::sync::lock;

/// Follows the state of the connection.
pub(crate) async fn follow(session: Arc<Session>, mut states: zk::StateWatcher) {
    let mut ended = session.ended.subscribe();
    loop {
        let state = tokio::select! {
            state = states.changed() => state,
            _ = ended.wait_for(Option::is_some) => return,
        };
        // Two changes may be seen as one, so any change counts as a new connection.
        session.connection.send_modify(|state| {
            state.up = false;
            state.verified = false;
            state.number += 1;
        });
        lock(&session.liveness).reconnected();
        match state {
            state if state.is_terminated() => {
                session.end(LossReason::SessionLost);
                return;
            }
            zk::SessionState::SyncConnected => {
                session.connection.send_modify(|state| state.up = true);
                session.spawn(verify(Arc::clone(&session)));
            }
            // Disconnected, or connected to a server that refuses writes: wait for the next change.
            _ => {}
        }
    }
}

/// Finds out whether the connection still carries this session.
async fn verify(session: Arc<Session>) {
    let connection_number = session.connection.borrow().number;
    let current = |state: &ConnectionState| state.number == connection_number && state.up;
    loop {
        if !current(&session.connection.borrow()) || session.ended().is_some() {
            return;
        }
        let Ok(client) = session.client() else { return };
        let at = session.clock().now();
        session.context.requests.add(2);
        match probe_session(&client, session.layout(), session.acls()).await {
            Ok(owner) if owner == session.id => {
                let mut verified = false;
                session.connection.send_if_modified(|state| {
                    verified = current(state);
                    state.verified |= verified;
                    verified
                });
                if verified {
                    session.note_answer(
                        RequestStart {
                            at,
                            connection_number,
                        },
                        true,
                    );
                }
                return;
            }
            Ok(other) => {
                tracing::warn!(
                    ours = format_args!("{:#x}", session.id),
                    theirs = format_args!("{other:#x}"),
                    "the ensemble answers for another session than ours"
                );
                session.end(LossReason::SessionLost);
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot verify the session yet");
                session.clock().sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
