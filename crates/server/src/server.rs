//! A server, from its start to its end.
//!
//! Invariant: no client is served before everything that the options name is in place, and the
//! locks of this server's memory are stored after the last operation has ended.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, HolderLabel, Records, Result, Store, at_most};
use distlock_listen::{
    ConnectionListener, ConnectionQuota, ListenerKind, MetricsPage, Socket, Tls,
};
use distlock_wire::{FRAME_BYTES, v1::lock_service_server::LockServiceServer};
use futures_util::stream::{self, SelectAll};
use tokio::task::{JoinError, JoinHandle};
use tokio_stream::Stream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::transport::Server;
use tower::util::MapRequestLayer;

use crate::{
    ServerConfig, ServerFiles, StateOptions,
    access::Gate,
    front::Front,
    memory::{self, Host},
    operations::Operations,
    pieces::Pieces,
    service::Service,
    session::{Clients, SessionContext, WaiterPlaces},
    standard::{self, Serving},
};

/// Calls of one connection at a time. A session is one call.
const STREAMS_PER_CONNECTION: u32 = 256;
const MAX_HEADERS: u32 = 16 * 1024;
/// Bytes that a client may send before the server takes them.
const WINDOW: u32 = 1024 * 1024;
/// Messages of the greatest length that may arrive at the same time. Most arrive in one piece.
const UNFINISHED_MESSAGES: usize = 64;
/// A connection whose client has gone without a word ends after these two times.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for open connections to end after the stop. Sessions need less.
const DRAIN: Duration = Duration::from_secs(15);

