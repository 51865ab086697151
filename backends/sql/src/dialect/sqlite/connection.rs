//! One connection: opened when it is first needed, and again when the file was replaced or the
//! connection broke.
//!
//! A connection to a file that the path does not lead to any more is never used.

use std::{sync::atomic::Ordering, time::Duration};

use distlock_core::{Epoch, Error, ErrorKind, Result, threads};
use sqlx::{Connection as _, SqliteConnection};

use super::{
    connect::{SetUpError, connect, query, run},
    context::StoreContext,
    file::{self, FileId},
    tables,
};
use crate::statement_error::StatementError;

/// How long opening waits for other processes that set the file up at the same moment.
const SETTING_UP: Duration = Duration::from_secs(5);

/// The busy time-out where `BusyRetry` does the waiting: SQLite
/// asks, sleeps for a millisecond, and asks once more. SQLite's own waiting sleeps longer each
/// time, up to 100 ms, and loses against processes that write one transaction after the other.
const SHORT_BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 1";

/// With a write-ahead log, a commit then waits for no disk. A crash of the host may undo the last
/// commits, and damages nothing.
const UNSYNCED: &str = "PRAGMA synchronous = NORMAL";

#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    open: Option<OpenConnection>,
    /// The epoch of the last connection.
    epoch: Option<Epoch>,
    history_changed: bool,
    /// Whether `BusyRetry` waits for other writers on this
    /// connection.
    retries_when_busy: bool,
    /// Whether its writes may be lost when the host crashes, so that they need no sync.
    unsynced: bool,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) connection: SqliteConnection,
    pub(super) epoch: Epoch,
    /// Whether an earlier connection of this slot found another history.
    pub(super) history_changed: bool,
    /// It cannot be used again: it broke, or a transaction was begun and not ended. Such a
    /// connection holds the file's write lock, and the next statement would become a part of that
    /// transaction.
    pub(super) is_spent: bool,
    /// Whether `BusyRetry` waits for other writers.
    pub(super) retries_when_busy: bool,
    file: FileId,
}

impl ConnectionSlot {
    /// The slot of the connection that writes.
    pub(super) fn writing() -> Self {
        Self {
            retries_when_busy: true,
            ..Self::default()
        }
    }

    /// The slot of the connection for hints and queue entries, which need not survive a crash.
    pub(super) fn hinting() -> Self {
        Self {
            unsynced: true,
            ..Self::writing()
        }
    }

    /// A slot that refuses everything.
    pub(super) fn closed() -> Self {
        Self {
            closed: true,
            ..Self::default()
        }
    }

    /// The connection to the file that the path leads to now.
    pub(super) async fn ready(&mut self, context: &StoreContext) -> Result<&mut OpenConnection> {
        if self.closed {
            return Err(Error::new(
                ErrorKind::Closed,
                "the store's handle was closed",
            ));
        }
        // A file that was removed or replaced still exists, unseen by other processes: locks in it
        // would exclude nobody.
        let same = match &self.open {
            Some(open) => {
                matches!(FileId::of(&context.path), Ok(Some(file)) if file == open.file)
            }
            None => false,
        };
        if !same {
            self.open = None;
            let mut open = OpenConnection::new(context).await?;
            if self.retries_when_busy {
                open.use_short_busy_timeout(context)
                    .await
                    .map_err(SetUpError::into_error)?;
            }
            if self.unsynced {
                let unsynced = run(&mut open.connection, context, UNSYNCED).await;
                unsynced.map_err(SetUpError::into_error)?;
            }
            let before = self.epoch.replace(open.epoch.clone());
            self.history_changed |= before.is_some_and(|before| before != open.epoch);
            open.history_changed = self.history_changed;
            self.open = Some(open);
        }
        match &mut self.open {
            Some(open) => Ok(open),
            None => Err(Error::new(ErrorKind::Internal, "no connection")),
        }
    }

    /// Takes the connection out of the slot until it is [put back](Self::put_back). If it is not
    /// put back, because a transaction broke off or the runtime ended in the middle of one, the
    /// connection closes, SQLite rolls back, and the file is free for others.
    pub(super) async fn take(&mut self, context: &StoreContext) -> Result<OpenConnection> {
        self.ready(context).await?;
        self.open
            .take()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "no connection"))
    }

    pub(super) fn put_back(&mut self, open: OpenConnection) {
        if !open.is_spent {
            self.open = Some(open);
        }
    }

    /// Notes a failure: an unusable connection is replaced before the next operation.
    pub(super) fn failed(&mut self, failed: StatementError) -> StatementError {
        if failed.meaning.reconnect {
            self.open = None;
        }
        failed
    }

    pub(super) async fn close(&mut self) {
        self.closed = true;
        if let Some(open) = self.open.take() {
            open.close().await;
        }
    }
}

impl OpenConnection {
    pub(super) async fn new(context: &StoreContext) -> Result<Self> {
        let (mut config, path) = (context.config.clone(), context.path.clone());
        if context.was_opened() {
            if let Ok(None) = FileId::of(&path) {
                return Err(file::wrong(&path, "was removed while it was in use"));
            }
            config.migrate = false;
        }
        threads::blocking(move || file::prepare(&config, &path)).await??;
        let deadline = context.clock.now() + SETTING_UP;
        loop {
            match Self::set_up(context).await {
                Err(SetUpError::Busy(_)) if context.clock.now() < deadline => {
                    let pause = Duration::from_millis(fastrand::u64(5..25));
                    context.clock.sleep(pause).await;
                }
                Err(SetUpError::Busy(failed)) => return Err(failed.into_error()),
                Err(SetUpError::Wrong(error)) => return Err(error),
                Ok(open) => {
                    context.was_opened.store(true, Ordering::Release);
                    return Ok(open);
                }
            }
        }
    }

    pub(super) async fn close(self) {
        if let Err(error) = self.connection.close().await {
            tracing::debug!(%error, "a connection did not close cleanly");
        }
    }

    async fn set_up(context: &StoreContext) -> Result<Self, SetUpError> {
        let gone = || file::wrong(&context.path, "was removed while it was being opened");
        let file = FileId::of(&context.path)
            .map_err(|error| file::wrong(&context.path, "cannot be used").caused_by(error))?
            .ok_or_else(gone)?;
        let mut connection = connect(context).await?;
        let epoch = tables::ready(&mut connection, context).await?;
        Ok(Self {
            connection,
            epoch: Epoch::new(epoch),
            history_changed: false,
            is_spent: false,
            retries_when_busy: false,
            file,
        })
    }

    /// Leaves waiting for other writers to `BusyRetry`. A file
    /// without a write-ahead log keeps SQLite's own waiting: there, a reader delays the commit of a
    /// transaction, and a commit cannot be sent again.
    async fn use_short_busy_timeout(&mut self, context: &StoreContext) -> Result<(), SetUpError> {
        let mode: (String,) = query(&mut self.connection, context, "PRAGMA journal_mode").await?;
        if mode.0 == "wal" {
            run(&mut self.connection, context, SHORT_BUSY_TIMEOUT).await?;
            self.retries_when_busy = true;
        }
        Ok(())
    }
}
