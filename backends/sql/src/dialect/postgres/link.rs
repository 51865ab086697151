//! Connections: opened when they are needed, set up so that no setting of server, database or user changes a promise.

use std::{
    future::Future,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{Epoch, Error, ErrorKind, Result, panics};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, PgConnection,
    postgres::{PgConnectOptions, PgSslMode},
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{context::Shared, rows::column, session::Session, tables};
use crate::{
    config::{ServerConfig, SslMode},
    driver::panicked,
    error::{Access, Failed},
};

/// How long a statement waits for a row that somebody else has locked.
const ROW_LOCK: Duration = Duration::from_millis(400);

/// Has a session last for as long as nothing is asked of it. Not every version has these settings.
pub(super) const IDLE_FOR_EVER: &str = "
    SELECT count(set_config(name, '0', false)) FROM unnest(ARRAY['idle_session_timeout', 'transaction_timeout']) AS name
     WHERE current_setting(name, true) IS NOT NULL";

/// A few connections that are lent out one by one.
#[derive(Debug)]
pub(super) struct Links {
    // A std mutex: held to push and to pop only.
    idle: Mutex<Vec<Session>>,
    permits: Semaphore,
    /// Whether what is committed over these connections must be on the disk first.
    durable: bool,
}

/// A connection on loan. Unless it is [settled](Lent::settle), it is thrown away: its state is not known.
pub(super) struct Lent<'a> {
    links: &'a Links,
    connection: Session,
    _permit: SemaphorePermit<'a>,
}

impl Links {
    pub(super) fn new(size: u32, durable: bool) -> Self {
        Self {
            idle: Mutex::default(),
            permits: Semaphore::new(usize::try_from(size).unwrap_or(1).max(1)),
            durable,
        }
    }

    /// A connection, once one is free.
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
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => open(shared, self.durable).await?,
        };
        Ok(Lent {
            links: self,
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

impl Lent<'_> {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Gives it back, unless what happened on it has made it useless.
    pub(super) fn settle<T>(self, outcome: Result<T, Failed>) -> Result<T, Failed> {
        let broken = outcome.as_ref().err();
        if let Some(failed) = broken.filter(|failed| failed.meaning.reconnect) {
            // The others were opened on the same server, which may have gone.
            self.links.idle().clear();
            if failed.is_silence() {
                self.connection.leave();
            }
        } else if !self.links.permits.is_closed() {
            self.links.idle().push(self.connection);
        }
        outcome
    }
}

/// Bounds what waits for an answer. A panic of the driver is an answer that was not understood.
pub(super) async fn within<T>(
    shared: &Shared,
    access: Access,
    asking: impl Future<Output = Result<T, Failed>>,
) -> Result<T, Failed> {
    let asking = panics::catching(asking);
    tokio::select! {
        biased;
        answer = asking => answer.unwrap_or_else(|panic| {
            Err(Failed::postgres(panicked(&*panic), access))
        }),
        () = shared.clock.sleep(shared.config.statement_timeout) => Err(Failed::silent(access)),
    }
}

/// A connection to tables that are as they must be.
async fn open(shared: &Shared, durable: bool) -> Result<Session> {
    let opening = async {
        let (mut connection, schema) = connect(shared, durable).await?;
        let tables = tables::ready(&mut connection, shared, &schema).await?;
        let epoch = epoch(&mut connection, shared, &tables).await?;
        shared.note(epoch);
        let known = shared.schema.get_or_init(|| schema.clone());
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
    bounded(shared, opening).await
}

pub(super) async fn bounded<T>(
    shared: &Shared,
    asking: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = shared.config.connect_timeout;
    let asking = panics::catching(asking);
    tokio::select! {
        biased;
        answer = asking => answer.unwrap_or_else(|panic| {
            Err(Failed::postgres(panicked(&*panic), Access::Read).into_error())
        }).map_err(|error| {
            Error::new(error.kind(), shared.place()).caused_by(error)
        }),
        () = shared.clock.sleep(limit) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} did not answer in time (option `connect_timeout`)", shared.place()),
        )),
    }
}

