//! A running node, and its end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result};
use distlock_kickout::{Event, KickOut, NodeId};
use serde::Serialize;
use tokio::{sync::broadcast, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{config::Secret, listen::Tls};

/// Time for the servers to finish what is under way, after the sessions have ended.
const FINISH_TIME: Duration = Duration::from_secs(1);

/// Where the node listens, as it is announced: one JSON line.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Ready {
    /// Always `ready`.
    pub event: &'static str,
    /// The node.
    pub node: NodeId,
    /// For WebSocket clients.
    pub listen: SocketAddr,
    /// For raw TCP clients.
    pub tcp_listen: Option<SocketAddr>,
    /// For other nodes.
    pub peer_listen: SocketAddr,
    /// For administrators.
    pub admin_listen: SocketAddr,
    /// The page for people, on the same address.
    pub page: String,
}

/// A node that has its lease and its listeners.
#[derive(Debug)]
#[must_use = "it serves nobody until it runs"]
pub struct Gateway {
    pub(super) ready: Ready,
    pub(super) kick: KickOut,
    pub(super) stop: CancellationToken,
    pub(super) cut: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) servers: JoinSet<Result<()>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) grace: Duration,
    pub(super) tls: Arc<Tls>,
    pub(super) made_token: Option<Secret>,
}

/// The certificates of a node, which go on changing while it runs. All clones are of one node.
#[derive(Clone, Debug)]
pub struct Certificates(Arc<Tls>);

impl Certificates {
    /// Reads the files of the configuration again. New connections use what is in them; those that
    /// are open go on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], naming the file; the node goes on with what it has.
    pub fn reload(&self) -> Result<()> {
        self.0.reload()
    }
}

impl Gateway {
    /// Where it listens.
    #[must_use]
    pub const fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The node's transitions: for the first caller those since the start, for later ones those from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.kick.events()
    }

    /// The admin token that it made because none is configured; another one at each start.
    #[must_use]
    pub const fn made_admin_token(&self) -> Option<&Secret> {
        self.made_token.as_ref()
    }

    /// Its certificates, to be read again when the files have changed.
    #[must_use]
    pub fn certificates(&self) -> Certificates {
        Certificates(Arc::clone(&self.tls))
    }

    /// The flow inside.
    #[must_use]
    pub const fn kick_out(&self) -> &KickOut {
        &self.kick
    }

    /// Serves until `shutdown`; then tells every client to go elsewhere, gives them the grace to leave, and gives the node's
    /// lease back.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when a server broke down. The node is shut down then as well.
    ///
    /// # Cancel safety
    /// Dropping it ends the node at once: connections break, the lease is given back in the background.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let outcome = tokio::select! {
            biased;
            () = shutdown => Ok(()),
            ended = self.servers.join_next() => match ended {
                Some(Ok(Err(error))) => Err(error),
                _ => Err(Error::new(ErrorKind::Internal, "a server ended by itself")),
            },
        };
        // Whoever connects now is denied with the advice to go elsewhere; sessions are told. Peers are served until the end.
        self.kick.shutdown().await;
        self.connections.close();
        let limit = self.grace + FINISH_TIME;
        tokio::select! {
            biased;
            () = self.connections.wait() => {}
            () = self.clock.sleep(limit) => {}
        }
        self.stop.cancel();
        tokio::select! {
            biased;
            () = async { while self.servers.join_next().await.is_some() {} } => {}
            () = self.clock.sleep(FINISH_TIME) => self.servers.abort_all(),
        }
        outcome
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
        self.cut.cancel();
    }
}
