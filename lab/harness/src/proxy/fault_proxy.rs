//! The proxy: accepts connections, and applies the faults that a test requests.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use distlock_core::sync::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::proxy::{
    faults::{Direction, Faults, Flow, IdleLimit, ProxyState},
    forward::Forwarder,
};

/// A proxy in front of one server. Dropping the value stops the proxy and resets its connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    state: Arc<ProxyState>,
    acceptor: tokio::task::JoinHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy on a free loopback port.
    ///
    /// # Errors
    /// Returns an error if there is no free port.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped future leaves no listener and no task.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen for the proxy")?;
        let address = listener.local_addr()?;
        let (faults, seen) = watch::channel(Faults::default());
        let state = Arc::new(ProxyState {
            server: Mutex::new(server),
            swallow_one_reply: AtomicBool::new(false),
            replaced_reply: Mutex::default(),
            connections: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let acceptor = tokio::spawn(accept_connections(listener, seen, Arc::clone(&state)));
        Ok(Self {
            address,
            faults,
            state,
            acceptor,
        })
    }

    /// Returns the address for clients.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that clients have made so far, also of those that were
    /// reset at once.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of times that a client sent bytes after an answer, on all connections
    /// together. This is the number of round trips if each client waits for an answer before its
    /// next request.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.state.round_trips.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that clients and the server have sent so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::SeqCst)
    }

    /// Ends every fault. Stopped bytes are sent now. Connections that lost bytes are reset.
    pub fn pass(&self) {
        self.state.swallow_one_reply.store(false, Ordering::SeqCst);
        *self.state.replaced_reply.lock() = None;
        self.set_flows(Flow::Pass, Flow::Pass);
    }

    /// Delays all bytes by at least `by`, in both directions.
    pub fn delay(&self, by: Duration) {
        self.set_flows(Flow::Delay(by), Flow::Delay(by));
    }

    /// Forwards all bytes a few at a time, with a pause after each piece, in both directions.
    pub fn trickle(&self, pause: Duration) {
        self.set_flows(Flow::Trickle(pause), Flow::Trickle(pause));
    }

    /// Keeps the bytes of one direction in the proxy until [`FaultProxy::pass`].
    pub fn stop(&self, direction: Direction) {
        self.faults.send_modify(|faults| match direction {
            Direction::ToServer => faults.to_server = Flow::Stop,
            Direction::ToClient => faults.to_client = Flow::Stop,
        });
    }

    /// Loses all bytes in both directions. Open connections stay open, and clients can still
    /// connect.
    pub fn black_hole(&self) {
        self.set_flows(Flow::Swallow, Flow::Swallow);
    }

    /// Forgets each connection that carries no bytes for longer than this, as a firewall or load
    /// balancer does: later bytes are lost, and neither end learns of it. New connections are
    /// served as before. [`FaultProxy::pass`] does not end this.
    pub fn forget_idle(&self, after: Duration) {
        self.faults
            .send_modify(|faults| faults.forgets_after = Some(after));
    }

    /// Resets every open connection. Until [`FaultProxy::pass`], also resets each new connection at
    /// once.
    pub fn refuse(&self) {
        self.faults.send_modify(|faults| {
            faults.refuses = true;
            faults.resets += 1;
        });
    }

    /// Resets every open connection. New connections are served as before.
    pub fn reset(&self) {
        self.faults.send_modify(|faults| faults.resets += 1);
    }

    /// Resets the client's end of every open connection. The server's end stays open and silent, so
    /// the server does not notice. New connections are served as before.
    pub fn forsake_clients(&self) {
        self.faults.send_modify(|faults| faults.forsaken += 1);
    }

    /// Forgets every open connection, as a NAT does after a while without data: both ends stay
    /// open, and all later bytes are lost. New connections are served as before.
    pub fn forget(&self) {
        self.faults.send_modify(|faults| faults.forgotten += 1);
    }

    /// Ends one direction of every open connection as if its sender had closed the connection.
    /// Later bytes of that direction are lost, and the other direction stays open. New connections
    /// are served as before.
    pub fn half_close(&self, direction: Direction) {
        self.faults.send_modify(|faults| match direction {
            Direction::ToServer => faults.closed_to_server += 1,
            Direction::ToClient => faults.closed_to_client += 1,
        });
    }

    /// Opens two connections to the server for each new connection, until [`FaultProxy::pass`]. The
    /// server sees a client that repeated an attempt after a lost answer. The first connection
    /// stays silent, and ends together with the second connection.
    pub fn connect_twice(&self) {
        self.faults
            .send_modify(|faults| faults.connect_twice = true);
    }

    /// Resets every open connection, and connects new clients to another server, as after a
    /// failover.
    pub fn redirect(&self, server: SocketAddr) {
        *self.state.server.lock() = server;
        self.reset();
    }

    /// Loses the next bytes from the server, and resets the connection of these bytes. The server
    /// then has carried out a request, and the client does not know the outcome.
    pub fn swallow_one_reply(&self) {
        self.state.swallow_one_reply.store(true, Ordering::SeqCst);
    }

    /// Sends the bytes `by` to the client in place of the next bytes from the server.
    pub fn replace_one_reply(&self, by: impl Into<Vec<u8>>) {
        *self.state.replaced_reply.lock() = Some(by.into());
    }

    fn set_flows(&self, to_server: Flow, to_client: Flow) {
        self.faults.send_modify(|faults| {
            faults.to_server = to_server;
            faults.to_client = to_client;
            faults.refuses = false;
            faults.connect_twice = false;
        });
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

/// Serves each client that connects, until the listener fails or this task is aborted.
async fn accept_connections(
    listener: TcpListener,
    faults: watch::Receiver<Faults>,
    state: Arc<ProxyState>,
) {
    // An abort of this task drops the set, and with the set all connections.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        state.accepted.fetch_add(1, Ordering::SeqCst);
        while connections.try_join_next().is_some() {}
        connections.spawn(serve_connection(client, faults.clone(), Arc::clone(&state)));
    }
}

