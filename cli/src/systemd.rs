//! What systemd gives a server, and what it is told: sockets, readiness and the end.
//!
//! Without systemd every function here does nothing.

use distlock_server::Socket;
use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::exit::{Failure, Outcome, code};

/// The sockets that systemd, or a program like it, has made for this process (`LISTEN_FDS`). They
/// can be taken once.
///
/// # Errors
/// A failure of the configuration if one of them is no socket that accepts streams.
pub(crate) fn inherited_sockets() -> Outcome<Vec<Socket>> {
    let mut given = ListenFd::from_env();
    let mut sockets = Vec::new();
    for at in 0..given.len() {
        // The first call leaves the socket where it is, if it is not of TCP.
        let socket = match given.take_tcp_listener(at) {
            Ok(Some(socket)) => Socket::inherit_tcp(socket),
            Ok(None) => continue,
            Err(_) => match given.take_unix_listener(at) {
                Ok(Some(socket)) => Socket::inherit_unix(socket),
                Ok(None) => continue,
                Err(error) => Err(error),
            },
        };
        sockets.push(socket.map_err(|error| {
            let problem = format!("LISTEN_FDS: a socket that was passed on is not used: {error}");
            Failure::new(code::CONFIG, problem)
        })?);
    }
    Ok(sockets)
}

/// Tells that the server serves.
pub(crate) fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// Tells that the server ends.
pub(crate) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd was not notified ({state:?})");
    }
}
