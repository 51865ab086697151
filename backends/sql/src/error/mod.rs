//! What a driver's error means: did it happen, did it not, or is that unknown; and is the store or one row at fault.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "sqlite")]
mod sqlite;

use distlock_core::{Error, ErrorKind, batch::Failure};

#[cfg(feature = "mysql")]
pub(crate) use mysql::MySqlTrouble;
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::sqlite_code;

/// What a failed statement meant to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) kind: ErrorKind,
    /// One row of a batch may be the cause: sent singly, the others may succeed.
    pub(crate) one_row: bool,
    /// The connection is of no more use.
    pub(crate) reconnect: bool,
    what: &'static str,
}

impl Meaning {
    const fn of(kind: ErrorKind, what: &'static str) -> Self {
        Self {
            kind,
            one_row: false,
            reconnect: false,
            what,
        }
    }

    const fn one_row(mut self) -> Self {
        self.one_row = true;
        self
    }

    const fn reconnect(mut self) -> Self {
        self.reconnect = true;
        self
    }
}

/// A failed statement.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) meaning: Meaning,
    source: sqlx::Error,
}

impl Failed {
    /// An answer that cannot be read, although the statement was carried out.
    pub(crate) fn corrupt(error: Error) -> Self {
        Self {
            meaning: Meaning::of(error.kind(), "the answer cannot be read"),
            source: sqlx::Error::Decode(Box::new(error)),
        }
    }

    /// The same when an earlier statement of the batch has done a part already.
    pub(crate) fn after(mut self, partly_done: bool) -> Self {
        if partly_done {
            self.meaning.kind = ErrorKind::OutcomeUnknown;
        }
        self
    }

    pub(crate) fn into_error(self) -> Error {
        Error::new(self.meaning.kind, self.meaning.what).caused_by(self.source)
    }

    pub(crate) fn into_failure(self) -> Failure {
        let one_row = self.meaning.one_row;
        let error = self.into_error();
        if one_row {
            Failure::Split(error)
        } else {
            Failure::Whole(error)
        }
    }
}
