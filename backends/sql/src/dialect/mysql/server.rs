//! Connects to the server, and reads its identity and limits.
//!
//! [`SESSION`] is the first request of every session.

use std::collections::HashMap;

use distlock_backend_kit::Certificates;
use distlock_core::{Error, ErrorKind, Result, path_excerpt};
use sqlx::{
    ConnectOptions as _,
    mysql::{MySqlConnectOptions, MySqlSslMode},
};

use super::{
    context::StoreContext, flavour::Flavour, raw_connection::RawConnection, statements::MOST,
};
use crate::{
    config::{ServerConfig, SslMode},
    driver_panics::catch_panics,
    statement_error::{Access, StatementError},
};

/// Sets all session variables that the promises of the locks depend on. The server's defaults, the
/// server's `init_connect` or a proxy may have set other values.
///
/// - A value that does not fit its column is an error.
///
/// - The functions of time return the server's clock, in UTC.
///
/// - Every statement is a transaction of its own and sees all changes that were committed before
///   the statement.
///
/// - The server does not stop a statement after a time limit, but a statement waits only briefly
///   for rows that another transaction has locked.
///
/// - The optimiser does not estimate the number of rows for each key of a long list; that estimate
///   would cost an index lookup for each key.
///
/// A setting that only one of the two products knows is written as a comment that the other product
/// ignores.
pub(super) const SESSION: &str = "SET NAMES utf8mb4, autocommit = 1, completion_type = 0, \
    sql_safe_updates = 0, \
    sql_big_selects = 1, /*!80000 max_execution_time = 0, */ /*M!100600 max_statement_time = 0, */ \
    sql_select_limit = 18446744073709551615, sql_mode = \
    'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
    timestamp = DEFAULT, innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, wait_timeout = \
    28800, eq_range_index_dive_limit = 1; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

pub(super) const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
    ('version', 'version_comment', 'server_uuid', 'server_uid', 'wsrep_on', \
    'wsrep_cluster_address', \
    'max_allowed_packet')";

/// The server's product, version, identity and limits, from its variables.
pub(super) struct Variables {
    pub(super) flavour: Flavour,
    pub(super) server: String,
    /// A name that distinguishes this server from other servers; `None` in a Galera cluster, where
    /// the next connection may lead to another server.
    pub(super) identity: Option<String>,
    /// The largest size of a request in bytes: the server's `max_allowed_packet`.
    pub(super) packet: usize,
}

/// The assumed limit of a server that does not show its `max_allowed_packet`: the lowest value that
/// can be configured.
const LEAST_PACKET: usize = 1024;

impl Variables {
    pub(super) fn of(variables: &HashMap<String, String>) -> Result<Self> {
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
            packet: get("max_allowed_packet").parse().unwrap_or(LEAST_PACKET),
        })
    }
}

pub(super) async fn connect(context: &StoreContext) -> Result<RawConnection> {
    context.counters.count("open");
    let attempt = |config: ServerConfig, certificates| async move {
        let options = options(&config, certificates);
        let connected = tokio::select! {
            connected = catch_panics(options.connect()) => connected,
            () = context.clock.sleep(config.connect_timeout) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("{} did not answer in time (option \
                        `connect_timeout`)", database_label(context)),
                ));
            }
        };
        connected.map(RawConnection::new).map_err(|error| {
            let failed = StatementError::mysql(error, Access::Read).on_connecting(&config);
            let error = failed.into_error();
            Error::new(error.kind(), database_label(context)).caused_by(error)
        })
    };
    context.login.connect(&context.config, attempt).await
}

/// The driver's options for a connection that is made now.
fn options(config: &ServerConfig, certificates: Certificates) -> MySqlConnectOptions {
    let mut options = MySqlConnectOptions::new()
        .host(&config.host)
        .port(config.port)
        .username(config.user.as_deref().unwrap_or("root"))
        .database(&config.database)
        .ssl_mode(match config.ssl_mode_in_use() {
            SslMode::Disable => MySqlSslMode::Disabled,
            SslMode::Auto | SslMode::Prefer => MySqlSslMode::Preferred,
            SslMode::Require => MySqlSslMode::Required,
            SslMode::VerifyCa => MySqlSslMode::VerifyCa,
            SslMode::VerifyFull => MySqlSslMode::VerifyIdentity,
        })
        // The cache is large enough for all prepared statements, so that none is evicted. The other
        // options keep the driver from changing the session: [`SESSION`] sets all variables.
        .statement_cache_capacity(MOST)
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
    // The content and not the path: the driver would read a certificate and its key at two moments,
    // and the files may be replaced in between.
    if let Some(authorities) = certificates.authorities {
        options = options.ssl_ca_from_pem(authorities);
    }
    if let Some((certificate, key)) = certificates.client {
        options = options
            .ssl_client_cert_from_pem(certificate)
            .ssl_client_key_from_pem(key.reveal());
    }
    options
}

/// The database's name and address for messages, without user and password.
pub(super) fn database_label(context: &StoreContext) -> String {
    let config = &context.config;
    match &config.socket {
        Some(socket) => format!("{:?} at {}", config.database, path_excerpt(socket)),
        None => format!("{:?} at {}:{}", config.database, config.host, config.port),
    }
}
