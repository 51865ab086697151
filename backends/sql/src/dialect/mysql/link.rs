//! Connections: opened when they are first needed, and again when they broke.

use std::{
    collections::HashMap,
    fmt::Write as _,
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Epoch, Error, ErrorKind, Moment, Result};
use sqlx::{
    ConnectOptions as _,
    mysql::{MySqlConnectOptions, MySqlSslMode},
};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    Shared, prepared, rows,
    statements::Statements,
    wire::{Answers, Broken, Prepared, Wire},
};
use crate::{
    config::SslMode,
    error::{Access, Failed},
    migrate::{self, LATEST, TablesStatus},
};

/// A connection that was idle for longer is tried before it is used: firewalls and servers forget such connections.
const IDLE: Duration = Duration::from_secs(10);

/// How long opening waits for other processes that make the tables at the same moment.
const SETTING_UP: Duration = Duration::from_secs(3);

/// Makes the session what the promises rest on, whatever the server's defaults, its `init_connect` or a proxy made of it:
/// strict about what does not fit, at the server's true time, every statement a transaction of its own that sees what was
/// committed before it, and not waiting for long for what others have locked. And made to look rows up by their key, many
/// at once, without estimating first how many there are of each name.
const SESSION: &str = "SET NAMES utf8mb4, autocommit = 1, completion_type = 0, sql_safe_updates = 0, \
    sql_select_limit = 18446744073709551615, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
    timestamp = DEFAULT, innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, wait_timeout = 28800, eq_range_index_dive_limit = 1; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
    ('version', 'version_comment', 'server_uuid', 'server_uid', 'wsrep_on', 'wsrep_cluster_address')";

/// Which of the two products it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

impl Flavour {
    /// What follows the values of an insert that speaks of the row it would have inserted.
    pub(super) const fn new_row(self) -> &'static str {
        match self {
            Self::MariaDb => "",
            Self::MySql => " AS new",
        }
    }

    /// A column of that row. MySQL is about to lose the one form, MariaDB never had the other.
    pub(super) fn new_column(self, column: &str) -> String {
        match self {
            Self::MariaDb => format!("VALUES({column})"),
            Self::MySql => format!("new.{column}"),
        }
    }
}

/// A few connections that are lent out one by one.
#[derive(Debug)]
pub(super) struct Links {
    // A std mutex: held to push and to pop only.
    idle: Mutex<Vec<Link>>,
    permits: Semaphore,
}

/// A connection on loan, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    links: &'a Links,
    link: Link,
    _permit: SemaphorePermit<'a>,
}

/// One connection, or the place for one.
#[derive(Debug, Default)]
pub(super) struct Link {
    open: Option<Open>,
    /// Whether a connection of this loan was of no more use.
    broke: bool,
}

#[derive(Debug)]
pub(crate) struct Open {
    wire: Wire,
    pub(super) flavour: Flavour,
    /// Product and version, as people know them.
    pub(super) server: String,
    /// What names the tables, whichever server they are on.
    pub(super) tables: String,
    pub(super) epoch: Epoch,
    /// Whether the server is asked to remember statements.
    pub(super) prepares: bool,
    used: Moment,
}

impl Links {
    pub(super) fn new(size: u32, first: Link) -> Self {
        Self {
            idle: Mutex::new(vec![first]),
            permits: Semaphore::new(usize::try_from(size).unwrap_or(1).max(1)),
        }
    }

    /// A connection, once one is free; the one that was used last, if there is a choice.
    pub(super) async fn lend(&self, shared: &Shared) -> Result<Lent<'_>> {
        let permit = tokio::select! {
            biased;
            permit = self.permits.acquire() => permit.map_err(|_| {
                Error::new(ErrorKind::Closed, "the store's handle was closed")
            })?,
            () = shared.clock.sleep(shared.config.statement_timeout) => {
                return Err(Error::new(ErrorKind::Unavailable, "all connections are in use"));
            }
        };
        Ok(Lent {
            link: self.idle().pop().unwrap_or_default(),
            links: self,
            _permit: permit,
        })
    }

    pub(super) async fn close(&self, shared: &Shared) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for link in idle {
            link.close(shared).await;
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Lent<'_> {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut link = std::mem::take(&mut self.link);
        if std::mem::take(&mut link.broke) {
            // The others were opened on the same server, which may have gone.
            self.links.idle().clear();
        }
        // What was left in the middle of an answer would take the rest of it for the answer to what is sent next.
        let good = link.open.as_ref().is_some_and(|open| !open.wire.is_spent());
        if good && !self.links.permits.is_closed() {
            self.links.idle().push(link);
        }
    }
}

