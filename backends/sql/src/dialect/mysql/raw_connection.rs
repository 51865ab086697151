//! One connection of the driver, with a note whether its last answer was read to the end.
//!
//! A connection with an unread answer carries no further statement.

use distlock_core::Result;
use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, Connection as _, Either, Executor as _, MySql, MySqlConnection,
    mysql::{MySqlQueryResult, MySqlRow},
};

use super::context::StoreContext;
use crate::{
    driver_panics::catch_panics,
    statement_error::{Access, StatementError},
};

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
        let outcome = tokio::select! {
            read = catch_panics(reading) => {
                read.map_err(|error| StatementError::mysql(error, access))
            }
            () = context.common.clock.sleep(context.config.statement_timeout) => {
                Err(StatementError::mysql_timed_out(access))
            }
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
