//! Counters in a database: each change is a transaction.
//!
//! Invariant: a change locks the row of the user's total first, so changes of one user come one
//! after the other and cannot deadlock. The URL must never reach an error, because it may hold a
//! password.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Clock as _, Error, ErrorKind, PasswordRule, Result, SystemClock};
use sqlx::{
    Any, AnyConnection, AnyPool, AssertSqlSafe, Row as _, Transaction,
    any::{AnyPoolOptions, install_default_drivers},
    mysql::{MySqlConnectOptions, MySqlSslMode},
    postgres::{PgConnectOptions, PgSslMode},
};

use super::{
    counter::{Change, Counter, MOST, Unread, UnreadCounters, too_many, unknown},
    retries::{Retries, TRIES, too_contended},
};

/// The most connections.
const CONNECTIONS: u32 = 8;
/// The longest wait for a connection, and for the statements of a change: a client that stands
/// still may hold the lock on the user's row.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    MySql,
    Postgres,
    Sqlite,
}

/// The statements in the dialect of the server.
#[derive(Debug)]
struct Statements {
    backend: &'static str,
    tables: [String; 2],
    add_total: String,
    add: String,
    lock: String,
    read: String,
    lower_total: String,
    clear: String,
}

impl Statements {
    fn new(dialect: Dialect) -> Self {
        let (backend, name, number) = match dialect {
            // This type compares names byte by byte, also trailing spaces.
            Dialect::MySql => ("mysql", "VARBINARY(128)", "BIGINT"),
            Dialect::Postgres => ("postgres", "TEXT COLLATE \"C\"", "BIGINT"),
            Dialect::Sqlite => ("sqlite", "TEXT", "INTEGER"),
        };
        let placeholder = |at: u32| match dialect {
            Dialect::Postgres => format!("${at}"),
            Dialect::MySql | Dialect::Sqlite => "?".to_owned(),
        };
        let [one, two, three] = [1, 2, 3].map(placeholder);
        let upsert = |table: &str, key: &str| match dialect {
            Dialect::MySql => "ON DUPLICATE KEY UPDATE unread = unread + VALUES(unread)".to_owned(),
            Dialect::Postgres | Dialect::Sqlite => {
                format!(
                    "ON CONFLICT ({key}) DO UPDATE SET unread = {table}.unread + excluded.unread"
                )
            }
        };
        Self {
            backend,
            tables: [
                format!(
                    "CREATE TABLE IF NOT EXISTS distributed_unread_total (
                     account {name} NOT NULL PRIMARY KEY, unread {number} NOT NULL)"
                ),
                format!(
                    "CREATE TABLE IF NOT EXISTS distributed_unread (
                     account {name} NOT NULL, conversation {name} NOT NULL,
                     unread {number} NOT NULL, PRIMARY KEY (account, conversation))"
                ),
            ],
            add_total: format!(
                "INSERT INTO distributed_unread_total (account, unread) VALUES ({one}, {two}) {}",
                upsert("distributed_unread_total", "account")
            ),
            add: format!(
                "INSERT INTO distributed_unread (account, conversation, unread)
                 VALUES ({one}, {two}, {three}) {}",
                upsert("distributed_unread", "account, conversation")
            ),
            lock: format!(
                "UPDATE distributed_unread_total SET unread = unread WHERE account = {one}"
            ),
            read: format!(
                "SELECT c.unread, t.unread FROM distributed_unread c
                 JOIN distributed_unread_total t ON t.account = c.account
                 WHERE c.account = {one} AND c.conversation = {two}"
            ),
            lower_total: format!(
                "UPDATE distributed_unread_total SET unread = {one} WHERE account = {two}"
            ),
            clear: format!(
                "UPDATE distributed_unread SET unread = 0
                 WHERE account = {one} AND conversation = {two}"
            ),
        }
    }
}

