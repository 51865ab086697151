//! The limits of each server for sessions and requests. A server shows them only when they are
//! tried.

use std::time::Duration;

use distlock_core::{Health, MAX_VALUE_BYTES, Verdict};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::{
    error::as_connection_loss,
    session::{StoreContext, dial::dial},
};

/// The size of the largest request: the largest record and the rest of its request.
const LARGEST: usize = MAX_VALUE_BYTES + 4096;

/// How long one server may take to show its limits.
const PROBE: Duration = Duration::from_secs(2);

/// The limits that a server showed.
struct Limits {
    /// The session timeout it grants to a client that asks for as much as our session has.
    session: Duration,
    /// Whether it accepts the largest request.
    takes_largest: bool,
}

/// Tries these servers, each on a connection of its own.
pub(crate) async fn examine(
    context: &StoreContext,
    ours: Duration,
    servers: impl Iterator<Item = &String>,
    health: &mut Health,
) {
    let tried = servers.map(async |server| {
        let limits = tokio::select! {
            biased;
            limits = limits_of(context, ours, server) => limits,
            () = context.clock.sleep(PROBE) => None,
        };
        (server, limits)
    });
    let tried = join_all(tried).await;
    let (check, mut wrong, mut untold) = ("limits", false, tried.is_empty());
    for (server, limits) in tried {
        let Some(limits) = limits else {
            untold = true;
            continue;
        };
        let session = limits.session;
        if session < ours {
            wrong = true;
            health.found(
                check,
                Verdict::Fail,
                format!(
                    "{server} lets sessions last {session:?}, and this one has {ours:?}: when the \
                     session moves there, its locks may pass to others before their holders know; \
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
                    LARGEST / 1024
                ),
            );
        }
    }
    if !wrong {
        let (verdict, detail) = if untold {
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

async fn limits_of(context: &StoreContext, ours: Duration, server: &str) -> Option<Limits> {
    let mut config = context.config.clone();
    config.servers = vec![server.to_owned()];
    let group = context.io_thread.new_group();
    let dialled = context
        .io_thread
        .capture_spawns(group, dial(&config, ours))
        .await;
    let client = dialled.ok()?;
    // The node does not exist, so a server that reads the request says so.
    let path = format!("/{}", "x".repeat(LARGEST));
    let looked = client.check_stat(&path).await.map_err(as_connection_loss);
    Some(Limits {
        session: client.session_timeout(),
        takes_largest: !matches!(looked, Err(zk::Error::ConnectionLoss)),
    })
}
