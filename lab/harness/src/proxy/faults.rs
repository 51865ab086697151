//! The present faults of a proxy, and the state that its connections share.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use distlock_core::sync::Mutex;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// The present faults. Each connection watches this value for changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) to_server: Flow,
    pub(super) to_client: Flow,
    /// Whether new connections are reset at once.
    pub(super) refuses: bool,
    /// Whether a second, silent connection to the server is opened for each new connection.
    pub(super) connect_twice: bool,
    /// The idle time after which a connection loses all bytes.
    pub(super) forgets_after: Option<Duration>,
    /// The number of calls of [`FaultProxy::reset`](super::FaultProxy::reset).
    pub(super) resets: u64,
    /// The number of calls of [`FaultProxy::forsake_clients`](super::FaultProxy::forsake_clients).
    pub(super) forsaken: u64,
    /// The number of [`FaultProxy::forget`](super::FaultProxy::forget) calls.
    pub(super) forgotten: u64,
    /// The number of [`FaultProxy::half_close`](super::FaultProxy::half_close) calls to the server.
    pub(super) closed_to_server: u64,
    /// The number of [`FaultProxy::half_close`](super::FaultProxy::half_close) calls to the client.
    pub(super) closed_to_client: u64,
}

/// The fault of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    /// There is no fault.
    #[default]
    Pass,
    /// All bytes arrive this much later.
    Delay(Duration),
    /// A few bytes arrive at a time, with this pause after each piece.
    Trickle(Duration),
    /// Bytes stay in the proxy until the fault ends.
    Stop,
    /// Bytes are lost.
    Swallow,
}

/// The state that all connections of a proxy share.
#[derive(Debug)]
pub(super) struct ProxyState {
    /// The server for new connections.
    pub(super) server: Mutex<SocketAddr>,
    pub(super) swallow_one_reply: AtomicBool,
    /// The bytes that replace the next reply.
    pub(super) replaced_reply: Mutex<Option<Vec<u8>>>,
    pub(super) connections: AtomicUsize,
    pub(super) accepted: AtomicU64,
    pub(super) round_trips: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Forgets a connection that was idle for too long, as a firewall does.
#[derive(Debug)]
pub(super) struct IdleLimit {
    last_bytes: Mutex<Instant>,
    is_forgotten: AtomicBool,
}

impl IdleLimit {
    pub(super) fn new() -> Self {
        Self {
            last_bytes: Mutex::new(Instant::now()),
            is_forgotten: AtomicBool::new(false),
        }
    }

    /// Notes bytes of either direction. Returns whether they are lost.
    pub(super) fn loses_bytes(&self, faults: Faults) -> bool {
        let mut last_bytes = self.last_bytes.lock();
        let idle = std::mem::replace(&mut *last_bytes, Instant::now()).elapsed();
        if faults.forgets_after.is_some_and(|limit| idle > limit) {
            self.is_forgotten.store(true, Ordering::SeqCst);
        }
        self.is_forgotten.load(Ordering::SeqCst)
    }
}
