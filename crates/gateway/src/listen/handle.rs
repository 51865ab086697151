//! The shared state of one connection, and the handle by which other tasks change it.
//!
//! This module owns the permits of the connection. The permits for connections without a login
//! return at the login, and all other permits return when the last handle is dropped. This module
//! must never read from or write to the connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::OwnedSemaphorePermit;

use super::{ConnectionQuota, quota::AddressPermit};

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
    /// The permit among connections without a login. The permit returns at the login.
    pending: Mutex<Option<OwnedSemaphorePermit>>,
    /// The permits of the client's address. The first permit lasts as long as the connection, the
    /// second permit until the login.
    address_permits: Mutex<(Option<AddressPermit>, Option<AddressPermit>)>,
    pub(super) abort: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionState {
    /// Returns `None` when no permit is left.
    pub(super) fn new(accepted: SocketAddr, quota: ConnectionQuota) -> Option<Self> {
        let (permit, pending) = quota.acquire()?;
        Some(Self {
            accepted,
            source: OnceLock::new(),
            opened: AtomicBool::default(),
            logged_in: AtomicBool::default(),
            quota,
            pending: Mutex::new(Some(pending)),
            address_permits: Mutex::default(),
            abort: AtomicBool::default(),
            _permit: permit,
        })
    }

    pub(super) fn acquire_address(&self, address: SocketAddr) -> bool {
        let Some((permit, pending)) = self.quota.acquire_for_address(address.ip()) else {
            return false;
        };
        let mut quota = self
            .address_permits
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *quota = (Some(permit), Some(pending));
        true
    }

    /// Takes the permits of the client that a proxy names. Returns `false` when that address has
    /// too many connections.
    pub(super) fn admit_source(&self, source: SocketAddr) -> bool {
        if !self.acquire_address(source) {
            metrics::counter!("distlock_connections_refused_total").increment(1);
            return false;
        }
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
        let mut pending = self
            .state
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(pending.take());
        let quota = self.state.address_permits.lock();
        drop(quota.unwrap_or_else(PoisonError::into_inner).1.take());
    }

    /// Makes the drop of the connection send a reset, so that the closed connection does not keep
    /// this side's port in use. All bytes for the client must have been sent before, because a
    /// reset discards unsent bytes.
    pub(crate) fn abort_on_drop(&self) {
        self.state.abort.store(true, Ordering::Release);
    }
}
