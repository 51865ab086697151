//! Counters in a database: each change is a transaction.
//!
//! Invariant: a change locks the row of the user's total first, so changes of one user come one
//! after the other. The URL must never reach an error, because it may hold a password.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, Result, SystemClock, at_most};
use sqlx::{
    Any, AnyConnection, AnyPool, AssertSqlSafe, Row as _, Transaction,
    any::{AnyPoolOptions, install_default_drivers},
    mysql::MySqlDatabaseError,
};

use super::{statements::Statements, url::parse_url};
use crate::unread::{
    counter::{
        Change, Counter, MOST, Unread, UnreadCounters, too_many_error, unknown_counter_error,
    },
    retries::{Retries, TRIES, too_contended_error},
};

/// The largest number of connections in the pool.
const MAX_CONNECTIONS: u32 = 8;
/// The longest wait for a connection, and also for the statements of a change. A change may wait
/// for the lock on the user's row, which a paused client may hold.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Counters in the rows of two tables, `distributed_unread` and `distributed_unread_total`, in
/// SQLite, MySQL, MariaDB or Postgres.
///
/// Every change locks the row of the user's total first, so the changes of one user come one after
/// the other.
#[derive(Clone)]
pub struct SqlCounters {
    pool: AnyPool,
    statements: Arc<Statements>,
    retries: Retries,
}

impl SqlCounters {
    /// Connects, and creates the tables that are missing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL that is not the URL of a supported database; failures
    /// of the server.
    ///
    /// # Cancel safety
    /// Safe: the tables are created or not.
    pub async fn open(url: &str) -> Result<Self> {
        let (dialect, url) = parse_url(url)?;
        let statements = Statements::new(dialect);
        install_default_drivers();
        let options = AnyPoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .acquire_timeout(TIMEOUT);
        let to_unavailable =
            |error: sqlx::Error| convert_error(statements.backend, &error, ErrorKind::Unavailable);
        let pool = options.connect(&url).await.map_err(to_unavailable)?;
        for table in &statements.tables {
            sqlx::query(AssertSqlSafe(table.clone()))
                .execute(&pool)
                .await
                .map_err(to_unavailable)?;
        }
        Ok(Self {
            pool,
            statements: Arc::new(statements),
            retries: Retries::new("transaction", Arc::new(SystemClock)),
        })
    }

    /// Makes a change, and repeats the transaction while it conflicts with the transaction of
    /// another client.
    async fn change(&self, counter: &Counter, change: Change) -> Result<Unread> {
        for attempt in 1..=TRIES {
            match self.try_change(counter, change).await? {
                Ok(unread) => return Ok(unread),
                Err(error) => tracing::debug!(%counter, %error, "a change is begun anew"),
            }
            self.retries.pause_before_retry(attempt).await;
        }
        Err(too_contended_error(counter))
    }

    /// Makes a change in one transaction. An inner error means that the transaction conflicted with
    /// another client and nothing was committed, so the change can be repeated.
    async fn try_change(&self, counter: &Counter, change: Change) -> Result<Result<Unread, Error>> {
        let backend = self.statements.backend;
        let to_unavailable =
            |error: sqlx::Error| convert_error(backend, &error, ErrorKind::Unavailable);
        let mut transaction = with_time_limit(self.pool.begin())
            .await
            .map_err(to_unavailable)?;
        let changing = async {
            match change {
                Change::Add(by) => self.run_add(&mut transaction, counter, by).await,
                Change::Clear => self.run_clear(&mut transaction, counter).await,
            }
        };
        let changed = with_time_limit(changing).await;
        let unread = match changed {
            Ok(Ok(unread)) => unread,
            Ok(Err(refused)) => return Err(refused),
            Err(error) if is_conflict(&error) => return Ok(Err(to_unavailable(error))),
            Err(error) => return Err(to_unavailable(error)),
        };
        match with_time_limit(transaction.commit()).await {
            Ok(()) => Ok(Ok(unread)),
            Err(error) if is_conflict(&error) => Ok(Err(to_unavailable(error))),
            Err(error) => Err(convert_error(backend, &error, ErrorKind::OutcomeUnknown)),
        }
    }

