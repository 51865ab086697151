//! Connects to the server and sets the session up, so that no setting of server, database or user
//! breaks a promise of the locks.
//!
//! The module owns the time limits of connecting and of a single request. (The listener sets its
//! own limits, and closing a connection has none.)

use std::{future::Future, time::Duration};

use distlock_backend_kit::{Certificates, panics};
use distlock_core::{Error, ErrorKind, Result, at_most};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, PgExecutor,
    postgres::{PgConnectOptions, PgSslMode},
};

use super::{
    context::{StoreContext, Timeline},
    pool::{Session, TAKES_NO_WRITES},
    rows::column,
};
use crate::{
    config::{ServerConfig, SslMode},
    network::{Candidate, Route},
    statement_error::{Access, StatementError, catch_panics, panic_error},
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
    let (clock, limit) = (&*context.common.clock, context.config.statement_timeout);
    match at_most(clock, limit, panics::catching(asking)).await {
        Some(Ok(answer)) => answer,
        Some(Err(panic)) => Err(StatementError::postgres(panic_error(&*panic), access)),
        None => Err(StatementError::postgres_timed_out(access)),
    }
}

pub(super) async fn with_connect_timeout<T>(
    context: &StoreContext,
    asking: impl Future<Output = Result<T>>,
) -> Result<T> {
    let (clock, limit) = (&*context.common.clock, context.config.connect_timeout);
    let database = || context.database_label();
    let answer = match at_most(clock, limit, panics::catching(asking)).await {
        Some(Ok(answer)) => answer,
        Some(Err(panic)) => {
            Err(StatementError::postgres(panic_error(&*panic), Access::Read).into_error())
        }
        None => {
            let text = format!(
                "{} did not answer in time (option `connect_timeout`)",
                database()
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
    };
    answer.map_err(|error| Error::new(error.kind(), database()).caused_by(error))
}

/// The driver's options for a connection that is made now, on this way to the server.
fn options(
    config: &ServerConfig,
    certificates: Certificates,
    port: u16,
    route: &Route,
) -> PgConnectOptions {
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(route.host())
        .port(port)
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
    if let Some(socket) = route.socket().or(config.socket.as_ref()) {
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

/// Connects to a candidate: `connecting` makes a connection with the driver's options.
pub(super) async fn dial<T, F>(
    context: &StoreContext,
    candidate: &Candidate,
    connecting: impl FnOnce(PgConnectOptions) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let port = candidate.host.port;
    let attempt = |config: ServerConfig, certificates| async move {
        let connected = Box::pin(async {
            let route = Route::to(candidate, &config, &format!("/.s.PGSQL.{port}")).await?;
            let options = options(&config, certificates, port, &route);
            route.carry(connecting(options)).await
        });
        catch_panics(connected).await.map_err(|error| {
            context.explain(StatementError::postgres(error, Access::Read).on_connecting(&config))
        })
    };
    context.login.connect(&context.config, attempt).await
}

/// Connects to one of the servers: `attempt` connects to a candidate.
pub(super) async fn to_one_server<T, F>(
    context: &StoreContext,
    attempt: impl Fn(Candidate) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let unresolved = |error| context.explain(StatementError::postgres(error, Access::Read));
    let servers = &context.servers;
    servers
        .connect(&context.config, &*context.common.clock, unresolved, attempt)
        .await
}

/// Whether a candidate takes no writes. The session is not set up, and a standby is no error.
pub(super) async fn takes_no_writes(context: &StoreContext, candidate: Candidate) -> Result<bool> {
    context.common.counters.count("doctor");
    let asking = |options: PgConnectOptions| async move {
        let mut connection = options.connect().await?;
        let asked = sqlx::query_scalar(TAKES_NO_WRITES);
        asked.fetch_one(&mut connection).await
    };
    dial(context, &candidate, asking).await
}

/// A new connection whose session is set up.
pub(super) struct NewSession {
    pub(super) session: Session,
    /// The schema of the tables.
    pub(super) schema: String,
}

/// Opens a connection to the primary and sets its session up. `durable` says whether a commit must
/// be on the disk before the server answers.
pub(super) async fn connect(context: &StoreContext, durable: bool) -> Result<NewSession> {
    to_one_server(context, |candidate| {
        open_session(context, candidate, durable)
    })
    .await
}

async fn open_session(
    context: &StoreContext,
    candidate: Candidate,
    durable: bool,
) -> Result<NewSession> {
    let failed = |error| context.explain(StatementError::postgres(error, Access::Read));
    context.common.counters.count("open");
    let connecting = |options: PgConnectOptions| async move { options.connect().await };
    let mut connection = dial(context, &candidate, connecting).await?;
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
                    pg_stat_get_activity(pg_backend_pid())),
                ({TAKES_NO_WRITES})
           FROM (SELECT {} AS schema OFFSET 0) s",
        ROW_LOCK_TIMEOUT.as_millis(),
        !durable,
        context
            .statements
            .schema(context.schema.get().map(String::as_str)),
    );
    context.common.counters.count("open");
    let answer = sqlx::raw_sql(AssertSqlSafe(set_up))
        .fetch_one(&mut connection)
        .await
        .map_err(failed)?;
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
    let read_only = column(&answer, 9)?;
    if read_only && candidate.one_of_several {
        return Err(set_aside());
    }
    let timeline = read_timeline(&mut connection, context).await?;
    if let Some(timeline) = &timeline {
        if !candidate.one_of_several {
            context.timelines.restart_at(timeline);
        } else if context.timelines.has_later_than(timeline) {
            return Err(former_primary());
        }
    }
    // Only the primary has the sessions that the query has ended.
    context.sessions.forget(&left);
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
    let tested = context.common.clock.now();
    let claimed = context
        .sessions
        .claim(id, connection, read_only, timeline, tested);
    Ok(NewSession {
        session: claimed?,
        schema,
    })
}

pub(super) fn set_aside() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server is read-only (`default_transaction_read_only`): it takes no writes",
    )
}