/// What the driver connects with.
pub(super) fn options(config: &ServerConfig) -> PgConnectOptions {
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&config.host)
        .port(config.port)
        .database(&config.database)
        .application_name("distlock")
        // Nothing here is a fraction, and a pooler refuses a setting that it does not know.
        .extra_float_digits(None)
        .ssl_mode(match config.ssl_mode_in_use() {
            SslMode::Disable => PgSslMode::Disable,
            SslMode::Auto | SslMode::Prefer => PgSslMode::Prefer,
            SslMode::Require => PgSslMode::Require,
            SslMode::VerifyCa => PgSslMode::VerifyCa,
            SslMode::VerifyFull => PgSslMode::VerifyFull,
        });
    if let Some(socket) = &config.socket {
        options = options.socket(socket);
    }
    if let Some(user) = &config.user {
        options = options.username(user);
    }
    if let Some(password) = &config.password {
        options = options.password(password.reveal());
    }
    if let Some(ca) = &config.ssl_ca {
        options = options.ssl_root_cert(ca);
    }
    if let Some((cert, key)) = &config.ssl_client {
        options = options.ssl_client_cert(cert).ssl_client_key(key);
    }
    options.disable_statement_logging()
}

/// A connection whose session is set up, and the schema that it works in.
pub(super) async fn connect(shared: &Shared, durable: bool) -> Result<(Session, String)> {
    shared.tally.count("open");
    let failed = |error| shared.told(Failed::postgres(error, Access::Read));
    let connected = options(&shared.config).connect().await;
    let mut connection = connected.map_err(|error| {
        shared.told(Failed::postgres(error, Access::Read).on_connecting(&shared.config))
    })?;
    // On the server, a statement ends before we stop to wait for it.
    let statement = shared.config.statement_timeout.as_millis() * 3 / 4;
    let (end_left, left) = shared.sessions.end_left();
    // Planning a batch's statement takes longer than carrying it out, and every plan is by the unique index: once is enough.
    let set_up = format!(
        "SET default_transaction_isolation = 'read committed';
         SET statement_timeout = {statement};
         SET lock_timeout = {};
         SET idle_in_transaction_session_timeout = {statement};
         SET timezone = 'UTC';
         SET client_min_messages = warning;
         SET enable_seqscan = off;
         SET jit = off;
         SET plan_cache_mode = force_generic_plan;
         SELECT s.schema::text, pg_is_in_recovery(), current_setting('server_encoding'),
                set_config('synchronous_commit', CASE WHEN {} THEN 'off'
                           WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                           ELSE current_setting('synchronous_commit') END, false),
                set_config('search_path', coalesce(quote_ident(s.schema) || ', pg_temp', ''), false),
                pg_backend_pid(),
                ({IDLE_FOR_EVER}),
                ({end_left}),
                (SELECT (extract(epoch FROM backend_start) * 1000000)::int8 FROM pg_stat_get_activity(pg_backend_pid()))
           FROM (SELECT {} AS schema OFFSET 0) s",
        ROW_LOCK.as_millis(),
        !durable,
        shared.statements.schema(shared.schema.get().map(String::as_str)),
    );
    shared.tally.count("open");
    let answer = sqlx::raw_sql(AssertSqlSafe(set_up))
        .fetch_one(&mut connection)
        .await
        .map_err(failed)?;
    shared.sessions.ended(&left);
    let schema: Option<String> = column(&answer, 0)?;
    let schema = schema.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidConfig,
            "the user's search_path names no schema that it may use",
        )
    })?;
    if column(&answer, 1)? {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "the server is a standby: it takes no writes",
        ));
    }
    let encoding: String = column(&answer, 2)?;
    if !["UTF8", "SQL_ASCII"].contains(&encoding.as_str()) {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "the database's encoding is {encoding}, which cannot hold every name: use one with UTF8"
            ),
        ));
    }
    let started: Option<i64> = column(&answer, 8)?;
    let id = (column(&answer, 5)?, started.unwrap_or_default());
    Ok((shared.sessions.seat(id, connection)?, schema))
}

/// Which history this is: of which cluster, on which of its timelines, and of which tables in it.
async fn epoch(connection: &mut PgConnection, shared: &Shared, tables: &str) -> Result<Epoch> {
    const HISTORY: &str =
        "SELECT system_identifier::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
                             FROM pg_control_system()";
    shared.tally.count("open");
    match sqlx::query(HISTORY).fetch_one(connection).await {
        Ok(row) => {
            let (system, timeline): (String, String) = (column(&row, 0)?, column(&row, 1)?);
            Ok(Epoch::new(format!("{system}-{timeline}-{tables}")))
        }
        Err(error) => {
            let failed = Failed::postgres(error, Access::Read);
            // Hosted servers may keep it to themselves; then a failover is seen only where the tables say so.
            if failed.meaning.kind == ErrorKind::AccessDenied {
                return Ok(Epoch::new(tables));
            }
            Err(shared.told(failed))
        }
    }
}
