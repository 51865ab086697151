//! Follows the connection of a session: records each reconnect, checks whether the new connection
//! still belongs to the session, and shows changed credentials on it.
//!
//! Invariant: a new connection counts as verified only after a node that was created on it has
//! shown the session's id.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::Credentials;
use distlock_core::LossReason;
use zookeeper_client as zk;

use super::{
    login::digest,
    state::{ConnectionState, RequestStart, Session},
    tree::probe_session,
};

/// How often a session looks for new credentials while its connection is not lost.
const LOOK: Duration = Duration::from_secs(30);

/// How often the certificate files are read while a connection is lost.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Records each change of the connection's state, until the session ends.
pub(crate) async fn follow_connection(session: Arc<Session>, mut states: zk::StateWatcher) {
    let mut ended = session.ended.subscribe();
    loop {
        let state = tokio::select! {
            state = states.changed() => state,
            _ = ended.wait_for(Option::is_some) => return,
        };
        // The watcher may report a loss and a reconnect as one change, so each change counts as a
        // new connection.
        session.connection.send_modify(|state| {
            state.up = false;
            state.verified = false;
            state.number += 1;
        });
        // Only after the change of the number. `note_answer` compares the number while it holds
        // this mutex, so it either comes first, and its entry is cleared here, or sees the change.
        session.liveness.lock().note_reconnect();
        match state {
            state if state.is_terminated() => {
                session.end(LossReason::SessionLost);
                return;
            }
            zk::SessionState::SyncConnected => {
                // The connection is up and not verified: a server may have given the client a new
                // session, and callers wait until a node shows the id.
                session.connection.send_modify(|state| state.up = true);
                session.spawn(verify_session(Arc::clone(&session)));
            }
            // The client is disconnected, or is connected to a server that refuses writes. The next
            // change is awaited. Meanwhile the client tries one server after the other, with the
            // certificates that it finds at each attempt.
            _ => session.spawn(follow_certificates(Arc::clone(&session))),
        }
    }
}

/// Reads the certificate files again and again until the next change of the connection: the client
/// may be refused because they are replaced later than those of the servers.
async fn follow_certificates(session: Arc<Session>) {
    let mut connection = session.connection.subscribe();
    let mut ended = session.ended.subscribe();
    let number = connection.borrow().number;
    loop {
        session.context.login.refresh_certificates().await;
        tokio::select! {
            _ = connection.wait_for(|state| state.number != number || state.up) => return,
            _ = ended.wait_for(Option::is_some) => return,
            () = session.clock().sleep(READ_AGAIN) => {}
        }
    }
}

/// Checks whether the present connection still belongs to this session. If it does, the connection
/// is marked as verified. If it belongs to another session, this session is ended.
async fn verify_session(session: Arc<Session>) {
    let connection_number = session.connection.borrow().number;
    let current = |state: &ConnectionState| state.number == connection_number && state.up;
    loop {
        if !current(&session.connection.borrow()) || session.end_reason().is_some() {
            return;
        }
        let Ok(client) = session.client() else { return };
        let at = session.clock().now();
        // The probe is a creation and a deletion.
        session.context.requests.add(2);
        match probe_session(&client, session.layout(), session.acls()).await {
            Ok(owner) if owner == session.id => {
                let mut verified = false;
                // The connection may have been lost since the answer. The number is compared in
                // the same step as the change, so a newer connection is never marked.
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

/// Shows each change of the credentials to the servers, until the session ends.
pub(crate) async fn follow_credentials(session: Arc<Session>) {
    let login = &session.context.login;
    if !login.follows_changes() {
        return;
    }
    let mut connection = session.connection.subscribe();
    let mut ended = session.ended.subscribe();
    loop {
        tokio::select! {
            // This cannot fail, because the session owns the sender.
            _ = connection.changed() => {}
            () = session.clock().sleep(LOOK) => {}
            _ = ended.wait_for(Option::is_some) => return,
        }
        match login.current().await {
            Ok(current) => show(&session, current),
            Err(error) => {
                tracing::debug!(
                    %error,
                    "the credentials cannot be read: the session goes on with the last ones"
                );
            }
        }
    }
}

fn show(session: &Session, credentials: Credentials) {
    let Ok(client) = session.client() else { return };
    let mut shown = session.shown.lock();
    if *shown != credentials {
        // The request is sent by this call. Its answer changes nothing, and may take long while the
        // connection is lost.
        drop(client.auth("digest", digest(&credentials).as_bytes()));
        *shown = credentials;
    }
}
