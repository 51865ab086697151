//! The connections of one handle. A connection is opened when it is first needed, and replaced when
//! it has failed.
//!
//! A connection with an answer that was not read to its end is never lent again.
//!
//! Each connection notes whether its last answer was read to the end. A connection with an unread
//! answer carries no further statement.

use std::ops::{Deref, DerefMut};

use distlock_backend_kit::{Lender, Loan};
use distlock_core::{Epoch, Error, ErrorKind, Moment, Result, at_most};
use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, Connection as _, Either, Executor as _, MySql, MySqlConnection,
    mysql::{MySqlQueryResult, MySqlRow},
};

use super::{
    connect::{NewConnection, READ_ONLY, connect, is_read_only, variables_in},
    context::StoreContext,
    errors::MySqlTrouble,
    flavour::Flavour,
    statements::Statement,
    tables,
};
use crate::{
    network::{TEST_AFTER, TEST_LIMIT},
    statement_error::{Access, StatementError, catch_panics},
};

/// A few connections. Each connection is lent to one caller at a time.
#[derive(Debug)]
pub(super) struct ConnectionPool(Lender<ConnectionSlot>);

/// A lent connection. Dropping this value returns the connection to the pool.
#[derive(Debug)]
pub(super) struct LentConnection<'a> {
    slot: ConnectionSlot,
    loan: Loan<'a, ConnectionSlot>,
}

/// The slot for one connection. The slot may be empty.
#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    open: Option<OpenConnection>,
    /// Whether a connection in this slot became unusable since the slot was lent.
    broke: bool,
}

#[derive(Debug)]
pub(crate) struct OpenConnection {
    connection: RawConnection,
    pub(super) flavour: Flavour,
    /// Product and version, for people.
    pub(super) server: String,
    /// The name of the tables' history. Every server with a copy of the tables has the same name.
    pub(super) tables: String,
    pub(super) epoch: Epoch,
    /// Whether statements are prepared on the server.
    prepares: bool,
    /// The largest size of a request in bytes: the server's `max_allowed_packet`.
    pub(super) packet: usize,
    /// Whether the server took no writes when the session was set up.
    read_only: bool,
    /// The time of the last test that the server answers.
    tested: Moment,
}

impl ConnectionPool {
    pub(super) fn new(size: u32, first: ConnectionSlot) -> Self {
        Self(Lender::new(size, vec![first]))
    }

    /// Waits until a connection is free, and lends the most recently used free connection.
    pub(super) async fn lend(&self, context: &StoreContext) -> Result<LentConnection<'_>> {
        let timeout = context.config.statement_timeout;
        let loan = self.0.lend(&*context.common.clock, timeout).await?;
        Ok(LentConnection {
            slot: loan.take_idle().unwrap_or_default(),
            loan,
        })
    }

    pub(super) async fn close(&self, context: &StoreContext) {
        for slot in self.0.close() {
            slot.close(context).await;
        }
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
            self.loan.drop_idle();
        }
        // After an answer that was not read to its end, the driver would return the rest of that
        // answer as the answer to the next statement.
        let good = slot
            .open
            .as_ref()
            .is_some_and(|open| !open.connection.is_spent());
        if good {
            self.loan.give_back(slot);
        }
    }
}

impl ConnectionSlot {
    /// The open connection of this slot. Opens a new connection if the slot is empty or its
    /// connection is unusable.
    pub(super) async fn ready(&mut self, context: &StoreContext) -> Result<&mut OpenConnection> {
        if let Some(open) = &mut self.open
            && (open.connection.is_spent() || !open.is_usable(context).await)
        {
            self.disconnect();
        }
        if self.open.is_none() {
            let opening = OpenConnection::new(context);
            let open = context
                .gate
                .connect(&*context.common.clock, opening)
                .await?;
            context.epochs.note(open.epoch.clone());
            self.open = Some(open);
        }
        match &mut self.open {
            Some(open) => Ok(open),
            None => Err(Error::new(ErrorKind::Internal, "no connection")),
        }
    }

    /// Notes a failure, and returns it. A connection that is unusable after this failure is
    /// dropped.
    pub(super) fn failed(&mut self, failed: StatementError) -> StatementError {
        if failed.meaning.reconnect {
            self.disconnect();
        }
        failed
    }

    /// Drops the connection. The next operation opens a new connection.
    pub(super) fn disconnect(&mut self) {
        self.broke |= self.open.take().is_some();
    }

    async fn close(self, context: &StoreContext) {
        if let Some(open) = self.open {
            let (clock, limit) = (&*context.common.clock, context.config.statement_timeout);
            if let Some(Err(error)) = at_most(clock, limit, open.connection.close()).await {
                tracing::debug!(%error, "a connection did not close cleanly");
            }
        }
    }
}