    /// Runs the statements of an increment. The inner error is a refusal, after which the caller
    /// drops the transaction. The drop rolls the transaction back.
    async fn run_add(
        &self,
        transaction: &mut Transaction<'_, Any>,
        counter: &Counter,
        by: u64,
    ) -> sqlx::Result<Result<Unread>> {
        let Some(amount) = i64::try_from(by).ok().filter(|_| by <= MOST) else {
            return Ok(Err(too_many_error(counter, 0, by)));
        };
        sqlx::query(AssertSqlSafe(self.statements.add_total.clone()))
            .bind(counter.user())
            .bind(amount)
            .execute(&mut **transaction)
            .await?;
        sqlx::query(AssertSqlSafe(self.statements.add.clone()))
            .bind(counter.user())
            .bind(counter.conversation())
            .bind(amount)
            .execute(&mut **transaction)
            .await?;
        Ok(match self.read_counters(transaction, counter).await? {
            Some(unread) if unread.total <= MOST => Ok(unread),
            Some(unread) => Err(too_many_error(counter, unread.total - by, by)),
            None => Err(unknown_counter_error(counter)),
        })
    }

    /// Runs the statements of a clear. The inner error is a refusal, as in
    /// [`run_add`](Self::run_add).
    async fn run_clear(
        &self,
        transaction: &mut Transaction<'_, Any>,
        counter: &Counter,
    ) -> sqlx::Result<Result<Unread>> {
        // This statement locks the row of the total, so no other client changes this user's
        // counters before the transaction ends.
        sqlx::query(AssertSqlSafe(self.statements.lock_user.clone()))
            .bind(counter.user())
            .execute(&mut **transaction)
            .await?;
        let Some(before) = self.read_counters(transaction, counter).await? else {
            return Ok(Err(unknown_counter_error(counter)));
        };
        let total = before.total.saturating_sub(before.conversation);
        sqlx::query(AssertSqlSafe(self.statements.set_total.clone()))
            .bind(i64::try_from(total).unwrap_or(i64::MAX))
            .bind(counter.user())
            .execute(&mut **transaction)
            .await?;
        sqlx::query(AssertSqlSafe(self.statements.clear.clone()))
            .bind(counter.user())
            .bind(counter.conversation())
            .execute(&mut **transaction)
            .await?;
        Ok(Ok(Unread {
            conversation: 0,
            total,
        }))
    }

    /// Reads both counters in one statement. `None`: there is no such counter.
    async fn read_counters(
        &self,
        connection: &mut AnyConnection,
        counter: &Counter,
    ) -> sqlx::Result<Option<Unread>> {
        let row = sqlx::query(AssertSqlSafe(self.statements.read.clone()))
            .bind(counter.user())
            .bind(counter.conversation())
            .fetch_optional(connection)
            .await?;
        let Some(row) = row else {
            return Ok(None);
        };
        let count = |at: usize| {
            let count: i64 = row.try_get(at)?;
            u64::try_from(count).map_err(|error| sqlx::Error::Decode(error.into()))
        };
        Ok(Some(Unread {
            conversation: count(0)?,
            total: count(1)?,
        }))
    }
}

#[async_trait]
impl UnreadCounters for SqlCounters {
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread> {
        self.change(counter, Change::add(by)?).await
    }

    async fn clear(&self, counter: &Counter) -> Result<Unread> {
        self.change(counter, Change::Clear).await
    }

