//! The connections of one handle: opened when they are first needed, each to tables that were
//! checked.
//!
//! A connection that is not given back is dropped, because its state is unknown.

use std::sync::{Mutex, PoisonError};

use distlock_core::{Epoch, Error, ErrorKind, Result};
use sqlx::PgConnection;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    connect::{connect, with_connect_timeout},
    context::StoreContext,
    rows::column,
    session::Session,
    tables,
};
use crate::statement_error::{Access, StatementError};

/// A few connections that are lent one by one.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    // A std mutex: it is held to push and to pop only.
    idle: Mutex<Vec<Session>>,
    permits: Semaphore,
    /// Whether commits over these connections must be on the disk before they are answered.
    durable: bool,
}

/// A connection on loan. Unless it is [given back](LentConnection::give_back), it is dropped: its
/// state is unknown.
pub(super) struct LentConnection<'a> {
    pool: &'a ConnectionPool,
    connection: Session,
    _permit: SemaphorePermit<'a>,
}

impl ConnectionPool {
    pub(super) fn new(size: u32, durable: bool) -> Self {
        Self {
            idle: Mutex::default(),
            permits: Semaphore::new(usize::try_from(size).unwrap_or(1).max(1)),
            durable,
        }
    }

    /// A connection, once one is free.
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
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => open(context, self.durable).await?,
        };
        Ok(LentConnection {
            pool: self,
            connection,
            _permit: permit,
        })
    }

    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for connection in idle {
            connection.close().await;
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LentConnection<'_> {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Gives the connection back, unless the outcome shows that it cannot be used again.
    pub(super) fn give_back<T>(
        self,
        outcome: Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let broken = outcome.as_ref().err();
        if let Some(failed) = broken.filter(|failed| failed.meaning.reconnect) {
            // The other idle connections were opened to the same server, which may be gone.
            self.pool.idle().clear();
            if failed.is_timeout() {
                self.connection.abandon();
            }
        } else if !self.pool.permits.is_closed() {
            self.pool.idle().push(self.connection);
        }
        outcome
    }
}

/// A connection to tables that are as the promises need them.
async fn open(context: &StoreContext, durable: bool) -> Result<Session> {
    let opening = async {
        let (mut connection, schema) = connect(context, durable).await?;
        let tables = tables::ready(&mut connection, context, &schema).await?;
        let epoch = epoch(&mut connection, context, &tables).await?;
        context.note(epoch);
        let known = context.schema.get_or_init(|| schema.clone());
        if *known != schema {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the tables are in the schema {known:?}, and there are some in {schema:?} now"
                ),
            ));
        }
        Ok(connection)
    };
    with_connect_timeout(context, opening).await
}

/// The name of the history: the cluster, its timeline, and the tables in it.
async fn epoch(
    connection: &mut PgConnection,
    context: &StoreContext,
    tables: &str,
) -> Result<Epoch> {
    const HISTORY: &str =
        "SELECT system_identifier::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
                             FROM pg_control_system()";
    context.counters.count("open");
    match sqlx::query(HISTORY).fetch_one(connection).await {
        Ok(row) => {
            let (system, timeline): (String, String) = (column(&row, 0)?, column(&row, 1)?);
            Ok(Epoch::new(format!("{system}-{timeline}-{tables}")))
        }
        Err(error) => {
            let failed = StatementError::postgres(error, Access::Read);
            // Hosted servers may hide their timeline. Then a failover is seen only if the tables
            // show it.
            if failed.meaning.kind == ErrorKind::AccessDenied {
                return Ok(Epoch::new(tables));
            }
            Err(context.explain(failed))
        }
    }
}
