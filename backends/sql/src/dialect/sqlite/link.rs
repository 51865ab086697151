//! One connection, opened when it is first needed, and again when the file was replaced or the connection broke.

use std::{path::Path, sync::atomic::Ordering, time::Duration};

use distlock_core::{Epoch, Error, ErrorKind, Result};
use sqlx::{
    ConnectOptions as _, Connection as _, Row as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};

use super::{
    Shared,
    file::{self, FileId},
};
use crate::{
    config::quoted,
    error::{Access, Failed, sqlite_code},
    migrate::{self, LATEST, TablesStatus},
};

/// How long opening waits for other processes that set the file up at the same moment.
const SETTING_UP: Duration = Duration::from_secs(5);

/// `SQLITE_BUSY`
const BUSY: i32 = 5;

/// Stays set in the file.
const JOURNAL_MODE_WAL: &str = "PRAGMA journal_mode = WAL";

#[derive(Debug, Default)]
pub(super) struct Link {
    open: Option<Open>,
    /// Of the last connection.
    epoch: Option<Epoch>,
    history_changed: bool,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: SqliteConnection,
    pub(super) epoch: Epoch,
    /// Whether an earlier connection of this link knew another history.
    pub(super) history_changed: bool,
    /// It is of no more use: it broke, or a transaction was begun and how that ended was not seen, so that what is sent next
    /// would become a part of it.
    pub(super) is_spent: bool,
    file: FileId,
}

impl Link {
    /// The connection, on the file that the path leads to now.
    pub(super) async fn ready(&mut self, shared: &Shared) -> Result<&mut Open> {
        if self.closed {
            return Err(Error::new(
                ErrorKind::Closed,
                "the store's handle was closed",
            ));
        }
        // A file that was removed or replaced lives on unseen by other processes: locks in it would exclude nobody.
        let same = match &self.open {
            Some(open) => {
                !open.is_spent
                    && matches!(FileId::of(&shared.path), Ok(Some(file)) if file == open.file)
            }
            None => false,
        };
        if !same {
            self.open = None;
            let mut open = Open::new(shared).await?;
            let before = self.epoch.replace(open.epoch.clone());
            self.history_changed |= before.is_some_and(|before| before != open.epoch);
            open.history_changed = self.history_changed;
            self.open = Some(open);
        }
        match &mut self.open {
            Some(open) => Ok(open),
            None => Err(Error::new(ErrorKind::Internal, "no connection")),
        }
    }

    /// Notes a failure: a connection that is of no more use is replaced before the next operation.
    pub(super) fn failed(&mut self, failed: Failed) -> Failed {
        if failed.meaning.reconnect {
            self.open = None;
        }
        failed
    }

    pub(super) async fn close(&mut self) {
        self.closed = true;
        if let Some(open) = self.open.take()
            && let Err(error) = open.connection.close().await
        {
            tracing::debug!(%error, "a connection did not close cleanly");
        }
    }
}

impl Open {
    async fn new(shared: &Shared) -> Result<Self> {
        let (mut config, path) = (shared.config.clone(), shared.path.clone());
        if shared.was_opened() {
            if let Ok(None) = FileId::of(&path) {
                return Err(file::wrong(&path, "was removed while it was in use"));
            }
            config.migrate = false;
        }
        tokio::task::spawn_blocking(move || file::prepare(&config, &path))
            .await
            .map_err(|error| {
                Error::new(ErrorKind::Internal, "a check broke off").caused_by(error)
            })??;
        let deadline = shared.clock.now() + SETTING_UP;
        loop {
            match Self::set_up(shared).await {
                Err(SetUp::Busy(_)) if shared.clock.now() < deadline => {
                    let pause = Duration::from_millis(fastrand::u64(5..25));
                    shared.clock.sleep(pause).await;
                }
                Err(SetUp::Busy(failed)) => return Err(failed.into_error()),
                Err(SetUp::Wrong(error)) => return Err(error),
                Ok(open) => {
                    shared.was_opened.store(true, Ordering::Release);
                    return Ok(open);
                }
            }
        }
    }

