//! The connections of one handle. A connection is opened when it is first needed; opening checks
//! the tables.
//!
//! A connection that its borrower does not give back is dropped, because its state is unknown.

use distlock_backend_kit::{Lender, Loan};
use distlock_core::{Epoch, Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::{
    connect::{connect, with_connect_timeout},
    context::StoreContext,
    rows::column,
    session::Session,
    tables,
};
use crate::statement_error::{Access, StatementError};

/// A few connections. Each connection is lent to one caller at a time.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    lender: Lender<Session>,
    /// Whether a commit on these connections must be on the disk before the server answers.
    durable: bool,
}

/// A lent connection. [`LentConnection::give_back`] returns the connection to the pool. Otherwise
/// the connection is dropped, because its state is unknown.
pub(super) struct LentConnection<'a> {
    connection: Session,
    loan: Loan<'a, Session>,
}

impl ConnectionPool {
    pub(super) fn new(size: u32, durable: bool) -> Self {
        Self {
            lender: Lender::new(size, Vec::new()),
            durable,
        }
    }

    /// Waits until a connection is free, and lends it. Opens a new connection if none is open.
    pub(super) async fn lend(&self, context: &StoreContext) -> Result<LentConnection<'_>> {
        let timeout = context.config.statement_timeout;
        let loan = self.lender.lend(&*context.clock, timeout).await?;
        let connection = match loan.take_idle() {
            Some(connection) => connection,
            None => open(context, self.durable).await?,
        };
        Ok(LentConnection { connection, loan })
    }

    pub(super) async fn close(&self) {
        for connection in self.lender.close() {
            connection.close().await;
        }
    }
}

impl LentConnection<'_> {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Returns the connection to the pool, unless `outcome` shows that the connection cannot be
    /// used again.
    pub(super) fn give_back<T>(
        self,
        outcome: Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let broken = outcome.as_ref().err();
        if let Some(failed) = broken.filter(|failed| failed.meaning.reconnect) {
            self.loan.drop_idle();
            if failed.is_timeout() {
                self.connection.abandon();
            }
        } else {
            self.loan.give_back(self.connection);
        }
        outcome
    }
}

/// Opens a connection, checks the tables and notes the epoch.
async fn open(context: &StoreContext, durable: bool) -> Result<Session> {
    let opening = async {
        let (mut connection, schema) = connect(context, durable).await?;
        let tables = tables::ready(&mut connection, context, &schema).await?;
        let epoch = epoch(&mut connection, context, &tables).await?;
        context.epochs.note(epoch);
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

/// The epoch: the identifier of the database cluster, its timeline, and the name of the tables'
/// history.
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
            // A hosted server may hide its timeline. Then the epoch changes only if the name of the
            // tables' history changes, and a failover does not change that name.
            if failed.meaning.kind == ErrorKind::AccessDenied {
                return Ok(Epoch::new(tables));
            }
            Err(context.explain(failed))
        }
    }
}
