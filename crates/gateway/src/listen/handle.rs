//! What is known and decided about a connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::OwnedSemaphorePermit;

use super::{Places, places::AddressPlace};

/// What the session's task decides about its connection.
#[derive(Clone, Debug)]
pub(crate) struct LineHandle {
    pub(super) end: Arc<End>,
}

#[derive(Debug)]
pub(super) struct End {
    /// Who connected here: a client, or a proxy.
    pub(super) accepted: SocketAddr,
    /// Whose connection a proxy passes on.
    source: OnceLock<SocketAddr>,
    pub(super) opened: AtomicBool,
    pub(super) logged_in: AtomicBool,
    places: Places,
    /// Given back when somebody logs in.
    pending: Mutex<Option<OwnedSemaphorePermit>>,
    /// Those of its address, the first for as long as it lasts.
    of_address: Mutex<(Option<AddressPlace>, Option<AddressPlace>)>,
    pub(super) abort: AtomicBool,
    _place: OwnedSemaphorePermit,
}

impl End {
    /// `None` = there is no place.
    pub(super) fn new(accepted: SocketAddr, places: Places) -> Option<Self> {
        let (place, pending) = places.take()?;
        Some(Self {
            accepted,
            source: OnceLock::new(),
            opened: AtomicBool::default(),
            logged_in: AtomicBool::default(),
            places,
            pending: Mutex::new(Some(pending)),
            of_address: Mutex::default(),
            abort: AtomicBool::default(),
            _place: place,
        })
    }

    pub(super) fn takes_places_of(&self, address: SocketAddr) -> bool {
        let Some((place, pending)) = self.places.take_for(address.ip()) else {
            return false;
        };
        let mut places = self
            .of_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *places = (Some(place), Some(pending));
        true
    }

    /// A proxy said whose connection it passes on. `false` = that address has too many.
    pub(super) fn comes_from(&self, source: SocketAddr) -> bool {
        if !self.takes_places_of(source) {
            metrics::counter!("distlock_connections_refused_total").increment(1);
            return false;
        }
        let _ = self.source.set(source);
        true
    }
}

impl LineHandle {
    /// Whose connection it is.
    pub(crate) fn peer(&self) -> SocketAddr {
        *self.end.source.get().unwrap_or(&self.end.accepted)
    }

    /// A proxy said, in the head of a request, whose connection it passes on. `false` = that address
    /// has too many.
    pub(crate) fn comes_from(&self, source: SocketAddr) -> bool {
        self.end.comes_from(source)
    }

    /// The connection speaks its front's protocol.
    pub(crate) fn opened(&self) {
        self.end.opened.store(true, Ordering::Release);
    }

    /// Somebody logged in: from now on the session's own limits hold.
    pub(crate) fn logged_in(&self) {
        self.end.logged_in.store(true, Ordering::Release);
        let mut pending = self
            .end
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(pending.take());
        let places = self.end.of_address.lock();
        drop(places.unwrap_or_else(PoisonError::into_inner).1.take());
    }

    /// Ends the connection by a reset when it is dropped: nothing of it lingers on this side's port. Whatever is to reach the
    /// client must have been sent before.
    pub(crate) fn abort_on_drop(&self) {
        self.end.abort.store(true, Ordering::Release);
    }
}