    async fn set_up(shared: &Shared) -> Result<Self, SetUp> {
        let gone = || file::wrong(&shared.path, "was removed while it was being opened");
        let file = FileId::of(&shared.path)
            .map_err(|error| file::wrong(&shared.path, "cannot be used").caused_by(error))?
            .ok_or_else(gone)?;
        let mut connection = connect(shared).await?;
        match found(&mut connection, shared).await? {
            Found::Ours => {}
            _ if shared.was_opened() => return Err(file::wrong(&shared.path, migrate::GONE).into()),
            _ if !shared.config.migrate => {
                return Err(not_migrated(shared, "has no tables of distlock").into());
            }
            Found::Nothing => create(&mut connection, shared, true).await?,
            Found::Others => create(&mut connection, shared, false).await?,
        }
        let (version, epoch): (i64, String) =
            query(&mut connection, shared, shared.statements.meta.text()).await?;
        if version < LATEST {
            let problem =
                format!("has tables of version {version}, and this program needs version {LATEST}");
            return Err(not_migrated(shared, &problem).into());
        }
        check(&mut connection, shared, version).await?;
        Ok(Self {
            connection,
            epoch: Epoch::new(epoch),
            history_changed: false,
            is_spent: false,
            file,
        })
    }
}

/// Brings the tables up to date and says from which version it went.
pub(super) async fn migrate(shared: &Shared) -> Result<i64> {
    let version = version(shared).await?;
    if version == 0 {
        let _created = Open::new(shared).await?;
    } else if version < LATEST {
        let mut connection = connect(shared).await.map_err(SetUp::into_error)?;
        let upgraded = async {
            upgrade(&mut connection, shared).await?;
            check(&mut connection, shared, LATEST).await
        };
        upgraded.await.map_err(SetUp::into_error)?;
    }
    Ok(version)
}

/// The version of the tables; 0 when there are none. Changes nothing.
pub(super) async fn version(shared: &Shared) -> Result<i64> {
    match FileId::of(&shared.path) {
        Ok(Some(_)) => {}
        Ok(None) => return Ok(0),
        Err(error) => return Err(file::wrong(&shared.path, "cannot be used").caused_by(error)),
    }
    let read = async {
        let mut connection = connect(shared).await?;
        let version = present_version(&mut connection, shared).await?;
        if version >= LATEST {
            check(&mut connection, shared, version).await?;
        }
        Ok(version)
    };
    read.await.map_err(SetUp::into_error)
}

/// What is in a file.
enum Found {
    Nothing,
    /// Nothing of ours.
    Others,
    Ours,
}

async fn found(connection: &mut SqliteConnection, shared: &Shared) -> Result<Found, SetUp> {
    match query(connection, shared, shared.statements.objects.text()).await? {
        (0, 0) => Ok(Found::Nothing),
        (_, 0) => Ok(Found::Others),
        (_, 3) => Ok(Found::Ours),
        (_, _) => Err(file::wrong(
            &shared.path,
            "has only some of distlock's tables, or another program's tables of the same names: choose another file or a \
             `table_prefix`",
        )
        .into()),
    }
}

/// 0 when there are no tables.
async fn present_version(connection: &mut SqliteConnection, shared: &Shared) -> Result<i64, SetUp> {
    match found(connection, shared).await? {
        Found::Nothing | Found::Others => Ok(0),
        Found::Ours => {
            let meta: (i64, String) =
                query(connection, shared, shared.statements.meta.text()).await?;
            Ok(meta.0)
        }
    }
}

/// Whether tables of this version are what this program works with, with every column that is read or written.
async fn check(
    connection: &mut SqliteConnection,
    shared: &Shared,
    version: i64,
) -> Result<(), SetUp> {
    if let Some(problem) = migrate::too_late(version) {
        return Err(file::wrong(&shared.path, problem).into());
    }
    let whole = run(connection, shared, shared.statements.columns.text()).await;
    whole.map_err(|problem| match problem {
        SetUp::Wrong(error) if error.kind() == ErrorKind::InvalidConfig => {
            let prefix = &shared.config.table_prefix;
            let advice = migrate::start_over(prefix, "; DROP TABLE ", &migrate_command(shared));
            file::wrong(&shared.path, advice).caused_by(error).into()
        }
        other => other,
    })
}