pub(super) fn former_primary() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server is a former primary that came back, and another one was promoted since; if \
         this one is right after all, restart this program",
    )
}

/// The timeline of a primary; `None` where the server hides it from this user.
pub(super) async fn read_timeline(
    connection: impl PgExecutor<'_>,
    context: &StoreContext,
) -> Result<Option<Timeline>> {
    const HISTORY: &str = "
        SELECT system_identifier::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
          FROM pg_control_system()";
    context.common.counters.count("open");
    // A prepared statement would take a second round trip.
    match sqlx::raw_sql(HISTORY).fetch_one(connection).await {
        Ok(row) => Ok(Some(Timeline {
            system: column(&row, 0)?,
            number: column(&row, 1)?,
        })),
        Err(error) => {
            let failed = StatementError::postgres(error, Access::Read);
            match failed.meaning.kind {
                ErrorKind::AccessDenied => Ok(None),
                _ => Err(context.explain(failed)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr, TcpListener},
        sync::Arc,
    };

    use distlock_core::SystemClock;
    use distlock_harness::servers::postgres::PostgresServer;

    use super::*;

    /// Connects to the server by this name, which has a silent address first, then one that nobody
    /// listens at, and the server's last.
    async fn connect_by_name(server: &PostgresServer, name: &str, options: &str) -> Result<()> {
        let address = server.address();
        let at = |last| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), address.port()));
        let _silent = TcpListener::bind(at(2)).unwrap();
        let url = server.url().replace("@127.0.0.1:", &format!("@{name}:"));
        let config = ServerConfig::from_url(&format!("{url}?{options}"))?;
        let limit = config.connect_timeout;
        let mut context = StoreContext::new(config, Arc::new(SystemClock))?;
        let addresses = vec![at(2), at(3), address];
        context.servers.names = vec![(name.to_owned(), addresses)];
        let started = context.common.clock.now();
        let connected = with_connect_timeout(&context, connect(&context, true)).await;
        let took = context.common.clock.now().since(started);
        assert!(took < limit, "{took:?}");
        let mut session = connected?.session;
        let answer: i32 = sqlx::query_scalar("SELECT 7")
            .fetch_one(&mut *session)
            .await
            .unwrap();
        assert_eq!(answer, 7);
        session.close().await;
        Ok(())
    }

    #[tokio::test]
    async fn the_next_address_of_a_name_is_tried_in_time() {
        let server = PostgresServer::start().unwrap();
        connect_by_name(&server, "db.example", "sslmode=disable")
            .await
            .unwrap();
    }

    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn tls_verifies_the_name_at_each_address() {
        let pki = distlock_harness::Pki::new().unwrap();
        let server = PostgresServer::with_tls(&pki).unwrap();
        let authority = pki.path("ca.crt").display().to_string();
        let verified = format!("sslmode=verify-full&sslrootcert={authority}");
        connect_by_name(&server, "localhost", &verified)
            .await
            .unwrap();
        // The certificate is for the addresses, and not for this name.
        let error = connect_by_name(&server, "db.example", &verified).await;
        let said = error.unwrap_err().to_string();
        assert!(said.contains("not for this host"), "{said}");
        let unverified = format!("sslmode=verify-ca&sslrootcert={authority}");
        connect_by_name(&server, "db.example", &unverified)
            .await
            .unwrap();
    }
}