impl Link {
    /// The connection.
    pub(super) async fn ready(&mut self, shared: &Shared) -> Result<&mut Open> {
        if let Some(open) = &mut self.open {
            let idle = shared.clock.now().since(open.used) > IDLE;
            if open.wire.is_spent() || (idle && !open.wire.answers(shared).await) {
                self.disconnect();
            }
        }
        if self.open.is_none() {
            let open = Open::new(shared).await?;
            shared.note(&open.epoch);
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
            self.disconnect();
        }
        failed
    }

    /// Forgets the connection: the next operation opens another.
    pub(super) fn disconnect(&mut self) {
        self.broke |= self.open.take().is_some();
    }

    async fn close(self, shared: &Shared) {
        if let Some(open) = self.open {
            tokio::select! {
                closed = open.wire.close() => {
                    if let Err(error) = closed {
                        tracing::debug!(%error, "a connection did not close cleanly");
                    }
                }
                () = shared.clock.sleep(shared.config.statement_timeout) => {}
            }
        }
    }
}

impl Open {
    async fn new(shared: &Shared) -> Result<Self> {
        let mut wire = connect(shared).await?;
        let (variables, version) = introduce(&mut wire, shared).await?;
        let version = match version {
            Found::Whole(version, tables) => (version, tables),
            Found::Partly(problem) => return Err(not_migrated(shared, problem)),
            Found::Nothing if shared.was_opened() => return Err(wrong(shared, migrate::GONE)),
            Found::Nothing if !shared.config.migrate => {
                return Err(not_migrated(shared, "has no tables of distlock"));
            }
            Found::Nothing => {
                upgrade(&mut wire, shared, 0).await?;
                match meta(&mut wire, shared).await? {
                    Some(meta) => meta,
                    None => return Err(not_migrated(shared, UNFINISHED)),
                }
            }
        };
        let (version, tables) = version;
        if version < LATEST {
            let problem =
                format!("has tables of version {version}, and this program needs version {LATEST}");
            return Err(not_migrated(shared, &problem));
        }
        not_later(shared, version)?;
        tables_are_whole(&mut wire, shared).await?;
        Ok(Self {
            wire,
            flavour: variables.flavour,
            server: variables.server,
            epoch: Epoch::new(match variables.identity {
                Some(server) => format!("{tables}@{server}"),
                None => tables.clone(),
            }),
            tables,
            prepares: true,
            used: shared.clock.now(),
        })
    }

    /// Sends statements, in one round trip, and reads what comes back.
    pub(crate) async fn send(
        &mut self,
        shared: &Shared,
        operation: &'static str,
        statements: String,
        access: Access,
    ) -> Result<Answers, Broken> {
        shared.group.count(operation);
        let answered = self.wire.exchange(shared, statements, access).await;
        self.used = shared.clock.now();
        answered
    }

    /// Sends one statement that the server is to remember, and reads what comes back.
    pub(super) async fn send_prepared(
        &mut self,
        shared: &Shared,
        operation: &'static str,
        statement: Prepared<'_>,
    ) -> Result<Answers, Broken> {
        shared.group.count(operation);
        let answered = self.wire.read(shared, statement, Access::Write).await;
        self.used = shared.clock.now();
        answered
    }

    /// Notes that the server cannot be made to remember statements.
    pub(super) fn sends_text_only(&mut self, problem: Broken) {
        let problem = problem.failed.into_error();
        tracing::debug!(%problem, "statements are sent as text from now on");
        self.prepares = false;
    }

    /// Ends a transaction that a failed statement has left open. Says whether that worked.
    pub(super) async fn roll_back(&mut self, shared: &Shared) -> bool {
        self.send(shared, "rollback", "ROLLBACK".to_owned(), Access::Read)
            .await
            .is_ok()
    }
}

/// Brings the tables up to date and says from which version it went.
pub(super) async fn migrate(shared: &Shared) -> Result<i64> {
    let mut wire = connect(shared).await?;
    let (_, found) = introduce(&mut wire, shared).await?;
    let version = match found {
        Found::Whole(version, _) => version,
        Found::Nothing => 0,
        // As when whoever made them was stopped: here, one table comes after the other.
        Found::Partly(problem) => {
            parts_are_ours(&mut wire, shared, problem).await?;
            0
        }
    };
    not_later(shared, version)?;
    if version < LATEST {
        upgrade(&mut wire, shared, version).await?;
    }
    tables_are_whole(&mut wire, shared).await?;
    leave(wire).await;
    Ok(version)
}

