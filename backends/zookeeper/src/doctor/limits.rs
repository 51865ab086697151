//! Checks each server's limits for sessions and requests. A server does not report its limits, so
//! this module tries each limit on a separate connection.

use std::time::Duration;

use distlock_core::{Health, MAX_VALUE_BYTES, Verdict, at_most};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::{
    error::as_connection_loss,
    session::{
        StoreContext,
        dial::{dial, endpoints},
    },
};

/// The size of the largest request: the largest record value, with room for the other fields.
const LARGEST_REQUEST: usize = MAX_VALUE_BYTES + 4096;

/// The time limit for the check of one server.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The measured limits of one server.
struct Limits {
    /// The session timeout that the server grants when a client requests the timeout of the present
    /// session.
    session: Duration,
    /// Whether the server accepts the largest request.
    takes_largest: bool,
}

/// Tries the limits of these servers, each on a separate connection. `our_timeout` is the timeout
/// of the present session.
pub(crate) async fn check_limits(
    context: &StoreContext,
    our_timeout: Duration,
    servers: impl Iterator<Item = &String>,
    health: &mut Health,
) {
    let tried = servers.map(async |server| {
        let probing = probe_limits(context, our_timeout, server);
        let limits = at_most(&*context.clock, PROBE_TIMEOUT, probing).await;
        (server, limits.flatten())
    });
    let tried = join_all(tried).await;
    let (check, mut wrong, mut untried) = ("limits", false, tried.is_empty());
    for (server, limits) in tried {
        let Some(limits) = limits else {
            untried = true;
            continue;
        };
        let session = limits.session;
        if session < our_timeout {
            wrong = true;
            health.found(
                check,
                Verdict::Fail,
                format!(
                    "{server} lets sessions last {session:?}, and this one has {our_timeout:?}: \
                     when the session moves there, its locks may pass to others before their \
                     holders know; \
                     give all servers the same tickTime and maxSessionTimeout, and restart \
                     clients after lowering them"
                ),
            );
        }
        if !limits.takes_largest {
            wrong = true;
            health.found(
                check,
                Verdict::Warn,
                format!(
                    "{server} closes the connection at a request of {} KiB, and all other \
                     requests on it fail: set jute.maxbuffer=1048575 or more on every server",
                    LARGEST_REQUEST / 1024
                ),
            );
        }
    }
    if !wrong {
        let (verdict, detail) = if untried {
            (
                Verdict::Unknown,
                "not every server could be tried on a connection of its own",
            )
        } else {
            (
                Verdict::Pass,
                "every serving server accepts sessions as long as this one, and the largest record",
            )
        };
        health.found(check, verdict, detail);
    }
}

/// Tries the limits of one server; `None` = the server refused the connection.
async fn probe_limits(
    context: &StoreContext,
    our_timeout: Duration,
    server: &str,
) -> Option<Limits> {
    let credentials = context.login.current().await.ok()?;
    let servers = [server.to_owned()];
    let endpoints = endpoints(&servers, &context.config, &*context.clock).await;
    let group = context.io_thread.new_group();
    let dialled = context
        .io_thread
        .capture_spawns(group, dial(context, &endpoints, our_timeout, &credentials))
        .await;
    let client = dialled.ok()?;
    // The node does not exist. A server that accepts the request answers `NoNode`. A server with a
    // lower limit closes the connection.
    let path = format!("/{}", "x".repeat(LARGEST_REQUEST));
    let looked = client.check_stat(&path).await.map_err(as_connection_loss);
    Some(Limits {
        session: client.session_timeout(),
        takes_largest: !matches!(looked, Err(zk::Error::ConnectionLoss)),
    })
}