impl SqlCounters {
    /// Connects, and creates the tables that are missing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL of no database; failures of the server.
    ///
    /// # Cancel safety
    /// Safe: the tables are created or not.
    pub async fn open(url: &str) -> Result<Self> {
        let (dialect, url) = parse_url(url)?;
        let statements = Statements::new(dialect);
        install_default_drivers();
        let options = AnyPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(TIMEOUT);
        let away = |error: sqlx::Error| failed(statements.backend, &error, ErrorKind::Unavailable);
        let pool = options.connect(&url).await.map_err(away)?;
        for table in &statements.tables {
            sqlx::query(AssertSqlSafe(table.clone()))
                .execute(&pool)
                .await
                .map_err(away)?;
        }
        Ok(Self {
            pool,
            statements: Arc::new(statements),
            retries: Retries::new("transaction", Arc::new(SystemClock)),
        })
    }

    /// Repeats the transaction while the server rolls it back in favour of another.
    async fn change(&self, counter: &Counter, change: Change) -> Result<Unread> {
        for attempt in 1..=TRIES {
            match self.try_change(counter, change).await? {
                Ok(unread) => return Ok(unread),
                Err(error) => tracing::debug!(%counter, %error, "a change is begun anew"),
            }
            self.retries.pause_before_retry(attempt).await;
        }
        Err(too_contended(counter))
    }

    /// The inner error is that of a transaction that the server rolled back.
    async fn try_change(&self, counter: &Counter, change: Change) -> Result<Result<Unread, Error>> {
        let backend = self.statements.backend;
        let away = |error: sqlx::Error| failed(backend, &error, ErrorKind::Unavailable);
        let mut transaction = within(self.pool.begin()).await.map_err(away)?;
        let changing = async {
            match change {
                Change::Add(by) => self.add(&mut transaction, counter, by).await,
                Change::Clear => self.clear(&mut transaction, counter).await,
            }
        };
        let changed = within(changing).await;
        let unread = match changed {
            Ok(Ok(unread)) => unread,
            Ok(Err(refused)) => return Err(refused),
            Err(error) if was_rolled_back(&error) => return Ok(Err(away(error))),
            Err(error) => return Err(away(error)),
        };
        match within(transaction.commit()).await {
            Ok(()) => Ok(Ok(unread)),
            Err(error) if was_rolled_back(&error) => Ok(Err(away(error))),
            Err(error) => Err(failed(backend, &error, ErrorKind::OutcomeUnknown)),
        }
    }

    async fn add(
        &self,
        transaction: &mut Transaction<'_, Any>,
        counter: &Counter,
        by: u64,
    ) -> sqlx::Result<Result<Unread>> {
        let Some(amount) = i64::try_from(by).ok().filter(|_| by <= MOST) else {
            return Ok(Err(too_many(counter, 0, by)));
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
            Some(unread) => Err(too_many(counter, unread.total - by, by)),
            None => Err(unknown(counter)),
        })
    }

    async fn clear(
        &self,
        transaction: &mut Transaction<'_, Any>,
        counter: &Counter,
    ) -> sqlx::Result<Result<Unread>> {
        // No other client changes this user's counters until the end of the transaction.
        sqlx::query(AssertSqlSafe(self.statements.lock.clone()))
            .bind(counter.user())
            .execute(&mut **transaction)
            .await?;
        let Some(before) = self.read_counters(transaction, counter).await? else {
            return Ok(Err(unknown(counter)));
        };
        let total = before.total.saturating_sub(before.conversation);
        sqlx::query(AssertSqlSafe(self.statements.lower_total.clone()))
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

    /// Reads both counters at one moment.
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
        let away = |error: sqlx::Error| failed(backend, &error, ErrorKind::Unavailable);
        let mut connection = self.pool.acquire().await.map_err(away)?;
        let counters = self
            .read_counters(&mut connection, counter)
            .await
            .map_err(away)?;
        counters.ok_or_else(|| unknown(counter))
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

/// Returns the dialect, and the URL in the driver's form.
fn parse_url(url: &str) -> Result<(Dialect, String)> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "mysql" | "mariadb" => {
            let url = format!("mysql:{}", rest.replace(CLEAR, "ssl-mode=DISABLED"));
            password_rule(Dialect::MySql, &url)?;
            Ok((Dialect::MySql, url))
        }
        "postgres" | "postgresql" => {
            let url = url.replace(CLEAR, "sslmode=disable");
            password_rule(Dialect::Postgres, &url)?;
            Ok((Dialect::Postgres, url))
        }
        "sqlite" => {
            // The options of the URL belong to the lock's store.
            let file = rest.split('?').next().unwrap_or_default();
            Ok((Dialect::Sqlite, format!("sqlite:{file}?mode=rwc")))
        }
        _ => {
            // The error leaves the URL out, because the URL may hold a password.
            let says = "this is no URL of a database: sqlite:, mysql:, mariadb: and postgres: are";
            Err(Error::new(ErrorKind::InvalidConfig, says))
        }
    }
}

