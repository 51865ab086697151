//! What came of connecting to every primary.

use std::{sync::Arc, time::Duration};

use distlock_core::{Error, Moment, Result};

use crate::{config::Endpoint, connection::Connection};

/// What came of connecting to every primary.
#[derive(Debug)]
pub(crate) struct Primaries {
    pub(crate) connections: Vec<Arc<Connection>>,
    /// Primaries of a cluster that cannot be reached, and why.
    pub(crate) missing: Vec<(Endpoint, Error)>,
}

/// Which handle of a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// The first: it waits for a slow primary, because the cluster's epoch is made of those of all
    /// primaries.
    Initial,
    /// A further one. It waits for nobody, because leases depend on it that are to be renewed.
    Additional,
}

/// How old a majority's word may be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaxAge {
    /// It was asked for since this moment.
    Since(Moment),
    /// It is no older than a part of this lease; than a second, where there is no lease.
    PartOfLease(Option<Duration>),
}

impl Primaries {
    pub(super) const fn of(connections: Vec<Arc<Connection>>) -> Self {
        Self {
            connections,
            missing: Vec::new(),
        }
    }

    /// All of them.
    ///
    /// # Errors
    /// Why one of them cannot be reached.
    pub(super) fn all(self) -> Result<Vec<Arc<Connection>>> {
        match self.missing.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(self.connections),
        }
    }
}
