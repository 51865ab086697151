//! One batch in flight, and the steps that all kinds share.
//!
//! Every answer is read to its end, because SQLite commits only there.

use std::collections::HashMap;

use distlock_backend_kit::batch::Reply;
use distlock_core::{Error, ErrorKind, FencingToken, LockName, Result};
use sqlx::{Sqlite, query::Query, sqlite::SqliteArguments, sqlite::SqliteRow};

use crate::{
    dialect::{
        LockRow,
        sqlite::{
            busy_retry::BusyRetry,
            connection::OpenConnection,
            context::{ClockReadings, StoreContext},
            lookup::read_rows,
            rows,
            statements::Sql,
        },
    },
    operation::{Answer, Operation, OperationKind},
    statement_error::{Access, StatementError},
};

/// One batch in flight.
pub(crate) struct Batch<'a> {
    pub(crate) ops: &'a [Operation],
    pub(crate) context: &'a StoreContext,
    pub(crate) open: &'a mut OpenConnection,
    pub(crate) now: ClockReadings,
    /// Whether it was sent before and met other writers, so that nothing was done.
    pub(crate) resent: bool,
}

pub(super) type BatchResult = Result<Vec<Reply<Answer>>, StatementError>;

/// The rows of refused operations, by name.
pub(super) type RefusedRows = HashMap<LockName, Result<LockRow>>;

impl Batch<'_> {
    pub(crate) async fn send(self, kind: OperationKind) -> BatchResult {
        match kind {
            OperationKind::Renew => self.renew().await,
            OperationKind::HandOver => self.hand_over().await,
            OperationKind::Acquire | OperationKind::Release => self.acquire_and_release().await,
            OperationKind::Force => self.force().await,
            OperationKind::Create | OperationKind::Replace => self.put(kind).await,
            OperationKind::Delete => self.delete().await,
        }
    }

    /// Counts a statement. While others write, SQLite is asked every millisecond; these repetitions
    /// do not count.
    pub(super) fn count(&self, kind: OperationKind) {
        if !self.resent {
            self.context.counters.count(kind.name());
        }
    }

    /// Sends the statement and reads the changed rows' names and tokens.
    pub(super) async fn tokens(
        &mut self,
        kind: OperationKind,
        bind: impl FnOnce(BatchStatement<'_>) -> Statement,
    ) -> Result<HashMap<String, Result<FencingToken>>, StatementError> {
        let rows = self.rows(kind, bind).await?;
        let mut tokens = HashMap::with_capacity(rows.len());
        for row in &rows {
            let name: String = rows::column(row, 0).map_err(StatementError::corrupt)?;
            tokens.insert(name, rows::token(row, 1));
        }
        Ok(tokens)
    }

    /// Sends the statement and reads to its end: it is committed only there, and an error of the
    /// commit shows only there.
    pub(super) async fn rows(
        &mut self,
        kind: OperationKind,
        bind: impl FnOnce(BatchStatement<'_>) -> Statement,
    ) -> Result<Vec<SqliteRow>, StatementError> {
        let context = self.context;
        self.count(kind);
        bind(BatchStatement {
            sql: statement(context, kind),
            context,
            now: self.now,
        })
        .fetch_all(&mut self.open.connection)
        .await
        .map_err(|error| StatementError::sqlite(error, Access::Write))
    }

    /// Sends a statement whose answer is only a number of rows.
    pub(super) async fn changes(
        &mut self,
        kind: OperationKind,
        sql: &Sql,
        bind: impl FnOnce(BatchStatement<'_>) -> Statement,
    ) -> Result<usize, StatementError> {
        let context = self.context;
        self.count(kind);
        let changed = bind(BatchStatement {
            sql,
            context,
            now: self.now,
        })
        .execute(&mut self.open.connection)
        .await
        .map_err(|error| StatementError::sqlite(error, Access::Write))?;
        Ok(usize::try_from(changed.rows_affected()).unwrap_or(usize::MAX))
    }

    /// Whether a later statement of the batch is sent again after this failure. The first statement
    /// is sent again with the batch.
    pub(super) fn may_retry(&self, failed: &StatementError, busy_retry: &mut BusyRetry) -> bool {
        failed.meaning.retry && self.open.retries_when_busy && busy_retry.may_retry(self.context)
    }

    pub(super) async fn refused_rows(&mut self, names: Vec<&LockName>) -> Result<RefusedRows> {
        if names.is_empty() {
            return Ok(RefusedRows::new());
        }
        let found = read_rows(&mut self.open.connection, self.context, &names, self.now)
            .await
            .map_err(StatementError::into_error)?;
        Ok(found.into_iter().collect())
    }
}

pub(super) type Statement = Query<'static, Sqlite, SqliteArguments>;

/// A statement with the parameters that all statements share.
pub(super) struct BatchStatement<'a> {
    pub(super) sql: &'a Sql,
    pub(super) context: &'a StoreContext,
    pub(super) now: ClockReadings,
}

impl BatchStatement<'_> {
    pub(super) fn bind_first(self, rows: String, bytes: Vec<u8>) -> Statement {
        sqlx::query(self.sql.text())
            .bind(rows)
            .bind(bytes)
            .bind(self.context.boot.to_vec())
            .bind(self.now.boot)
            .bind(self.now.wall)
    }
}

fn statement(context: &StoreContext, kind: OperationKind) -> &Sql {
    let statements = &context.statements;
    match kind {
        OperationKind::Renew => &statements.renew,
        OperationKind::Release => &statements.release,
        OperationKind::HandOver => &statements.hand_over,
        OperationKind::Acquire => &statements.acquire,
        OperationKind::Force => &statements.force,
        OperationKind::Create => &statements.create,
        OperationKind::Replace => &statements.replace,
        OperationKind::Delete => &statements.delete,
    }
}

/// The names of the locks that were not changed.
pub(super) fn names<'a, T>(
    ops: &'a [Operation],
    changed: &HashMap<String, T>,
) -> Vec<&'a LockName> {
    ops.iter()
        .filter_map(Operation::lock)
        .filter(|name| !changed.contains_key(name.as_str()))
        .collect()
}

/// The statement was carried out, but it is unknown for which callers.
pub(super) fn unknown(error: &Error) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "the rows could not be read after they were written",
    )
    .caused_by(error.clone())
}

/// One answer for each operation, even if there is one error for all.
pub(super) fn answers_or_error(
    answers: Result<Vec<Result<Answer>>, StatementError>,
    count: usize,
) -> Vec<Result<Answer>> {
    answers.unwrap_or_else(|failed| {
        let error = failed.into_error();
        std::iter::repeat_with(|| Err(error.clone()))
            .take(count)
            .collect()
    })
}
