//! Connects to the server and sets the session up, so that no setting of server, database or user
//! breaks a promise of the locks.
//!
//! The module owns the time limits of connecting and of a single request. (The listener sets its
//! own limits, and closing a connection has none.)

use std::{future::Future, time::Duration};

use distlock_backend_kit::{Certificates, panics};
use distlock_core::{Error, ErrorKind, Result};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _,
    postgres::{PgConnectOptions, PgSslMode},
};

use super::{context::StoreContext, rows::column, session::Session};
use crate::{
    config::{ServerConfig, SslMode},
    driver_panics::panic_error,
    statement_error::{Access, StatementError},
};

/// The longest wait of a statement for a row that another transaction has locked.
const ROW_LOCK_TIMEOUT: Duration = Duration::from_millis(400);

/// Turns off the settings that end an idle session. Some versions of Postgres lack these settings.
pub(super) const NO_IDLE_TIMEOUTS: &str = "
    SELECT count(set_config(name, '0', false)) FROM unnest(ARRAY['idle_session_timeout', \
        'transaction_timeout']) AS name
     WHERE current_setting(name, true) IS NOT NULL";

/// Limits the time of one request. A panic of the driver becomes the error for an answer that
/// cannot be understood.
pub(super) async fn with_statement_timeout<T>(
    context: &StoreContext,
    access: Access,
    asking: impl Future<Output = Result<T, StatementError>>,
) -> Result<T, StatementError> {
    let asking = panics::catching(asking);
    tokio::select! {
        biased;
        answer = asking => answer.unwrap_or_else(|panic| {
            Err(StatementError::postgres(panic_error(&*panic), access))
        }),
        () = context.clock.sleep(context.config.statement_timeout) => {
            Err(StatementError::postgres_timed_out(access))
        }
    }
}

pub(super) async fn with_connect_timeout<T>(
    context: &StoreContext,
    asking: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = context.config.connect_timeout;
    let asking = panics::catching(asking);
    tokio::select! {
        biased;
        answer = asking => answer.unwrap_or_else(|panic| {
            Err(StatementError::postgres(panic_error(&*panic), Access::Read).into_error())
        }).map_err(|error| {
            Error::new(error.kind(), context.database_label()).caused_by(error)
        }),
        () = context.clock.sleep(limit) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} did not answer in time (option \
                `connect_timeout`)", context.database_label()),
        )),
    }
}

/// The driver's options for a connection that is made now.
pub(super) fn options(config: &ServerConfig, certificates: Certificates) -> PgConnectOptions {
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&config.host)
        .port(config.port)
        .database(&config.database)
        .application_name("distlock")
        // No stored value is a fraction, so that this setting is not needed. A pooler would refuse
        // the connection because of a setting that the pooler does not know.
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
    // The content and not the path: the driver would read a certificate and its key at two moments,
    // and the files may be replaced in between.
    if let Some(authorities) = certificates.authorities {
        options = options.ssl_root_cert_from_pem(authorities);
    }
    if let Some((cert, key)) = certificates.client {
        options = options
            .ssl_client_cert_from_pem(cert)
            .ssl_client_key_from_pem(key.reveal());
    }
    options.disable_statement_logging()
}

/// Opens a connection and sets its session up. Returns the connection and the schema of the tables.
/// `durable` says whether a commit must be on the disk before the server answers.
pub(super) async fn connect(context: &StoreContext, durable: bool) -> Result<(Session, String)> {
    context.counters.count("open");
    let failed = |error| context.explain(StatementError::postgres(error, Access::Read));
    let attempt = |config, certificates| async move {
        let connected = options(&config, certificates).connect().await;
        connected.map_err(|error| {
            let failed = StatementError::postgres(error, Access::Read);
            context.explain(failed.on_connecting(&config))
        })
    };
    let mut connection = context.login.connect(&context.config, attempt).await?;
    // The server stops a statement before the client's own time limit ends the wait.
    let statement = context.config.statement_timeout.as_millis() * 3 / 4;
    let (end_abandoned, left) = context.sessions.end_abandoned();
    // Planning a batch's statement takes the server longer than carrying the statement out, and
    // every plan uses the unique index. So one generic plan is enough.
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
                set_config('search_path', coalesce(quote_ident(s.schema) || ', pg_temp', ''), \
                    false),
                pg_backend_pid(),
                ({NO_IDLE_TIMEOUTS}),
                ({end_abandoned}),
                (SELECT (extract(epoch FROM backend_start) * 1000000)::int8 FROM \
                    pg_stat_get_activity(pg_backend_pid()))
           FROM (SELECT {} AS schema OFFSET 0) s",
        ROW_LOCK_TIMEOUT.as_millis(),
        !durable,
        context
            .statements
            .schema(context.schema.get().map(String::as_str)),
    );
    context.counters.count("open");
    let answer = sqlx::raw_sql(AssertSqlSafe(set_up))
        .fetch_one(&mut connection)
        .await
        .map_err(failed)?;
    context.sessions.forget(&left);
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
                "the database's encoding is {encoding}, which cannot hold every name: use one \
                    with UTF8"
            ),
        ));
    }
    let started: Option<i64> = column(&answer, 8)?;
    let id = (column(&answer, 5)?, started.unwrap_or_default());
    Ok((context.sessions.claim(id, connection)?, schema))
}
