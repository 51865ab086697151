//! A running node, and its orderly end.
//!
//! This module owns the tasks of all servers. At the end, the node informs the clients first, then
//! waits for their connections, and stops the servers last. The node must never release its lease
//! while a session is active.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result, at_most};
use distlock_kickout::{Event, KickOut, NodeId};
use distlock_listen::{ConnectionListener, MetricsPage, Tls};
use serde::Serialize;
use tokio::{sync::broadcast, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin::{AdminContext, AdminTokens, serve_admin},
    config::Secret,
    front::{FrontContext, serve_tcp, serve_websocket},
    hooks::{HookTasks, Hooks},
    page::{self, PageContext},
    peer::serve_peers,
    send_api::SendApi,
    takeovers::RecentTakeovers,
    token::{LoginKeys, PeerKey},
};

/// Time for the servers to finish requests in progress, after the sessions have ended.
const FINISH_TIME: Duration = Duration::from_secs(1);

/// The addresses of the node, as it announces them in one line of JSON.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Ready {
    /// Always `ready`.
    pub event: &'static str,
    /// The node.
    pub node: NodeId,
    /// The address for WebSocket clients.
    pub listen: SocketAddr,
    /// The address for raw TCP clients.
    pub tcp_listen: Option<SocketAddr>,
    /// The address for other nodes.
    pub peer_listen: SocketAddr,
    /// The address for administrators.
    pub admin_listen: SocketAddr,
    /// The URL of the live page, on the address for administrators.
    pub page: String,
}

/// A node that has its lease and its listeners.
#[derive(Debug)]
#[must_use = "it serves nobody until it runs"]
pub struct Gateway {
    pub(super) ready: Ready,
    pub(super) kick: KickOut,
    pub(super) stop: CancellationToken,
    pub(super) abort_all: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) servers: JoinSet<Result<()>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) grace: Duration,
    pub(super) hook_tasks: HookTasks,
    pub(super) reloader: Reloader,
    pub(super) made_token: Option<Secret>,
}

/// What a running node reads again on request. All clones change the same node.
#[derive(Clone, Debug)]
pub struct Reloader {
    pub(super) tls: Arc<Tls>,
    pub(super) keys: Arc<LoginKeys>,
    pub(super) tokens: Arc<AdminTokens>,
    pub(super) hooks: Hooks,
}

impl Reloader {
    /// Reads the certificates, the public keys of login tokens, the tokens of administrators and
    /// the secrets of web hooks again. New connections use the new certificates; open connections
    /// keep the old certificates, and sessions go on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], naming the file, and [`ErrorKind::Unavailable`] when the file
    /// system or the URL of keys does not answer within five seconds. What could not be read stays
    /// as it was; everything else is new.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn reload(&self) -> Result<()> {
        let (tls, keys, tokens, hooks) = futures_util::join!(
            self.tls.reload(),
            self.keys.reload(),
            self.tokens.reload(),
            self.hooks.reload()
        );
        let mut failed = [tls, keys, tokens, hooks]
            .into_iter()
            .filter_map(Result::err);
        let first = failed.next();
        for error in failed {
            tracing::error!(%error, "another file was not read again");
        }
        first.map_or(Ok(()), Err)
    }
}