/// The option that allows a password in clear text, as in the lock's store.
const CLEAR: &str = "tls=disable";

/// Applies the same rule as the lock's store: a password leaves this machine through TLS, or
/// because the user allows clear text.
fn password_rule(dialect: Dialect, url: &str) -> Result<()> {
    // The driver itself refuses a URL that it cannot parse.
    let (host, encrypted, clear_allowed, features, remedy) = match dialect {
        Dialect::MySql => {
            let Ok(options) = url.parse::<MySqlConnectOptions>() else {
                return Ok(());
            };
            let mode = options.get_ssl_mode();
            let clear = matches!(mode, MySqlSslMode::Disabled);
            let encrypted = !clear && !matches!(mode, MySqlSslMode::Preferred);
            let host = options.get_host().to_owned();
            let remedy = "set `ssl-mode` to VERIFY_IDENTITY";
            (host, encrypted, clear, "mysql,tls", remedy)
        }
        Dialect::Postgres => {
            let Ok(options) = url.parse::<PgConnectOptions>() else {
                return Ok(());
            };
            let mode = options.get_ssl_mode();
            let clear = matches!(mode, PgSslMode::Disable);
            let encrypted = !clear && !matches!(mode, PgSslMode::Allow | PgSslMode::Prefer);
            let host = options.get_host().to_owned();
            let remedy = "set `sslmode` to verify-full";
            (host, encrypted, clear, "postgres,tls", remedy)
        }
        Dialect::Sqlite => return Ok(()),
    };
    let user = url.rsplit_once('@').map_or("", |(before, _)| before);
    let rule = PasswordRule {
        // After `//` a colon separates the user from the password.
        sent: user.matches(':').count() > 1 || url.contains("password="),
        encrypted,
        clear_allowed,
        tls_built: true,
        features,
        remedy,
    };
    if host.starts_with('/') {
        // A socket file is on this machine.
        return Ok(());
    }
    rule.check(&host)
}

/// Runs a step with a time limit. The connection of a step that took too long is not used again.
async fn within<T>(step: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    tokio::select! {
        biased;
        done = step => done,
        () = SystemClock.sleep(TIMEOUT) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// Whether the server rolled the transaction back in favour of another: a deadlock, or a row or
/// file that another client kept locked.
fn was_rolled_back(error: &sqlx::Error) -> bool {
    // MySQL has no code of its own for a wait for a row that was too long.
    const WAITED: &str = "Lock wait timeout exceeded";
    if error
        .as_database_error()
        .is_some_and(|error| error.message().contains(WAITED))
    {
        return true;
    }
    const ROLLED_BACK: [&str; 5] = ["40001", "40P01", "5", "6", "517"];
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ROLLED_BACK.contains(&&*code))
}

fn failed(backend: &'static str, error: &sqlx::Error, otherwise: ErrorKind) -> Error {
    let kind = match error {
        sqlx::Error::Configuration(_) => ErrorKind::InvalidConfig,
        sqlx::Error::Database(_) if !was_rolled_back(error) => ErrorKind::Internal,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_leaves_this_machine_through_tls_or_on_purpose() {
        for scheme in ["mysql", "mariadb", "postgres"] {
            let of = |at: &str| parse_url(&format!("{scheme}://{at}"));
            let error = of("bob:hunter2@db.example/d").err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let said = error.to_string();
            assert!(said.contains("`tls` to `disable`"), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
            for fine in [
                "bob:hunter2@localhost/d",
                "bob@db.example/d",
                "bob:hunter2@db.example/d?tls=disable",
            ] {
                of(fine).unwrap();
            }
        }
        parse_url("mysql://bob:hunter2@db.example/d?ssl-mode=REQUIRED").unwrap();
        parse_url("postgres://bob:hunter2@db.example/d?sslmode=require").unwrap();
    }
}
