//! The shared state of one connection, and the handle by which other tasks change it.
//!
//! This module owns the permits of the connection. The permits for connections without a login
//! return at the login, and all other permits return when the last handle is dropped, or when a
//! newer connection takes the place of this one. This module must never read from or write to the
//! connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use futures_util::task::AtomicWaker;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    ConnectionQuota,
    quota::{AddressPermit, Pair},
};

/// A handle by which the session's task decides about its connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle {
    pub(super) state: Arc<ConnectionState>,
}

#[derive(Debug)]
pub(super) struct ConnectionState {
    /// The other end of the TCP connection: a client, or a proxy.
    pub(super) accepted: SocketAddr,
    /// The client whose connection a proxy passes on.
    source: OnceLock<SocketAddr>,
    pub(super) opened: AtomicBool,
    pub(super) logged_in: AtomicBool,
    quota: ConnectionQuota,
    permits: Mutex<Permits>,
    pub(super) abort: AtomicBool,
    /// Whether a newer connection took the place of this one.
    evicted: AtomicBool,
    /// The task of the connection, which an eviction wakes.
    task: AtomicWaker,
}

/// The permits of a connection. The two `pending` permits return at the login.
#[derive(Debug, Default)]
struct Permits {
    _all: Option<OwnedSemaphorePermit>,
    pending: Option<OwnedSemaphorePermit>,
    address: Option<AddressPermit>,
    address_pending: Option<AddressPermit>,
}

impl ConnectionState {
    /// A connection with these permits: of the node, and of its address unless a proxy will name
    /// the address.
    pub(super) fn new(
        accepted: SocketAddr,
        quota: ConnectionQuota,
        (all, pending): Pair<OwnedSemaphorePermit>,
        address: Option<Pair<AddressPermit>>,
    ) -> Self {
        let (address, address_pending) = address.unzip();
        Self {
            accepted,
            source: OnceLock::new(),
            opened: AtomicBool::default(),
            logged_in: AtomicBool::default(),
            quota,
            permits: Mutex::new(Permits {
                _all: Some(all),
                pending: Some(pending),
                address,
                address_pending,
            }),
            abort: AtomicBool::default(),
            evicted: AtomicBool::default(),
            task: AtomicWaker::new(),
        }
    }

    fn lock_permits(&self) -> MutexGuard<'_, Permits> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the connection has not logged in, and still has its place.
    pub(super) fn is_stranger(&self) -> bool {
        self.lock_permits().pending.is_some()
    }

    /// Ends the connection of a stranger. Its permits return at once, not when its task has
    /// noticed. Returns `false` for a connection that is no stranger, which keeps its permits.
    pub(super) fn evict(&self) -> bool {
        let mut permits = self.lock_permits();
        // A login takes this permit under the same lock. So a connection cannot both log in and
        // lose its place.
        if permits.pending.is_none() {
            return false;
        }
        *permits = Permits::default();
        drop(permits);
        self.abort.store(true, Ordering::Release);
        self.evicted.store(true, Ordering::Release);
        self.task.wake();
        true
    }

    /// Whether the connection has lost its place. If it loses its place later, `task` is woken.
    pub(super) fn is_evicted(&self, task: &Waker) -> bool {
        // The waker is stored before the flag is read. Otherwise an eviction between the two would
        // wake nobody.
        self.task.register(task);
        self.evicted.load(Ordering::Acquire)
    }

    /// Takes the permits of the client that a proxy names. Returns `false` when that address has
    /// too many connections.
    pub(super) fn admit_source(&self, source: SocketAddr) -> bool {
        let Some((address, pending)) = self.quota.acquire_for_address(source.ip()) else {
            metrics::counter!("distlock_connections_refused_total").increment(1);
            return false;
        };
        let mut permits = self.lock_permits();
        (permits.address, permits.address_pending) = (Some(address), Some(pending));
        drop(permits);
        let _ = self.source.set(source);
        true
    }
}

impl ConnectionHandle {
    /// The address of the client: the address that a proxy named, or else the other end of the TCP
    /// connection.
    pub(crate) fn peer(&self) -> SocketAddr {
        *self.state.source.get().unwrap_or(&self.state.accepted)
    }

    /// Takes the permits of the client that a proxy names in the head of a request. Returns `false`
    /// when that address has too many connections.
    pub(crate) fn admit_source(&self, source: SocketAddr) -> bool {
        self.state.admit_source(source)
    }

    /// Notes that the client speaks the protocol of its front.
    pub(crate) fn mark_open(&self) {
        self.state.opened.store(true, Ordering::Release);
    }

    /// Marks this connection as logged in. From now on this connection has no login deadline, and
    /// no longer counts as pending in the quota.
    pub(crate) fn mark_logged_in(&self) {
        self.state.logged_in.store(true, Ordering::Release);
        let mut permits = self.state.lock_permits();
        drop((permits.pending.take(), permits.address_pending.take()));
    }

    /// Makes the drop of the connection send a reset, so that the closed connection does not keep
    /// this side's port in use. All bytes for the client must have been sent before, because a
    /// reset discards unsent bytes.
    pub(crate) fn abort_on_drop(&self) {
        self.state.abort.store(true, Ordering::Release);
    }
}