/// Counts a connection while the connection is open.
struct ConnectionCounter(Arc<ProxyState>);

impl ConnectionCounter {
    fn new(state: &Arc<ProxyState>) -> Self {
        state.connections.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for ConnectionCounter {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve_connection(
    mut client: TcpStream,
    mut faults: watch::Receiver<Faults>,
    state: Arc<ProxyState>,
) {
    let _counter = ConnectionCounter::new(&state);
    // With a zero linger time, closing the connection sends RST. The setting is reversed below if
    // both directions ended with FIN.
    let _ = client.set_zero_linger();
    if faults.borrow().refuses {
        return;
    }
    let (resets, forsaken) = (faults.borrow().resets, faults.borrow().forsaken);
    let forgotten = faults.borrow().forgotten;
    // In a black hole no connection to the server can be opened, so this task waits for the end of
    // the fault.
    let Ok(_) = faults
        .wait_for(|faults| faults.to_server != Flow::Swallow)
        .await
    else {
        return;
    };
    let server = *state.server.lock();
    let connect_twice = faults.borrow().connect_twice;
    let _twin = match connect_twice {
        true => TcpStream::connect(server).await.ok(),
        false => None,
    };
    let Ok(mut upstream) = TcpStream::connect(server).await else {
        return;
    };
    let _ = upstream.set_zero_linger();
    let _ = client.set_nodelay(true);
    let _ = upstream.set_nodelay(true);
    // The halves are borrowed. An owned half sends FIN when it is dropped, and a reset must come
    // without FIN.
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = upstream.split();
    let client_spoke_last = AtomicBool::new(false);
    let idle_limit = IdleLimit::new();
    let requests = Forwarder {
        direction: Direction::ToServer,
        client_spoke_last: &client_spoke_last,
        idle_limit: &idle_limit,
        faults: faults.clone(),
        state: Arc::clone(&state),
    };
    let replies = Forwarder {
        direction: Direction::ToClient,
        client_spoke_last: &client_spoke_last,
        idle_limit: &idle_limit,
        faults: faults.clone(),
        state,
    };
    let both = async {
        tokio::try_join!(
            requests.run(from_client, to_server),
            replies.run(from_server, to_client),
        )
    };
    let is_reset = |faults: &Faults| {
        faults.resets != resets || faults.forsaken != forsaken || faults.forgotten != forgotten
    };
    let ended_cleanly = tokio::select! {
        both = both => both.is_ok(),
        _ = faults.wait_for(is_reset) => false,
    };
    if faults.borrow().forgotten != forgotten {
        // Both connections stay open until the proxy is dropped.
        std::future::pending::<()>().await;
    }
    if faults.borrow().forsaken != forsaken {
        drop(client);
        let _ = tokio::io::copy(&mut upstream, &mut tokio::io::sink()).await;
        return;
    }
    if ended_cleanly {
        for stream in [client, upstream] {
            #[expect(
                deprecated,
                reason = "without a time it does not block, which is what the warning is about"
            )]
            let _ = stream.set_linger(None);
        }
    }
}