impl Gateway {
    /// The addresses of the node.
    #[must_use]
    pub const fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The node's transitions. The first caller gets all events since the start, and a later caller
    /// gets the events from the call on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.kick.events()
    }

    /// The admin token that the node made because the configuration has none. Each start makes
    /// another token.
    #[must_use]
    pub const fn made_admin_token(&self) -> Option<&Secret> {
        self.made_token.as_ref()
    }

    /// For reading certificates, keys and tokens again when they have changed; `None` if the
    /// configuration names no file or URL of such.
    #[must_use]
    pub fn reloader(&self) -> Option<Reloader> {
        let Reloader {
            tls,
            keys,
            tokens,
            hooks,
        } = &self.reloader;
        let any = tls.has_files() || keys.can_reload() || tokens.can_reload();
        let any = any || hooks.can_reload();
        any.then(|| self.reloader.clone())
    }

    /// The kick-out flow of this node.
    #[must_use]
    pub const fn kick_out(&self) -> &KickOut {
        &self.kick
    }

    /// Serves until `shutdown`. Then the node advises every client to reconnect to another node,
    /// waits for the grace, and releases its lease.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when a server failed. The node shuts down in that case, too.
    ///
    /// # Cancel safety
    /// A dropped call ends the node at once: its connections break, and a background task releases
    /// the lease.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let outcome = tokio::select! {
            biased;
            () = shutdown => Ok(()),
            ended = self.servers.join_next() => match ended {
                Some(Ok(Err(error))) => Err(error),
                _ => Err(Error::new(
                    ErrorKind::Internal,
                    "a listener ended before the node was stopped",
                )),
            },
        };
        // During the shutdown a new login is denied with the advice to use another node, and each
        // session gets a notice. Calls of other nodes are answered until the end, because other
        // nodes may still ask about sessions here.
        self.kick.shutdown().await;
        self.connections.close();
        let limit = self.grace + FINISH_TIME;
        at_most(&*self.clock, limit, self.connections.wait()).await;
        self.stop.cancel();
        let finished = async { while self.servers.join_next().await.is_some() {} };
        if at_most(&*self.clock, FINISH_TIME, finished).await.is_none() {
            self.servers.abort_all();
        }
        // Nothing happens any more: all sessions have ended, and no order comes in.
        self.hook_tasks.flush(&*self.clock).await;
        outcome
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
        self.abort_all.cancel();
    }
}

/// The tasks of one node.
pub(super) struct Servers {
    tasks: JoinSet<Result<()>>,
    stop: CancellationToken,
}

impl Servers {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self {
            tasks: JoinSet::new(),
            stop,
        }
    }

    pub(super) fn into_tasks(self) -> JoinSet<Result<()>> {
        self.tasks
    }

    pub(super) fn spawn_peers(
        &mut self,
        kick: KickOut,
        recent: RecentTakeovers,
        key: PeerKey,
        sender: SendApi,
        listener: ConnectionListener,
    ) {
        let serving = serve_peers(kick, recent, key, sender, listener, self.stop.child_token());
        let serving = async move {
            serving
                .await
                .map_err(|error| server_error("peer_listen", error))
        };
        self.tasks.spawn(serving);
    }

    pub(super) fn spawn_admin(
        &mut self,
        admin: AdminContext,
        page: PageContext,
        listener: ConnectionListener,
    ) {
        let stop = self.stop.child_token();
        self.spawn(serve_admin(admin, page::routes(page), listener, stop));
    }

    pub(super) fn spawn_websocket(
        &mut self,
        front: Arc<FrontContext>,
        listener: ConnectionListener,
    ) {
        let stop = self.stop.child_token();
        self.spawn(serve_websocket(front, listener, stop));
    }

    pub(super) fn spawn_tcp(&mut self, front: Arc<FrontContext>, listener: ConnectionListener) {
        let stop = self.stop.child_token();
        self.spawn(serve_tcp(front, listener, stop));
    }

    /// Runs the recorder's upkeep, which keeps its histograms small, and reads login keys again
    /// when tokens name others.
    pub(super) fn spawn_upkeep(
        &mut self,
        metrics: MetricsPage,
        clock: Arc<dyn Clock>,
        keys: Arc<LoginKeys>,
    ) {
        let stop = self.stop.child_token();
        self.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = metrics.keep_up(&*clock) => {}
                () = keys.follow_tokens() => {}
            }
        });
    }

    fn spawn(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            serving.await;
            Ok(())
        });
    }
}

fn server_error(key: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("the listener of gateway.{key} failed"),
    )
    .caused_by(error)
}
