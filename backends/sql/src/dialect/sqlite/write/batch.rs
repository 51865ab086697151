//! Batches that change something: one conditional statement each, and one read to tell the refused ones why. A batch that both
//! takes and frees is a transaction of two.

use std::collections::HashMap;

use distlock_core::{Error, ErrorKind, FencingToken, LockName, Result, batch::Reply};
use sqlx::{Sqlite, query::Query, sqlite::SqliteArguments, sqlite::SqliteRow};

use crate::{
    dialect::{
        LockRow,
        sqlite::{
            busy_retry::Patience,
            connection::Open,
            context::{Now, Shared},
            lookup::look,
            rows,
            statements::Sql,
        },
    },
    error::{Access, Failed},
    op::{Answer, Kind, Op},
};

/// One batch on its way.
pub(crate) struct Batch<'a> {
    pub(crate) ops: &'a [Op],
    pub(crate) shared: &'a Shared,
    pub(crate) open: &'a mut Open,
    pub(crate) now: Now,
    /// Whether it was sent before and met others who write, so that nothing was done.
    pub(crate) again: bool,
}

pub(super) type Answers = Result<Vec<Reply<Answer>>, Failed>;

/// What stands in the rows of the refused, by name.
pub(super) type Looks = HashMap<LockName, Result<LockRow>>;

impl Batch<'_> {
    pub(crate) async fn send(self, kind: Kind) -> Answers {
        match kind {
            Kind::Renew => self.renew().await,
            Kind::HandOver => self.hand_over().await,
            Kind::Acquire | Kind::Release => self.exchange().await,
            Kind::Force => self.force().await,
            Kind::Create | Kind::Replace => self.put(kind).await,
            Kind::Delete => self.delete().await,
        }
    }

    /// Counts a statement. While others write, SQLite is asked every millisecond whether they are
    /// done, which is no statement more.
    pub(super) fn count(&self, kind: Kind) {
        if !self.again {
            self.shared.tally.count(kind.name());
        }
    }

    /// Sends the statement and reads the changed rows' names and tokens.
    pub(super) async fn tokens(
        &mut self,
        kind: Kind,
        bind: impl FnOnce(Common<'_>) -> Statement,
    ) -> Result<HashMap<String, Result<FencingToken>>, Failed> {
        let rows = self.rows(kind, bind).await?;
        let mut tokens = HashMap::with_capacity(rows.len());
        for row in &rows {
            let name: String = rows::column(row, 0).map_err(Failed::corrupt)?;
            tokens.insert(name, rows::token(row, 1));
        }
        Ok(tokens)
    }

    /// Sends the statement and reads to its end: it is committed only there, and an error of the commit shows only there.
    pub(super) async fn rows(
        &mut self,
        kind: Kind,
        bind: impl FnOnce(Common<'_>) -> Statement,
    ) -> Result<Vec<SqliteRow>, Failed> {
        let shared = self.shared;
        self.count(kind);
        bind(Common {
            sql: statement(shared, kind),
            shared,
            now: self.now,
        })
        .fetch_all(&mut self.open.connection)
        .await
        .map_err(|error| Failed::sqlite(error, Access::Write))
    }

    /// Sends a statement that answers with nothing but a number of rows.
    pub(super) async fn changes(
        &mut self,
        kind: Kind,
        sql: &Sql,
        bind: impl FnOnce(Common<'_>) -> Statement,
    ) -> Result<usize, Failed> {
        let shared = self.shared;
        self.count(kind);
        let changed = bind(Common {
            sql,
            shared,
            now: self.now,
        })
        .execute(&mut self.open.connection)
        .await
        .map_err(|error| Failed::sqlite(error, Access::Write))?;
        Ok(usize::try_from(changed.rows_affected()).unwrap_or(usize::MAX))
    }

    /// Whether a statement that is not the first of its batch is sent again after this. The first is sent again with the batch.
    pub(super) fn asks_again(&self, failed: &Failed, patience: &mut Patience) -> bool {
        failed.meaning.retry && self.open.waits_briefly && patience.asks_again(self.shared)
    }

    pub(super) async fn looks(&mut self, names: Vec<&LockName>) -> Result<Looks> {
        if names.is_empty() {
            return Ok(Looks::new());
        }
        let found = look(&mut self.open.connection, self.shared, &names, self.now)
            .await
            .map_err(Failed::into_error)?;
        Ok(found.into_iter().collect())
    }
}

pub(super) type Statement = Query<'static, Sqlite, SqliteArguments>;

/// The parameters that all statements share.
pub(super) struct Common<'a> {
    pub(super) sql: &'a Sql,
    pub(super) shared: &'a Shared,
    pub(super) now: Now,
}

impl Common<'_> {
    pub(super) fn bind_first(self, rows: String, bytes: Vec<u8>) -> Statement {
        sqlx::query(self.sql.text())
            .bind(rows)
            .bind(bytes)
            .bind(self.shared.boot.to_vec())
            .bind(self.now.boot)
            .bind(self.now.wall)
    }
}

fn statement(shared: &Shared, kind: Kind) -> &Sql {
    let statements = &shared.statements;
    match kind {
        Kind::Renew => &statements.renew,
        Kind::Release => &statements.release,
        Kind::HandOver => &statements.hand_over,
        Kind::Acquire => &statements.acquire,
        Kind::Force => &statements.force,
        Kind::Create => &statements.create,
        Kind::Replace => &statements.replace,
        Kind::Delete => &statements.delete,
    }
}

/// The locks that are not among the changed ones.
pub(super) fn names<'a, T>(ops: &'a [Op], changed: &HashMap<String, T>) -> Vec<&'a LockName> {
    ops.iter()
        .filter_map(Op::lock)
        .filter(|name| !changed.contains_key(name.as_str()))
        .collect()
}

/// The statement was carried out, but not for whom.
pub(super) fn unknown(error: &Error) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "the rows could not be read after they were written",
    )
    .caused_by(error.clone())
}

/// An answer for each, also where there is but one error for all.
pub(super) fn each(
    answers: Result<Vec<Result<Answer>>, Failed>,
    count: usize,
) -> Vec<Result<Answer>> {
    answers.unwrap_or_else(|failed| {
        let error = failed.into_error();
        std::iter::repeat_with(|| Err(error.clone()))
            .take(count)
            .collect()
    })
}