/// The version of the tables; 0 when there are none. Changes nothing.
pub(super) async fn version(shared: &Shared) -> Result<i64> {
    let mut wire = connect(shared).await?;
    let (_, found) = introduce(&mut wire, shared).await?;
    let version = match found {
        Found::Whole(version, _) => version,
        Found::Nothing => 0,
        Found::Partly(problem) => return Err(not_migrated(shared, problem)),
    };
    not_later(shared, version)?;
    if version == LATEST {
        tables_are_whole(&mut wire, shared).await?;
    }
    leave(wire).await;
    Ok(version)
}

async fn leave(wire: Wire) {
    if let Err(error) = wire.close().await {
        tracing::debug!(%error, "a connection did not close cleanly");
    }
}

async fn connect(shared: &Shared) -> Result<Wire> {
    let config = &shared.config;
    let mut options = MySqlConnectOptions::new()
        .host(&config.host)
        .port(config.port)
        .username(config.user.as_deref().unwrap_or("root"))
        .database(&config.database)
        .ssl_mode(match config.ssl_mode {
            SslMode::Disable => MySqlSslMode::Disabled,
            SslMode::Prefer => MySqlSslMode::Preferred,
            SslMode::Require => MySqlSslMode::Required,
            SslMode::VerifyCa => MySqlSslMode::VerifyCa,
            SslMode::VerifyFull => MySqlSslMode::VerifyIdentity,
        })
        // None that is used again is ever given up, and the session is set up by ourselves.
        .statement_cache_capacity(prepared::MOST)
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging();
    if let Some(password) = &config.password {
        options = options.password(password.reveal());
    }
    if let Some(socket) = &config.socket {
        options = options.socket(socket);
    }
    if let Some(authorities) = &config.ssl_ca {
        options = options.ssl_ca(authorities);
    }
    if let Some((certificate, key)) = &config.ssl_client {
        options = options.ssl_client_cert(certificate).ssl_client_key(key);
    }
    shared.group.count("open");
    let connected = tokio::select! {
        connected = options.connect() => connected,
        () = shared.clock.sleep(config.connect_timeout) => {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{} did not answer within {:?}", place(shared), config.connect_timeout),
            ));
        }
    };
    connected.map(Wire::new).map_err(|error| {
        let error = Failed::mysql(error, Access::Read).into_error();
        Error::new(error.kind(), place(shared)).caused_by(error)
    })
}

/// What a server says of itself.
struct Variables {
    flavour: Flavour,
    server: String,
    /// What tells it from other servers; `None` where any of a cluster may answer.
    identity: Option<String>,
}

/// Which of our tables are there.
enum Found {
    Nothing,
    /// Not all of them, or not what is in them from the beginning: what is wrong.
    Partly(&'static str),
    /// All of them: their version, and what names them.
    Whole(i64, String),
}

const UNFINISHED: &str = "has tables of distlock that were not finished";

const ONLY_SOME: &str = "has only some of distlock's tables, or another program's tables of the same names. For the latter, \
     choose another database or a `table_prefix`; to make what is missing";

/// Sets the session up, and asks who is there and what is there.
async fn introduce(wire: &mut Wire, shared: &Shared) -> Result<(Variables, Found)> {
    let mut script = SESSION.to_owned();
    let _ = write!(script, "; {}; {VARIABLES}", shared.statements.objects());
    let found = run(wire, shared, script).await?;
    let mut rows_found = found.rows.iter();
    let mut objects: i64 = match rows_found.next() {
        Some(row) => rows::column(row, 0)?,
        None => 0,
    };
    let mut variables = HashMap::new();
    for row in rows_found {
        variables.insert(rows::string(row, 0)?, rows::string(row, 1)?);
    }
    let variables = Variables::of(&variables)?;
    let deadline = shared.clock.now() + SETTING_UP;
    let found = loop {
        match present(wire, shared, objects).await? {
            // Another process may be making them: here, one table comes after the other.
            Found::Partly(_) if shared.clock.now() < deadline => {
                shared.clock.sleep(SETTING_UP / 100).await;
                let found = run(wire, shared, shared.statements.objects()).await?;
                objects = match found.rows.first() {
                    Some(row) => rows::column(row, 0)?,
                    None => 0,
                };
            }
            found => break found,
        }
    };
    Ok((variables, found))
}

/// What is there, where so many tables are.
async fn present(wire: &mut Wire, shared: &Shared, objects: i64) -> Result<Found> {
    Ok(match objects {
        0 => Found::Nothing,
        3 => match meta(wire, shared).await? {
            Some((version, tables)) => Found::Whole(version, tables),
            None => Found::Partly(UNFINISHED),
        },
        _ => Found::Partly(ONLY_SOME),
    })
}

impl Variables {
    fn of(variables: &HashMap<String, String>) -> Result<Self> {
        let get = |name: &str| variables.get(name).map_or("", String::as_str);
        let version = get("version");
        let flavour = if version.contains("MariaDB") || get("version_comment").contains("MariaDB") {
            Flavour::MariaDb
        } else {
            Flavour::MySql
        };
        let number = version.split('-').next().unwrap_or(version);
        let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
        let parts: (u32, u32, u32) = (
            parts.next().unwrap_or(0),
            parts.next().unwrap_or(0),
            parts.next().unwrap_or(0),
        );
        let (name, least) = match flavour {
            Flavour::MariaDb => ("MariaDB", (10, 6, 0)),
            Flavour::MySql => ("MySQL", (8, 0, 19)),
        };
        if parts < least {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{name} {version} cannot skip locked rows: at least {}.{}.{} is needed",
                    least.0, least.1, least.2
                ),
            ));
        }
        let clustered = get("wsrep_on").eq_ignore_ascii_case("on");
        let identity = ["server_uuid", "server_uid"]
            .map(get)
            .into_iter()
            .find(|identity| !identity.is_empty());
        Ok(Self {
            flavour,
            server: format!("{name} {number}"),
            identity: identity.filter(|_| !clustered).map(str::to_owned),
        })
    }
}

