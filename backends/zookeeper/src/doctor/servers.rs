//! Asks each server for its state, outside of any session.

use std::{io, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, at_most};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{config::ZooKeeperConfig, session::dial::connect};

/// The time limit for the answer of one server.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks all servers for their states, and adds the states to the error of a failed attempt to
/// connect. An error of another kind than `Unavailable` is returned unchanged.
pub(crate) async fn add_server_states(
    config: &ZooKeeperConfig,
    clock: &dyn Clock,
    error: Error,
) -> Error {
    if error.kind() != ErrorKind::Unavailable {
        return error;
    }
    let states: Vec<_> = ask_all_servers(config, clock)
        .await
        .into_iter()
        .map(|(server, status)| format!("{server}: {}", status.state.describe()))
        .collect();
    Error::new(
        ErrorKind::Unavailable,
        format!("no session could be opened ({})", states.join("; ")),
    )
    .on("zookeeper")
    .caused_by(error.message().to_owned())
}

/// The answer of one server.
pub(super) struct ServerReport {
    pub(super) state: ServerState,
    pub(super) version: Option<String>,
}

/// The state of a server, derived from its answer.
pub(super) enum ServerState {
    /// No connection could be opened, or no answer came in time. The text is the reason.
    Unreachable(String),
    /// The server accepts connections and does not answer `srvr`.
    Silent,
    /// The server accepts connections and closes them.
    Closed,
    NoQuorum,
    ReadOnly,
    /// The server serves. The text is its mode: leader, follower, observer or standalone.
    Serving(String),
}

impl ServerState {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Unreachable(why) => why.clone(),
            Self::Silent => "connected, but it does not answer `srvr`".into(),
            Self::Closed => {
                "it closes the connection at once: this address has reached its limit of \
                 connections (maxClientCnxns), or the server wants TLS"
                    .into()
            }
            Self::NoQuorum => "it does not serve: no quorum".into(),
            Self::ReadOnly => "it serves reads only: no quorum".into(),
            Self::Serving(mode) => format!("serves as {mode}"),
        }
    }
}

/// Asks all servers at the same time.
pub(super) async fn ask_all_servers<'a>(
    config: &'a ZooKeeperConfig,
    clock: &dyn Clock,
) -> Vec<(&'a String, ServerReport)> {
    let asked = config
        .servers
        .iter()
        .map(async |server| (server, ask_server(config, clock, server).await));
    join_all(asked).await
}

/// Asks one server with `srvr`, the four-letter word that is allowed by default.
async fn ask_server(config: &ZooKeeperConfig, clock: &dyn Clock, server: &str) -> ServerReport {
    let unreachable = |why: String| ServerReport {
        state: ServerState::Unreachable(why),
        version: None,
    };
    let silent = ServerReport {
        state: ServerState::Silent,
        version: None,
    };
    let asked = async {
        let mut answer = String::new();
        match connect(server, clock).await {
            // The port expects TLS, and `srvr` is a plain-text request.
            Ok(_) if config.tls.is_some() => return Ok(None),
            Ok(mut stream) => {
                if stream.write_all(b"srvr").await.is_ok() {
                    let _ = stream.read_to_string(&mut answer).await;
                }
            }
            // The server accepted the connection and closed it at once, which leaves `answer`
            // empty.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(Some(answer))
    };
    let answer = at_most(clock, PROBE_TIMEOUT, asked)
        .await
        .unwrap_or_else(|| Err("no answer within a second".into()));
    match answer {
        Err(why) => unreachable(why),
        Ok(None) => silent,
        Ok(Some(answer)) if answer.is_empty() => ServerReport {
            state: ServerState::Closed,
            version: None,
        },
        Ok(Some(answer)) if answer.contains("not currently serving") => ServerReport {
            state: ServerState::NoQuorum,
            version: None,
        },
        Ok(Some(answer)) => match find_field(&answer, "Mode: ") {
            None => silent,
            Some(mode) => ServerReport {
                state: match mode {
                    "read-only" => ServerState::ReadOnly,
                    mode => ServerState::Serving(mode.to_owned()),
                },
                version: find_field(&answer, "Zookeeper version: ")
                    .and_then(|version| version.split(['-', ',']).next())
                    .map(str::to_owned),
            },
        },
    }
}

/// The rest of the line that starts with this text.
fn find_field<'a>(answer: &'a str, start: &str) -> Option<&'a str> {
    answer
        .lines()
        .find_map(|line| line.strip_prefix(start))
        .map(str::trim)
}