    async fn read(&self, counter: &Counter) -> Result<Unread> {
        let backend = self.statements.backend;
        let to_unavailable =
            |error: sqlx::Error| convert_error(backend, &error, ErrorKind::Unavailable);
        let reading = async {
            let mut connection = self.pool.acquire().await?;
            self.read_counters(&mut connection, counter).await
        };
        let counters = with_time_limit(reading).await.map_err(to_unavailable)?;
        counters.ok_or_else(|| unknown_counter_error(counter))
    }

    fn retries(&self) -> u64 {
        self.retries.count()
    }
}

impl fmt::Debug for SqlCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlCounters")
            .field("backend", &self.statements.backend)
            .finish_non_exhaustive()
    }
}

/// Runs a step with a time limit. A step that takes too long fails with
/// [`sqlx::Error::PoolTimedOut`], the error of a full pool.
async fn with_time_limit<T>(step: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    at_most(&SystemClock, TIMEOUT, step)
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// Whether a transaction failed because of another client: in a deadlock, or because the other
/// client kept a row or the file locked, or changed a row. Nothing was committed. The server may
/// leave the transaction open; its drop rolls the transaction back.
fn is_conflict(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else {
        return false;
    };
    // MySQL gives most of its errors the same state, HY000, so its own number decides: a deadlock,
    // a wait for a row that took too long, and a row that changed after the first read of the
    // transaction (MariaDB with `innodb_snapshot_isolation`, on by default from 11.6).
    if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
        return [1213, 1205, 1020].contains(&error.number());
    }
    // 40001: a serialization failure. 40P01: a deadlock of Postgres. 5, 6 and 517 are SQLITE_BUSY,
    // SQLITE_LOCKED and SQLITE_BUSY_SNAPSHOT.
    const CONFLICTS: [&str; 5] = ["40001", "40P01", "5", "6", "517"];
    error.code().is_some_and(|code| CONFLICTS.contains(&&*code))
}

/// Whether the server answered that it ends the session or cannot work at this moment: it restarts,
/// fails over, an administrator stopped the statement, or it has no connection to spare. The same
/// change may succeed later.
fn is_passing(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else {
        return false;
    };
    if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
        // A closed session, a shutdown, a failover, a read-only server, a node outside of its
        // cluster, a stopped statement, and too many connections.
        return matches!(
            error.number(),
            1040 | 1047 | 1053 | 1077 | 1079 | 1080 | 1129 | 1152 | 1158
                ..=1161
                    | 1184
                    | 1203
                    | 1226
                    | 1290
                    | 1317
                    | 1792
                    | 1836
                    | 1874
                    | 1927
                    | 1969
                    | 3024
                    | 3032
                    | 3168
                    | 4031
        );
    }
    let Some(code) = error.code() else {
        return false;
    };
    // Postgres. 08: the connection failed. 57: an operator or a shutdown intervened, except 57P04,
    // a dropped database. 25006: a standby. 53300: too many connections. 55P03: a row is locked.
    match &*code {
        "57P04" => false,
        "25006" | "53300" | "55P03" => true,
        code => code.len() == 5 && (code.starts_with("08") || code.starts_with("57")),
    }
}

/// Converts an error of the driver. `otherwise` is the kind of an error that does not show its
/// cause, such as a failed connection, and of a session that the server ended.
fn convert_error(backend: &'static str, error: &sqlx::Error, otherwise: ErrorKind) -> Error {
    let kind = match error {
        sqlx::Error::Configuration(_) => ErrorKind::InvalidConfig,
        sqlx::Error::Database(_) if !is_conflict(error) && !is_passing(error) => {
            ErrorKind::Internal
        }
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => ErrorKind::Corrupt,
        _ => otherwise,
    };
    let says = match kind {
        // The cause may contain the URL with the password, so it is left out.
        ErrorKind::InvalidConfig => {
            return Error::new(kind, "the URL cannot be used").on(backend);
        }
        ErrorKind::Corrupt => "a counter cannot be read",
        _ => "the database cannot be asked",
    };
    Error::new(kind, says)
        .on(backend)
        .caused_by(error.to_string())
}
