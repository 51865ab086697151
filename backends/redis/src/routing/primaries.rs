//! The result of connecting to every primary, and the modes of doing so.

use std::{sync::Arc, time::Duration};

use distlock_core::{Error, Moment, Result};

use crate::{config::Endpoint, connection::Connection};

/// The connections to all primaries, and the primaries that cannot be reached.
#[derive(Debug)]
pub(crate) struct Primaries {
    pub(crate) connections: Vec<Arc<Connection>>,
    /// The primaries of a cluster that cannot be reached, each with its error.
    pub(crate) missing: Vec<(Endpoint, Error)>,
}

/// Which handle of a store is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// The first handle. It waits for a slow primary, because the epoch of a cluster is made of the
    /// epochs of all primaries.
    Initial,
    /// A further handle. It does not wait for slow primaries, because leases may depend on it for
    /// their renewal.
    Additional,
}

/// The maximum age of the sentinels' answer that names the primary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaxAge {
    /// The question was sent at this moment or later.
    Since(Moment),
    /// The answer is no older than a fixed fraction of this TTL. `None` = no lease is granted, and
    /// the answer is no older than one second.
    PartOfLease(Option<Duration>),
}

impl Primaries {
    pub(super) const fn of(connections: Vec<Arc<Connection>>) -> Self {
        Self {
            connections,
            missing: Vec::new(),
        }
    }

    /// All connections.
    ///
    /// # Errors
    /// The error of the first primary that cannot be reached.
    pub(super) fn all(self) -> Result<Vec<Arc<Connection>>> {
        match self.missing.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(self.connections),
        }
    }
}
