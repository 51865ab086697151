//! The connections of one handle: opened when they are first needed, and again when they broke.
//!
//! A connection that was left in the middle of an answer is never lent again.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Epoch, Error, ErrorKind, Moment, Result};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    context::StoreContext,
    errors::MySqlTrouble,
    flavour::Flavour,
    raw_connection::{PartialFailure, RawConnection, StatementResults},
    server::connect,
    statements::Statement,
    tables,
};
use crate::statement_error::{Access, StatementError};

/// A connection that was idle for longer is tested before it is used: firewalls and servers forget
/// such connections.
const IDLE: Duration = Duration::from_secs(10);

/// A few connections that are lent one by one.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    // A std mutex: it is held to push and to pop only.
    idle: Mutex<Vec<ConnectionSlot>>,
    permits: Semaphore,
}

/// A connection on loan. Dropping it gives the connection back.
#[derive(Debug)]
pub(super) struct LentConnection<'a> {
    pool: &'a ConnectionPool,
    slot: ConnectionSlot,
    _permit: SemaphorePermit<'a>,
}

/// The slot of one connection, which may be empty.
#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    open: Option<OpenConnection>,
    /// Whether a connection of this loan became unusable.
    broke: bool,
}

#[derive(Debug)]
pub(crate) struct OpenConnection {
    connection: RawConnection,
    pub(super) flavour: Flavour,
    /// Product and version, for people.
    pub(super) server: String,
    /// The name of the tables' history, the same on every server that has a copy of them.
    pub(super) tables: String,
    pub(super) epoch: Epoch,
    /// Whether statements are prepared on the server.
    prepares: bool,
    /// The number of bytes that the server takes at once.
    pub(super) packet: usize,
    used: Moment,
}

impl ConnectionPool {
    pub(super) fn new(size: u32, first: ConnectionSlot) -> Self {
        Self {
            idle: Mutex::new(vec![first]),
            permits: Semaphore::new(usize::try_from(size).unwrap_or(1).max(1)),
        }
    }

    /// A connection, once one is free; the most recently used one, if there is a choice.
    pub(super) async fn lend(&self, context: &StoreContext) -> Result<LentConnection<'_>> {
        let permit = tokio::select! {
            biased;
            permit = self.permits.acquire() => permit.map_err(|_| {
                Error::new(ErrorKind::Closed, "the store's handle was closed")
            })?,
            () = context.clock.sleep(context.config.statement_timeout) => {
                return Err(Error::new(ErrorKind::Unavailable, "all connections are in use"));
            }
        };
        Ok(LentConnection {
            slot: self.idle().pop().unwrap_or_default(),
            pool: self,
            _permit: permit,
        })
    }

    pub(super) async fn close(&self, context: &StoreContext) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for slot in idle {
            slot.close(context).await;
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<ConnectionSlot>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for LentConnection<'_> {
    type Target = ConnectionSlot;

    fn deref(&self) -> &ConnectionSlot {
        &self.slot
    }
}

impl DerefMut for LentConnection<'_> {
    fn deref_mut(&mut self) -> &mut ConnectionSlot {
        &mut self.slot
    }
}

impl Drop for LentConnection<'_> {
    fn drop(&mut self) {
        let mut slot = std::mem::take(&mut self.slot);
        if std::mem::take(&mut slot.broke) {
            // The other idle connections were opened to the same server, which may be gone.
            self.pool.idle().clear();
        }
        // A connection that was left in the middle of an answer would take the rest of it for the
        // answer to the next statement.
        let good = slot
            .open
            .as_ref()
            .is_some_and(|open| !open.connection.is_spent());
        if good && !self.pool.permits.is_closed() {
            self.pool.idle().push(slot);
        }
    }
}

impl ConnectionSlot {
    /// The open connection; it is opened first if necessary.
    pub(super) async fn ready(&mut self, context: &StoreContext) -> Result<&mut OpenConnection> {
        if let Some(open) = &mut self.open {
            let idle = context.clock.now().since(open.used) > IDLE;
            if open.connection.is_spent() || (idle && !open.connection.is_alive(context).await) {
                self.disconnect();
            }
        }
        if self.open.is_none() {
            let open = OpenConnection::new(context).await?;
            context.note(&open.epoch);
            self.open = Some(open);
        }
        match &mut self.open {
            Some(open) => Ok(open),
            None => Err(Error::new(ErrorKind::Internal, "no connection")),
        }
    }

    /// Notes a failure: an unusable connection is replaced before the next operation.
    pub(super) fn failed(&mut self, failed: StatementError) -> StatementError {
        if failed.meaning.reconnect {
            self.disconnect();
        }
        failed
    }

    /// Drops the connection: the next operation opens another.
    pub(super) fn disconnect(&mut self) {
        self.broke |= self.open.take().is_some();
    }

    async fn close(self, context: &StoreContext) {
        if let Some(open) = self.open {
            tokio::select! {
                closed = open.connection.close() => {
                    if let Err(error) = closed {
                        tracing::debug!(%error, "a connection did not close cleanly");
                    }
                }
                () = context.clock.sleep(context.config.statement_timeout) => {}
            }
        }
    }
}

impl OpenConnection {
    async fn new(context: &StoreContext) -> Result<Self> {
        let mut connection = connect(context).await?;
        let (variables, tables) = tables::ready(&mut connection, context).await?;
        Ok(Self {
            connection,
            flavour: variables.flavour,
            server: variables.server,
            epoch: Epoch::new(match variables.identity {
                Some(server) => format!("{tables}@{server}"),
                None => tables.clone(),
            }),
            tables,
            prepares: true,
            packet: variables.packet,
            used: context.clock.now(),
        })
    }

    /// Sends statements in one round trip and reads the results. A text that exceeds the server's
    /// limit is not sent: the server would break the connection off, often before its reason can be
    /// read.
    pub(crate) async fn send(
        &mut self,
        context: &StoreContext,
        operation: &'static str,
        statements: String,
        access: Access,
    ) -> Result<StatementResults, PartialFailure> {
        if statements.len() + 1 >= self.packet {
            return Err(PartialFailure {
                failed: StatementError::mysql_too_large(statements.len(), self.packet),
                done: 0,
            });
        }
        context.counters.count(operation);
        let answered = self.connection.exchange(context, statements, access).await;
        self.used = context.clock.now();
        answered
    }

    /// Sends one statement that changes rows, prepared if it is frequent, and reads its result.
    pub(super) async fn send_statement(
        &mut self,
        context: &StoreContext,
        operation: &'static str,
        statement: &Statement<'_>,
    ) -> Result<StatementResults, PartialFailure> {
        if statement.is_frequent && self.prepares {
            context.counters.count(operation);
            let prepared = statement.prepared();
            let answered = self.connection.read(context, prepared, Access::Write).await;
            self.used = context.clock.now();
            match answered {
                Err(broken) if broken.failed.mysql_trouble() == Some(MySqlTrouble::NotPrepared) => {
                    let problem = broken.failed.into_error();
                    tracing::debug!(%problem, "statements are sent as text from now on");
                    self.prepares = false;
                }
                answered => return answered,
            }
        }
        self.send(context, operation, statement.to_text(), Access::Write)
            .await
    }

    /// Ends a transaction that a failed statement has left open. Returns whether that worked.
    pub(super) async fn roll_back(&mut self, context: &StoreContext) -> bool {
        self.send(context, "rollback", "ROLLBACK".to_owned(), Access::Read)
            .await
            .is_ok()
    }
}