/// A running server.
pub struct LockServer {
    address: Option<SocketAddr>,
    url: String,
    files: ServerFiles,
    context: Arc<SessionContext>,
    health: Serving,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl LockServer {
    /// Binds the sockets, and serves the store. The store must be open on this runtime.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an option that is not allowed, for a file that cannot be
    /// used, and for an address that cannot be bound.
    pub async fn start(mut config: ServerConfig, store: Store) -> Result<Self> {
        let front = Front::open(&mut config, &store.clock()).await?;
        Self::serve(&config, front, &store, None).await
    }

    /// Binds the sockets, and serves locks in the memory of this server, with these records.
    ///
    /// # Errors
    /// As [`start`](Self::start), and [`ErrorKind::InvalidConfig`] for a state file that cannot be
    /// used.
    pub async fn start_in_memory(
        mut config: ServerConfig,
        state: StateOptions,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let max_lease = config.max_lease()?;
        let front = Front::open(&mut config, &clock).await?;
        let StateOptions { path, is_new } = state;
        let host = Host::start(&path, is_new, max_lease, Arc::clone(&clock)).await?;
        host.limit_names(config.limits.names);
        let store = Store::with_clock(host.lock(), records, clock);
        Self::serve(&config, front, &store, Some(host)).await
    }

    /// Checks the options and the files that they name, and changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], naming the option.
    pub async fn check(
        config: &ServerConfig,
        state: Option<&StateOptions>,
        clock: Arc<dyn Clock>,
    ) -> Result<()> {
        config.validate()?;
        ServerFiles::read(config, &clock).await?;
        match state {
            Some(state) => memory::check(&state.path).await,
            None => Ok(()),
        }
    }

    async fn serve(
        config: &ServerConfig,
        front: Front,
        store: &Store,
        host: Option<Arc<Host>>,
    ) -> Result<Self> {
        let clock = store.clock();
        let (address, url) = (front.address(), front.url(config.tls_cert.is_some()));
        // Before the counters are made.
        let page = front.metrics.is_some().then(MetricsPage::install);
        let operations = Arc::new(Operations::new(store, config.max_lease()?, host));
        let stop = CancellationToken::new();
        let gate = Gate {
            keys: front.files.keys.clone(),
            clock: Arc::clone(&clock),
        };
        let limits = config.limits;
        let context = Arc::new(SessionContext {
            clients: Arc::new(Clients::new(Arc::clone(&clock))),
            operations,
            calls: Arc::default(),
            gate: gate.clone(),
            waiters: Arc::new(WaiterPlaces::new(limits.waiters, limits.waiters_per_name)),
            limits,
            unnamed: HolderLabel::new("a client without a name")?,
            stop: stop.clone(),
            tasks: TaskTracker::new(),
        });
        let quota = ConnectionQuota::new(limits.bounds());
        let tls = &front.files.tls;
        let listener = |socket: Socket| {
            ConnectionListener::new(socket, quota.clone(), Arc::clone(&clock), limits.login)
        };
        let connections = front.sockets.into_iter().map(|socket| {
            let listener = listener(socket);
            connections(listener.with_tls(Arc::clone(tls), ListenerKind::Clients))
        });
        let connections: SelectAll<_> = stream::select_all(connections);
        if let (Some(page), Some(socket)) = (page, front.metrics) {
            spawn_metrics(page, listener(socket), Arc::clone(tls), &context);
        }
        let service = LockServiceServer::new(Service {
            context: Arc::clone(&context),
        })
        .max_decoding_message_size(limits.frame_bytes)
        .max_encoding_message_size(FRAME_BYTES);
        let health = Serving::default();
        health.begin().await;
        let pieces = Pieces::new(limits.frame_bytes * UNFINISHED_MESSAGES);
        let serving = Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_max_header_list_size(MAX_HEADERS)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
            .layer(MapRequestLayer::new(move |call| pieces.watch(call)))
            .add_service(service)
            .add_service(standard::health_service(&health, gate.clone()))
            .add_service(standard::reflection_service(gate)?)
            .serve_with_incoming_shutdown(connections, stop.cancelled_owned());
        Ok(Self {
            address,
            url,
            files: front.files,
            context,
            health,
            serving: tokio::spawn(serving),
        })
    }

    /// The address of the first socket of TCP that the server listens at.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The URL by which a client on this host finds the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificates and keys of the server, for reading the files again when they have changed;
    /// `None` if the options name no such file.
    #[must_use]
    pub fn files(&self) -> Option<ServerFiles> {
        self.files.is_some().then(|| self.files.clone())
    }

    /// Serves until `shutdown`. Then it refuses new connections, tells its clients, and waits for
    /// the operations in progress. The locks stay held.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when the server cannot go on. [`ErrorKind::LimitExceeded`] when the
    /// locks of this server's memory cannot be stored: its next start recovers.
    ///
    /// # Cancel safety
    /// A drop of the future stops the server without waiting for operations in progress.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let mut ended = None;
        tokio::select! {
            biased;
            () = shutdown => {}
            served = &mut self.serving => ended = Some(served),
        }
        // A load balancer sends no more clients.
        self.health.end().await;
        self.context.stop.cancel();
        if ended.is_none() {
            let clock = Arc::clone(self.context.operations.clock());
            ended = at_most(&*clock, DRAIN, &mut self.serving).await;
            // The rest of the connections only watch something: their sessions have ended.
            self.serving.abort();
        }
        self.context.tasks.close();
        self.context.tasks.wait().await;
        // Every operation has ended, so the export has all locks as they are.
        if let Some(host) = self.context.operations.host() {
            host.stop().await?;
        }
        ended.map_or(Ok(()), outcome)
    }
}

/// What became of the task that serves.
fn outcome(ended: Result<Result<(), tonic::transport::Error>, JoinError>) -> Result<()> {
    let stopped =
        |error: String| Error::new(ErrorKind::Internal, "the server stopped").caused_by(error);
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(stopped(error.to_string())),
        Err(error) => Err(stopped(error.to_string())),
    }
}

/// The connections of a listener, for ever.
fn connections(
    listener: ConnectionListener,
) -> impl Stream<Item = io::Result<distlock_listen::Connection>> + Send + Unpin {
    Box::pin(stream::unfold(listener, async |mut listener| {
        let connection = listener.accept().await;
        Some((Ok(connection), listener))
    }))
}

/// Serves the page with the metrics until the server stops.
fn spawn_metrics(
    page: MetricsPage,
    listener: ConnectionListener,
    tls: Arc<Tls>,
    context: &Arc<SessionContext>,
) {
    page.describe(env!("CARGO_PKG_VERSION"));
    let (stop, clock) = (context.stop.clone(), Arc::clone(context.operations.clock()));
    let upkeep = page.clone();
    tokio::spawn(async move {
        let _ = stop.run_until_cancelled(upkeep.keep_up(&*clock)).await;
    });
    tokio::spawn(standard::serve_metrics(
        listener,
        page,
        tls,
        Arc::clone(context),
    ));
}

impl fmt::Debug for LockServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockServer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Drop for LockServer {
    fn drop(&mut self) {
        self.context.stop.cancel();
        self.serving.abort();
    }
}