/// Opens a connection with the settings that the promises rest on.
pub(super) async fn connect(shared: &Shared) -> Result<SqliteConnection, SetUp> {
    SqliteConnectOptions::new()
        .filename(&shared.path)
        .create_if_missing(false)
        .busy_timeout(shared.config.busy_timeout)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(false)
        .pragma("trusted_schema", "OFF")
        .pragma("temp_store", "MEMORY")
        // In pages. Until the log is written over from its start for the first time, every commit makes the file longer,
        // which a file system syncs more slowly than a write in place; with the standard 1000 that lasts for long.
        .pragma("wal_autocheckpoint", "256")
        // A batch's answers must fit: SQLite's thread would otherwise wait for the reader inside its transaction.
        .row_buffer_size(4096)
        .thread_name(|id| format!("distlock-sql-{id}"))
        // Its only use would be to warn of statements that waited for another process.
        .disable_statement_logging()
        .connect()
        .await
        .map_err(|error| SetUp::of(error, shared))
}

/// Makes the tables; for an empty file the write-ahead log first, which stays set.
async fn create(
    connection: &mut SqliteConnection,
    shared: &Shared,
    empty: bool,
) -> Result<(), SetUp> {
    if empty {
        let _: (String,) = query(connection, shared, JOURNAL_MODE_WAL).await?;
    }
    upgrade(connection, shared).await.map(drop)
}

/// Applies the migrations that are missing, in one transaction, and says from which version it went.
pub(super) async fn upgrade(
    connection: &mut SqliteConnection,
    shared: &Shared,
) -> Result<i64, SetUp> {
    // Whether this is dropped half-way or fails: the connection is thrown away, and SQLite rolls back.
    run(connection, shared, "BEGIN IMMEDIATE").await?;
    // Another process may have done it while we waited.
    let version = present_version(connection, shared).await?;
    for migration in TablesStatus::at(version, &migrate::SQLITE).migrations {
        run(connection, shared, shared.statements.script(migration.sql)).await?;
    }
    run(connection, shared, "COMMIT").await?;
    Ok(version)
}

async fn run(
    connection: &mut SqliteConnection,
    shared: &Shared,
    script: impl sqlx::SqlSafeStr,
) -> Result<(), SetUp> {
    shared.group.count("open");
    sqlx::raw_sql(script)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|error| SetUp::of(error, shared))
}

/// Reads one row.
pub(super) async fn query<T>(
    connection: &mut SqliteConnection,
    shared: &Shared,
    sql: impl sqlx::SqlSafeStr,
) -> Result<T, SetUp>
where
    T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow> + Send + Unpin,
{
    shared.group.count("open");
    let rows = sqlx::query(sql)
        .fetch_all(connection)
        .await
        .map_err(|error| SetUp::of(error, shared))?;
    let row = rows
        .first()
        .ok_or_else(|| SetUp::of(sqlx::Error::RowNotFound, shared))?;
    debug_assert!(!row.is_empty());
    T::from_row(row).map_err(|error| SetUp::of(error, shared))
}

/// Why setting up did not work.
pub(super) enum SetUp {
    /// Another process is setting up or writing: worth another try.
    Busy(Failed),
    Wrong(Error),
}

impl SetUp {
    fn of(error: sqlx::Error, shared: &Shared) -> Self {
        let code = sqlite_code(&error);
        let failed = Failed::sqlite(error, Access::Read);
        if code.is_some_and(|code| code & 0xff == BUSY) {
            return Self::Busy(failed);
        }
        Self::Wrong(named(failed.into_error(), &shared.path))
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Busy(failed) => failed.into_error(),
            Self::Wrong(error) => error,
        }
    }
}

impl From<Error> for SetUp {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

/// Says which file it is about.
fn named(error: Error, path: &Path) -> Error {
    Error::new(error.kind(), path.display().to_string()).caused_by(error)
}

fn not_migrated(shared: &Shared, problem: &str) -> Error {
    file::wrong(
        &shared.path,
        format!("{problem}: run `{}`", migrate_command(shared)),
    )
}

fn migrate_command(shared: &Shared) -> String {
    let url = quoted(&shared.config.url());
    format!("distlock migrate --backend {url}")
}
