//! One connection to the file. The connection is opened when it is first needed, and opened again
//! when the file was replaced or the connection has failed.
//!
//! Before each use, the connection must still lead to the file at the configured path.
//!
//! A caller can keep the future of a read without polling the future. Such a read keeps its
//! connection, and later reads get a new connection, so that no read waits for ever.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{self, Relaxed},
        },
    },
    time::Duration,
};

use distlock_backend_kit::EpochHistory;
use distlock_core::{Clock, Epoch, Error, ErrorKind, Moment, Result, at_most, threads};
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{
    connect::{SetUpError, connect, query, run},
    context::StoreContext,
    file::{self, FileId},
    tables,
};
use crate::statement_error::StatementError;

/// The time limit for other processes that set the file up while this process opens the file.
const SETTING_UP: Duration = Duration::from_secs(5);

/// The busy time-out for a connection on which `BusyRetry` repeats statements: SQLite tries, sleeps
/// for a millisecond, and tries once more. With a long time-out, SQLite itself would repeat, with
/// sleeps of up to 100 ms. Such a process hardly ever gets the write lock while other processes
/// write one transaction after the other.
const SHORT_BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 1";

/// With this setting and a write-ahead log, a commit does not wait for the disk. A crash of the
/// host may lose the last commits, but does not damage the file.
const UNSYNCED: &str = "PRAGMA synchronous = NORMAL";

#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    open: Option<OpenConnection>,
    epochs: EpochHistory,
    /// Whether `BusyRetry` repeats statements on this slot's connections while others write.
    retries_when_busy: bool,
    /// Whether a crash of the host may lose the writes of this slot, so that they need no sync.
    unsynced: bool,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) connection: SqliteConnection,
    pub(super) epoch: Epoch,
    /// Whether two connections of this slot have read different epochs.
    pub(super) history_changed: bool,
    /// Whether the connection must not be used again: it has failed, or a transaction on it was
    /// begun and not ended. An open transaction holds the file's write lock, and the next statement
    /// would become a part of that transaction.
    pub(super) is_spent: bool,
    /// Whether `BusyRetry` repeats statements on this connection while others write.
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

    /// The slot of the connection for hints and queue entries. These need not survive a crash of
    /// the host.
    pub(super) fn hinting() -> Self {
        Self {
            unsynced: true,
            ..Self::writing()
        }
    }

    /// A closed slot, which refuses every use.
    pub(super) fn closed() -> Self {
        Self {
            closed: true,
            ..Self::default()
        }
    }

    /// The connection to the file that is at the path now. Opens a new connection if necessary.
    pub(super) async fn ready(&mut self, context: &StoreContext) -> Result<&mut OpenConnection> {
        if self.closed {
            return Err(Error::new(
                ErrorKind::Closed,
                "the store's handle was closed",
            ));
        }
        // After the path was removed or replaced, an open connection still uses the old file. Other
        // processes use the new file, so that locks in the old file would exclude nobody.
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
            self.epochs.note(open.epoch.clone());
            open.history_changed = self.epochs.changed();
            self.open = Some(open);
        }
        match &mut self.open {
            Some(open) => Ok(open),
            None => Err(Error::new(ErrorKind::Internal, "no connection")),
        }
    }

    /// Takes the connection out of the slot, until [`Self::put_back`] returns the connection. If
    /// the caller is dropped before that, for example with its runtime in the middle of a
    /// transaction, the connection closes. SQLite then rolls the transaction back, and other
    /// processes can write.
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

    /// Notes a failure, and returns it. A connection that is unusable after this failure is
    /// dropped.
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
        let deadline = context.common.clock.now() + SETTING_UP;
        loop {
            match Self::set_up(context).await {
                Err(SetUpError::Busy(_)) if context.common.clock.now() < deadline => {
                    let pause = Duration::from_millis(fastrand::u64(5..25));
                    context.common.clock.sleep(pause).await;
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

    /// Makes `BusyRetry` responsible for the wait for other writers. For a file without a
    /// write-ahead log, SQLite itself keeps waiting: there, a reader delays the commit of a
    /// transaction, and a commit alone cannot be sent again.
    async fn use_short_busy_timeout(&mut self, context: &StoreContext) -> Result<(), SetUpError> {
        let mode: (String,) = query(&mut self.connection, context, "PRAGMA journal_mode").await?;
        if mode.0 == "wal" {
            run(&mut self.connection, context, SHORT_BUSY_TIMEOUT).await?;
            self.retries_when_busy = true;
        }
        Ok(())
    }
}

/// Decides whether a statement is sent again that SQLite refused because another process writes.
/// The repetitions end after `busy_timeout`. Their number is limited too: SQLite sleeps for a real
/// millisecond in each repetition, even if the injected clock of a test stands still.
#[derive(Debug)]
pub(super) struct BusyRetry {
    until: Moment,
    times: u128,
}

impl BusyRetry {
    pub(super) fn new(context: &StoreContext) -> Self {
        let timeout = context.config.busy_timeout;
        Self {
            until: context.common.clock.now() + timeout,
            times: timeout.as_millis(),
        }
    }

    /// Whether the statement that failed on this connection is sent again. Only a failure that has
    /// changed nothing has `meaning.retry`.
    pub(super) fn allows(
        &mut self,
        open: &OpenConnection,
        failed: &StatementError,
        context: &StoreContext,
    ) -> bool {
        if !(failed.meaning.retry && open.retries_when_busy) {
            return false;
        }
        self.times = self.times.saturating_sub(1);
        self.times > 0 && context.common.clock.now() < self.until
    }
}

/// The longest wait of a read for the read before it. Most reads take microseconds.
const READ_WAIT: Duration = Duration::from_secs(1);

/// The connection of all reads. Only one read uses the connection at a time. If that read does not
/// end within [`READ_WAIT`], later reads use a new connection.
#[derive(Debug, Default)]
pub(super) struct ReadConnection {
    // A blocking mutex: no caller holds this mutex across an await.
    slot: distlock_core::sync::Mutex<Arc<Mutex<ConnectionSlot>>>,
    closed: AtomicBool,
}

impl ReadConnection {
    /// Waits for the connection. The caller has the connection until the guard is dropped.
    pub(super) async fn take(&self, clock: &dyn Clock) -> OwnedMutexGuard<ConnectionSlot> {
        loop {
            let slot = Arc::clone(&self.slot.lock());
            match at_most(clock, READ_WAIT, Arc::clone(&slot).lock_owned()).await {
                Some(free) => return free,
                None => self.replace(&slot),
            }
        }
    }

    /// Closes the connection, and refuses later reads. If a read keeps the connection for longer
    /// than [`READ_WAIT`], that connection closes when the read ends.
    pub(super) async fn close(&self, clock: &dyn Clock) {
        self.closed.store(true, Relaxed);
        self.take(clock).await.close().await;
    }

    fn replace(&self, stuck: &Arc<Mutex<ConnectionSlot>>) {
        let mut slot = self.slot.lock();
        if Arc::ptr_eq(&slot, stuck) {
            let next = if self.closed.load(Relaxed) {
                ConnectionSlot::closed()
            } else {
                ConnectionSlot::default()
            };
            *slot = Arc::new(Mutex::new(next));
        }
    }
}
