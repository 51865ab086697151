//! What systemd gives a process, and what it is told: sockets, readiness, a status and the end.
//!
//! Without systemd every function here does nothing.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    process,
    time::Duration,
};

use clap::{Args, ValueEnum};
use distlock::LockName;
use distlock_server::Socket;
use listenfd::ListenFd;

use crate::{
    exit::{Failure, Outcome, code},
    held::Held,
};

/// The variable that names the socket for notifications.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The longest time that a notification may take. The thread that waits for it may be the one that
/// renews a lock.
const SEND_LIMIT: Duration = Duration::from_millis(200);
/// The variables that hold the id of the process that they are meant for.
const ADDRESSED: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];

/// The moment at which a command of this tool is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ready {
    Held,
    Waiting,
    Command,
}

/// The option of commands that run another one under a lock.
#[derive(Args, Debug)]
pub(crate) struct ReadyOption {
    /// When a service of Type=notify is ready: when the lock is held, when this process waits for
    /// it, or when the command says so
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t = Ready::Held,
    )]
    ready: Ready,
}

impl ReadyOption {
    /// Tells that this process begins to wait for a lock.
    pub(crate) fn notify_waiting(&self, name: &LockName) {
        self.notify(Ready::Waiting, &format!("waiting for {name:?}"));
    }

    /// Tells that this process holds a lock. Its command starts afterwards, so that the status of
    /// the command is not replaced.
    pub(crate) fn notify_held(&self, lock: Held<'_>) {
        let status = format!("holds {:?}, token {}", lock.name(), lock.token());
        self.notify(Ready::Held, &status);
    }

    fn notify(&self, reached: Ready, status: &str) {
        let ready = if self.ready == reached { READY } else { "" };
        notify(&format!("{ready}{}", status_line(status)));
    }
}

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

const READY: &str = "READY=1\n";

/// Tells that this process is ready.
pub(crate) fn notify_ready() {
    notify(READY);
}

/// Tells that this process ends.
pub(crate) fn notify_stopping() {
    notify("STOPPING=1\n");
}

/// Tells what this process does.
pub(crate) fn notify_status(status: &str) {
    notify(&status_line(status));
}

/// Whether notifications are wanted.
pub(crate) fn wants_notifications() -> bool {
    env::var_os(NOTIFY_SOCKET).is_some_and(|path| !path.is_empty())
}

/// The line of a status. What others have written must not add lines, which systemd would obey.
fn status_line(status: &str) -> String {
    format!("STATUS={}\n", status.replace(char::is_control, " "))
}

fn notify(lines: &str) {
    if !wants_notifications() {
        return;
    }
    if let Err(error) = send(lines) {
        let lines = lines.trim_end();
        tracing::warn!(%error, "systemd was not notified ({lines})");
    }
}

/// Sends one datagram. Its receiver may be slow to make room for it.
fn send(lines: &str) -> io::Result<()> {
    let path = env::var_os(NOTIFY_SOCKET).unwrap_or_default();
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    socket.send_to_addr(lines.as_bytes(), &address).map(drop)
}

/// The variables of systemd that are meant for this process alone. A command that inherits them
/// takes them for those of another process, and finds no socket.
pub(crate) fn variables_of_this_process() -> Vec<&'static str> {
    let names_it = |variable: &&str| {
        let id = env::var(variable).ok().and_then(|id| id.parse().ok());
        id == Some(process::id())
    };
    ADDRESSED.into_iter().filter(names_it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line() {
        let line = status_line("held by eve\nMAINPID=1\r\tX");
        assert_eq!(line, "STATUS=held by eve MAINPID=1  X\n");
    }
}
