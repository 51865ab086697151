//! The connections to all primaries, and the modes of opening them.

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

/// The handle of a store that is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// The first handle of the store. Opening it waits for a slow primary, because the epoch of a
    /// cluster is made from the epochs of all primaries.
    Initial,
    /// A further handle. Opening it does not wait for slow primaries, because leases may depend on
    /// this handle for their renewal.
    Additional,
}

/// The maximum age of the round of questions in which the sentinels named the primary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaxAge {
    /// The first question of the round was sent at this moment or later.
    Since(Moment),
    /// The age is at most a fixed fraction of this TTL. With `None` no lease is granted, and the
    /// age is at most one second.
    PartOfLease(Option<Duration>),
}

impl Primaries {
    pub(super) const fn of(connections: Vec<Arc<Connection>>) -> Self {
        Self {
            connections,
            missing: Vec::new(),
        }
    }

    /// Returns all connections.
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