/// The tables' version, and what names them; `None` when that was not written yet.
async fn meta(wire: &mut Wire, shared: &Shared) -> Result<Option<(i64, String)>> {
    let found = run(wire, shared, shared.statements.meta()).await?;
    let row = found.rows.first();
    row.map(|row| Ok((rows::column(row, 0)?, rows::string(row, 1)?)))
        .transpose()
}

/// Whether those of our tables that are there have our columns: others are another program's, and are left alone.
async fn parts_are_ours(wire: &mut Wire, shared: &Shared, problem: &'static str) -> Result<()> {
    for (table, whole) in shared.statements.each_whole() {
        let there = run(wire, shared, Statements::is_there(table)).await?;
        if there.rows.is_empty() {
            continue;
        }
        run(wire, shared, whole).await.map_err(|error| {
            let problem = if error.kind() == ErrorKind::InvalidConfig {
                not_migrated(shared, problem)
            } else {
                Error::new(error.kind(), place(shared))
            };
            problem.caused_by(error)
        })?;
    }
    Ok(())
}

fn not_later(shared: &Shared, version: i64) -> Result<()> {
    migrate::too_late(version).map_or(Ok(()), |problem| Err(wrong(shared, problem)))
}

/// Whether every column is there that is read or written.
async fn tables_are_whole(wire: &mut Wire, shared: &Shared) -> Result<()> {
    shared.group.count("open");
    let asked = wire
        .exchange(shared, shared.statements.whole(), Access::Read)
        .await;
    let Err(broken) = asked else { return Ok(()) };
    let error = broken.failed.into_error();
    let says = if error.kind() == ErrorKind::InvalidConfig {
        let command = migrate_command(shared);
        migrate::start_over(&shared.config.table_prefix, ", ", &command)
    } else {
        place(shared)
    };
    Err(Error::new(error.kind(), says).caused_by(error))
}

/// Applies the migrations that are missing. Each statement of theirs may be repeated: here, every change of a table is a
/// transaction of its own, and others may do the same at the same time.
async fn upgrade(wire: &mut Wire, shared: &Shared, version: i64) -> Result<()> {
    for migration in TablesStatus::at(version, &migrate::MYSQL).migrations {
        run(wire, shared, shared.statements.script(migration.sql)).await?;
    }
    Ok(())
}

async fn run(wire: &mut Wire, shared: &Shared, script: String) -> Result<Answers> {
    shared.group.count("open");
    wire.exchange(shared, script, Access::Read)
        .await
        .map_err(|broken| {
            let error = broken.failed.into_error();
            Error::new(error.kind(), place(shared)).caused_by(error)
        })
}

/// Which database it is about, without user and password.
fn place(shared: &Shared) -> String {
    let config = &shared.config;
    match &config.socket {
        Some(socket) => format!("{:?} at {}", config.database, socket.display()),
        None => format!("{:?} at {}:{}", config.database, config.host, config.port),
    }
}

fn wrong(shared: &Shared, problem: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("the database {} {problem}", place(shared)),
    )
}

fn not_migrated(shared: &Shared, problem: &str) -> Error {
    wrong(
        shared,
        format!("{problem}: run `{}`", migrate_command(shared)),
    )
}

fn migrate_command(shared: &Shared) -> String {
    let url = crate::config::quoted(&shared.config.url());
    format!("distlock migrate --backend {url}")
}
