//! The tasks that serve a node's listeners.
//!
//! This module owns the tasks. Each task ends when the node stops. A server that fails ends its
//! task with an error.

use std::{sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result};
use distlock_kickout::KickOut;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{AdminContext, serve_admin},
    front::{FrontContext, serve_tcp, serve_websocket},
    listen::ConnectionListener,
    page::PageContext,
    peer::serve_peers,
    send_api::SendApi,
    takeovers::RecentTakeovers,
    token::PeerKey,
};

/// Period of the upkeep of the metrics recorder.
const UPKEEP_PERIOD: Duration = Duration::from_secs(5);
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
        sender: SendApi,
        page: PageContext,
        listener: ConnectionListener,
    ) {
        let stop = self.stop.child_token();
        self.spawn(serve_admin(admin, sender, page, listener, stop));
    }

    pub(super) fn spawn_websocket(&mut self, front: FrontContext, listener: ConnectionListener) {
        let stop = self.stop.child_token();
        self.spawn(serve_websocket(front, listener, stop));
    }

    pub(super) fn spawn_tcp(&mut self, front: FrontContext, listener: ConnectionListener) {
        let stop = self.stop.child_token();
        self.spawn(serve_tcp(front, listener, stop));
    }

    /// Runs the recorder's upkeep, which keeps its histograms small.
    pub(super) fn spawn_upkeep(&mut self, metrics: PrometheusHandle, clock: Arc<dyn Clock>) {
        let stop = self.stop.child_token();
        self.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = clock.sleep(UPKEEP_PERIOD) => metrics.run_upkeep(),
                }
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
        format!("the server on gateway.{key} broke down"),
    )
    .caused_by(error)
}
