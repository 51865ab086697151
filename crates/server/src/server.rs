//! A server, from its start to its end.
//!
//! This module must never listen beyond loopback without TLS.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, HolderLabel, Records, Result, Store};
use distlock_listen::{ConnectionListener, ConnectionQuota};
use distlock_wire::{FRAME_BYTES, v1::lock_service_server::LockServiceServer};
use futures_util::stream;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::transport::Server;

use crate::{
    ServerConfig, StateOptions,
    config::config_error,
    memory::Host,
    operations::Operations,
    service::Service,
    session::{Clients, SessionContext, WaiterPlaces},
};

/// Calls of one connection at a time. A session is one call.
const STREAMS_PER_CONNECTION: u32 = 256;
const MAX_HEADERS: u32 = 16 * 1024;
/// Bytes that a client may send before the server takes them.
const WINDOW: u32 = 1024 * 1024;
/// A connection whose client has gone without a word ends after these two times.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server.
#[derive(Debug)]
pub struct LockServer {
    address: SocketAddr,
    context: Arc<SessionContext>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl LockServer {
    /// Binds the address, and serves the store. The store must be open on this runtime.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an option that is not allowed, and for an address that
    /// cannot be bound.
    pub async fn start(config: ServerConfig, store: Store) -> Result<Self> {
        Self::serve(&config, &store, None).await
    }

    /// Binds the address, and serves locks in the memory of this server, with these records.
    ///
    /// # Errors
    /// As [`start`](Self::start), and [`ErrorKind::InvalidConfig`] for a state file that cannot be
    /// used.
    pub async fn start_in_memory(
        config: ServerConfig,
        state: StateOptions,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let max_lease = config.max_lease()?;
        let StateOptions { path, is_new } = state;
        let names = config.limits.names;
        let host = Host::start(&path, is_new, max_lease, names, Arc::clone(&clock)).await?;
        let store = Store::with_clock(host.lock(), records, clock);
        Self::serve(&config, &store, Some(host)).await
    }

    async fn serve(config: &ServerConfig, store: &Store, host: Option<Arc<Host>>) -> Result<Self> {
        let max_lease = config.max_lease()?;
        let (socket, address) = bind(&config.listen).await?;
        let operations = Arc::new(Operations::new(store, max_lease, host));
        let stop = CancellationToken::new();
        let limits = &config.limits;
        let waiters = WaiterPlaces::new(limits.waiters, limits.waiters_per_name);
        let context = Arc::new(SessionContext {
            clients: Arc::new(Clients::new(store.clock())),
            operations,
            calls: Arc::default(),
            most_operations: limits.operations,
            waiters: Arc::new(waiters),
            unnamed: HolderLabel::new("a client without a name")?,
            stop: stop.clone(),
            tasks: TaskTracker::new(),
        });
        let quota = ConnectionQuota::new(config.bounds());
        let listener = ConnectionListener::new(socket, quota, store.clock(), limits.login);
        let service = LockServiceServer::new(Service {
            context: Arc::clone(&context),
        })
        .max_decoding_message_size(FRAME_BYTES)
        .max_encoding_message_size(FRAME_BYTES);
        let connections = stream::unfold(listener, async |mut listener| {
            let connection = listener.accept().await;
            Some((io::Result::Ok(connection), listener))
        });
        let serving = Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_max_header_list_size(MAX_HEADERS)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
            .add_service(service)
            .serve_with_incoming_shutdown(connections, stop.cancelled_owned());
        Ok(Self {
            address,
            context,
            serving: tokio::spawn(serving),
        })
    }

    /// The address that the server listens at.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
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
        self.context.stop.cancel();
        let ended = match ended {
            Some(ended) => ended,
            None => (&mut self.serving).await,
        };
        self.context.tasks.close();
        self.context.tasks.wait().await;
        // Every operation has ended, so the export has all locks as they are.
        if let Some(host) = self.context.operations.host() {
            host.stop().await?;
        }
        let stopped =
            |error: String| Error::new(ErrorKind::Internal, "the server stopped").caused_by(error);
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(stopped(error.to_string())),
            Err(error) => Err(stopped(error.to_string())),
        }
    }
}

impl Drop for LockServer {
    fn drop(&mut self) {
        self.context.stop.cancel();
        self.serving.abort();
    }
}

async fn bind(listen: &str) -> Result<(TcpListener, SocketAddr)> {
    let bound = async {
        let socket = TcpListener::bind(listen).await?;
        let address = socket.local_addr()?;
        io::Result::Ok((socket, address))
    };
    let (socket, address) = bound.await.map_err(|error| {
        let problem = format!("is \"{listen}\", which cannot be bound");
        config_error("listen", &problem).caused_by(error)
    })?;
    if !address.ip().is_loopback() {
        let problem = format!("is {address}, which is beyond loopback, without TLS");
        return Err(config_error("listen", &problem));
    }
    Ok((socket, address))
}
