//! The faults of a proxy, and the state that its connections share.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    },
    time::Duration,
};

/// Which way bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) to_server: Flow,
    pub(super) to_client: Flow,
    /// New connections are reset at once.
    pub(super) refuses: bool,
    /// Each new connection has a silent twin at the server.
    pub(super) twins: bool,
    /// Goes up with every [`FaultProxy::reset`].
    pub(super) resets: u64,
    /// Goes up with every [`FaultProxy::forsake_clients`].
    pub(super) forsaken: u64,
    /// Each goes up with every [`FaultProxy::half_close`] of its direction.
    pub(super) closed_to_server: u64,
    pub(super) closed_to_client: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    #[default]
    Pass,
    Delay(Duration),
    /// A few bytes at a time, with this pause after each.
    Trickle(Duration),
    /// Bytes wait, and arrive when the fault is over.
    Stop,
    /// Bytes are gone for ever.
    Swallow,
}

#[derive(Debug)]
pub(super) struct Shared {
    /// Where new connections lead.
    pub(super) server: Mutex<SocketAddr>,
    pub(super) swallow_one_reply: AtomicBool,
    /// What is to arrive instead of the next reply.
    pub(super) other_reply: Mutex<Option<Vec<u8>>>,
    pub(super) connections: AtomicUsize,
    pub(super) round_trips: AtomicU64,
}

impl Shared {
    pub(super) fn other_reply(&self) -> std::sync::MutexGuard<'_, Option<Vec<u8>>> {
        let reply = self.other_reply.lock();
        reply.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn server(&self) -> std::sync::MutexGuard<'_, SocketAddr> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