impl OpenConnection {
    async fn new(context: &StoreContext) -> Result<Self> {
        let NewConnection {
            mut connection,
            variables,
            tables_present,
        } = connect(context).await?;
        let tables = tables::ready(&mut connection, context, tables_present).await?;
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
            read_only: variables.read_only,
            tested: context.common.clock.now(),
        })
    }

    /// Whether the server answered a short time ago or answers now, and takes writes as before. See
    /// [`TEST_AFTER`].
    async fn is_usable(&mut self, context: &StoreContext) -> bool {
        let clock = &*context.common.clock;
        let now = clock.now();
        if now.since(self.tested) <= TEST_AFTER {
            return true;
        }
        let test = READ_ONLY.to_owned();
        let asking = self.connection.exchange(context, test, Access::Read);
        let answer = at_most(clock, TEST_LIMIT, asking).await;
        self.tested = now;
        let variables = answer.and_then(|answer| variables_in(&answer.ok()?.rows).ok());
        variables.is_some_and(|variables| is_read_only(&variables) == self.read_only)
    }

    /// Sends statements in one round trip and reads the results. A text that exceeds the server's
    /// limit is not sent: the server would close the connection, often before the client can read
    /// the error.
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
        context.common.counters.count(operation);
        self.connection.exchange(context, statements, access).await
    }

    /// Sends one statement that changes rows, and reads its result. A frequent statement is sent as
    /// a prepared statement, unless the server has refused to prepare statements.
    pub(super) async fn send_statement(
        &mut self,
        context: &StoreContext,
        operation: &'static str,
        statement: &Statement<'_>,
    ) -> Result<StatementResults, PartialFailure> {
        if statement.is_frequent && self.prepares {
            context.common.counters.count(operation);
            let prepared = statement.prepared();
            let answered = self.connection.read(context, prepared, Access::Write).await;
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

    /// Rolls back a transaction that a failed statement has left open. Returns whether the rollback
    /// succeeded.
    pub(super) async fn roll_back(&mut self, context: &StoreContext) -> bool {
        self.send(context, "rollback", "ROLLBACK".to_owned(), Access::Read)
            .await
            .is_ok()
    }
}

/// A connection. A caller that is cancelled or times out may leave an answer unread on the driver's
/// connection; the next statement would then receive the rest of that answer. So `unread` is set
/// before each statement, and a connection with an unread answer is not used any more.
#[derive(Debug)]
pub(super) struct RawConnection {
    connection: MySqlConnection,
    /// Whether a request was sent whose answer was not read to its end.
    unread: bool,
}

/// The results of the statements of one request, in order, and the rows of all statements.
#[derive(Debug, Default)]
pub(crate) struct StatementResults {
    pub(crate) done: Vec<MySqlQueryResult>,
    pub(crate) rows: Vec<MySqlRow>,
}

/// The error that ended a request.
#[derive(Debug)]
pub(crate) struct PartialFailure {
    pub(crate) failed: StatementError,
    /// The number of statements of the request that were carried out before the error.
    pub(crate) done: usize,
}

impl StatementResults {
    /// The number of changed rows.
    pub(super) fn changed(&self) -> u64 {
        self.done.iter().map(MySqlQueryResult::rows_affected).sum()
    }
}

impl RawConnection {
    pub(super) const fn new(connection: MySqlConnection) -> Self {
        Self {
            connection,
            unread: false,
        }
    }

    /// Whether the connection cannot be used any more.
    pub(super) const fn is_spent(&self) -> bool {
        self.unread
    }

    /// Sends statements in one round trip and reads the results.
    pub(super) async fn exchange(
        &mut self,
        context: &StoreContext,
        statements: String,
        access: Access,
    ) -> Result<StatementResults, PartialFailure> {
        // Safe: the text contains values only as numbers and hexadecimal literals, and the table
        // prefix contains only `[a-z0-9_]`.
        let statements = sqlx::raw_sql(AssertSqlSafe(statements));
        self.read(context, statements, access).await
    }

    /// Sends statements as text, or one prepared statement, and reads the results.
    pub(super) async fn read<'q>(
        &mut self,
        context: &StoreContext,
        statements: impl sqlx::Execute<'q, MySql> + 'q,
        access: Access,
    ) -> Result<StatementResults, PartialFailure> {
        let mut answers = StatementResults::default();
        if self.unread {
            return Err(PartialFailure {
                failed: StatementError::mysql_not_sent(),
                done: 0,
            });
        }
        self.unread = true;
        let reading = async {
            let mut stream = self.connection.fetch_many(statements);
            while let Some(part) = stream.try_next().await? {
                match part {
                    Either::Left(done) => answers.done.push(done),
                    Either::Right(row) => answers.rows.push(row),
                }
            }
            Ok(())
        };
        let (clock, limit) = (&*context.common.clock, context.config.statement_timeout);
        let outcome = match at_most(clock, limit, catch_panics(reading)).await {
            Some(read) => read.map_err(|error| StatementError::mysql(error, access)),
            None => Err(StatementError::mysql_timed_out(access)),
        };
        // An error from the server ends the answer, so that nothing is left unread.
        self.unread = matches!(&outcome, Err(failed) if !failed.is_of_mysql());
        match outcome {
            Ok(()) => Ok(answers),
            Err(failed) => Err(PartialFailure {
                failed,
                done: answers.done.len(),
            }),
        }
    }

    pub(super) async fn close(self) -> Result<(), sqlx::Error> {
        catch_panics(self.connection.close()).await
    }
}
