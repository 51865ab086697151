//! What is known and decided about a connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::OwnedSemaphorePermit;

use super::{ConnectionQuota, quota::AddressPermit};

/// What the session's task decides about its connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle {
    pub(super) state: Arc<ConnectionState>,
}

#[derive(Debug)]
pub(super) struct ConnectionState {
    /// Who connected here: a client, or a proxy.
    pub(super) accepted: SocketAddr,
    /// Whose connection a proxy passes on.
    source: OnceLock<SocketAddr>,
    pub(super) opened: AtomicBool,
    pub(super) logged_in: AtomicBool,
    quota: ConnectionQuota,
    /// Given back when somebody logs in.
    pending: Mutex<Option<OwnedSemaphorePermit>>,
    /// Those of its address, the first for as long as it lasts.
    of_address: Mutex<(Option<AddressPermit>, Option<AddressPermit>)>,
    pub(super) abort: AtomicBool,
    _place: OwnedSemaphorePermit,
}

impl ConnectionState {
    /// `None` = there is no place.
    pub(super) fn new(accepted: SocketAddr, quota: ConnectionQuota) -> Option<Self> {
        let (place, pending) = quota.acquire()?;
        Some(Self {
            accepted,
            source: OnceLock::new(),
            opened: AtomicBool::default(),
            logged_in: AtomicBool::default(),
            quota,
            pending: Mutex::new(Some(pending)),
            of_address: Mutex::default(),
            abort: AtomicBool::default(),
            _place: place,
        })
    }

    pub(super) fn acquire_address(&self, address: SocketAddr) -> bool {
        let Some((place, pending)) = self.quota.acquire_for_address(address.ip()) else {
            return false;
        };
        let mut quota = self
            .of_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *quota = (Some(place), Some(pending));
        true
    }

    /// A proxy said whose connection it passes on. `false` = that address has too many.
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
    /// Whose connection it is.
    pub(crate) fn peer(&self) -> SocketAddr {
        *self.state.source.get().unwrap_or(&self.state.accepted)
    }

    /// A proxy said, in the head of a request, whose connection it passes on. `false` = that address
    /// has too many.
    pub(crate) fn admit_source(&self, source: SocketAddr) -> bool {
        self.state.admit_source(source)
    }

    /// The connection speaks its front's protocol.
    pub(crate) fn mark_open(&self) {
        self.state.opened.store(true, Ordering::Release);
    }

    /// Somebody logged in: from now on the session's own limits hold.
    pub(crate) fn mark_logged_in(&self) {
        self.state.logged_in.store(true, Ordering::Release);
        let mut pending = self
            .state
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(pending.take());
        let quota = self.state.of_address.lock();
        drop(quota.unwrap_or_else(PoisonError::into_inner).1.take());
    }

    /// Ends the connection by a reset when it is dropped: nothing of it lingers on this side's port. Whatever is to reach the
    /// client must have been sent before.
    pub(crate) fn abort_on_drop(&self) {
        self.state.abort.store(true, Ordering::Release);
    }
}
