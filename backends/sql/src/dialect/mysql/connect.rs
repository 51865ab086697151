//! Connects to the primary, and reads its identity and limits.
//!
//! [`SESSION`] is the first request of every session.

use std::collections::HashMap;

use distlock_backend_kit::Certificates;
use distlock_core::{Error, ErrorKind, Result, at_most};
use sqlx::{
    ConnectOptions as _,
    mysql::{MySqlConnectOptions, MySqlRow, MySqlSslMode},
};

use super::{context::StoreContext, flavour::Flavour, pool::RawConnection, rows, statements::MOST};
use crate::{
    config::{ServerConfig, SslMode},
    network::{Candidate, Route},
    statement_error::{Access, StatementError, catch_panics},
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
    'max_allowed_packet', 'read_only', 'super_read_only', 'innodb_read_only')";

/// Tests that the server answers, and whether it takes writes.
pub(super) const READ_ONLY: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
    ('read_only', 'super_read_only', 'innodb_read_only')";

/// The server's product, version, identity and limits, from its variables.
pub(super) struct Variables {
    pub(super) flavour: Flavour,
    pub(super) server: String,
    /// A name that distinguishes this server from other servers; `None` in a Galera cluster, where
    /// the next connection may lead to another server.
    pub(super) identity: Option<String>,
    /// The largest size of a request in bytes: the server's `max_allowed_packet`.
    pub(super) packet: usize,
    /// Whether the server takes no writes.
    pub(super) read_only: bool,
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
            read_only: is_read_only(variables),
        })
    }
}

/// A new connection whose session is set up.
pub(super) struct NewConnection {
    pub(super) connection: RawConnection,
    pub(super) variables: Variables,
    /// The number of distlock's tables that exist.
    pub(super) tables_present: i64,
}

/// Connects to one of the servers, within the time limit of connecting.
pub(super) async fn connect(context: &StoreContext) -> Result<NewConnection> {
    let (config, clock) = (&context.config, &*context.common.clock);
    let connecting = context.servers.connect(
        config,
        clock,
        |error| StatementError::mysql(error, Access::Read).into_error(),
        |candidate| open_session(context, candidate),
    );
    let database = || database_label(context);
    match at_most(clock, config.connect_timeout, connecting).await {
        Some(connected) => {
            connected.map_err(|error| Error::new(error.kind(), database()).caused_by(error))
        }
        None => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{} did not answer in time (option `connect_timeout`)",
                database()
            ),
        )),
    }
}

/// Connects to a candidate and sets the session up.
pub(super) async fn open_session(
    context: &StoreContext,
    candidate: Candidate,
) -> Result<NewConnection> {
    context.common.counters.count("open");
    let target = &candidate;
    let attempt = |config: ServerConfig, certificates| async move {
        let connected = Box::pin(async {
            let route = Route::to(target, &config, "").await?;
            let options = options(&config, certificates, target.host.port, &route);
            route.carry(options.connect()).await
        });
        catch_panics(connected).await.map_err(|error| {
            let failed = StatementError::mysql(error, Access::Read);
            failed.on_connecting(&config).into_error()
        })
    };
    let connected = context.login.connect(&context.config, attempt).await;
    let mut connection = RawConnection::new(connected?);
    context.common.counters.count("open");
    let present = context.statements.tables_present();
    let script = format!("{SESSION}; {present}; {VARIABLES}");
    let answered = connection.exchange(context, script, Access::Read).await;
    let mut found = answered.map_err(|broken| broken.failed.into_error())?;
    let variables = found.rows.split_off(found.rows.len().min(1));
    let tables_present = match found.rows.first() {
        Some(row) => rows::column(row, 0)?,
        None => 0,
    };
    let variables = Variables::of(&variables_in(&variables)?)?;
    if variables.read_only && candidate.one_of_several {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "the server is read-only: it is a replica, or a primary that was set aside",
        ));
    }
    Ok(NewConnection {
        connection,
        variables,
        tables_present,
    })
}

/// The driver's options for a connection that is made now, on this way to the server.
fn options(
    config: &ServerConfig,
    certificates: Certificates,
    port: u16,
    route: &Route,
) -> MySqlConnectOptions {
    let mut options = MySqlConnectOptions::new()
        .host(route.host())
        .port(port)
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
    if let Some(socket) = route.socket().or(config.socket.as_ref()) {
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

/// The names and values in the answer to `SHOW VARIABLES`.
pub(super) fn variables_in(found: &[MySqlRow]) -> Result<HashMap<String, String>> {
    let found = found.iter();
    found
        .map(|row| Ok((rows::string(row, 0)?, rows::string(row, 1)?)))
        .collect()
}

/// Whether the server refuses writes, from its variables. MariaDB has further values than `ON` and
/// `OFF`: each of them refuses the writes of some users.
pub(super) fn is_read_only(variables: &HashMap<String, String>) -> bool {
    ["read_only", "super_read_only", "innodb_read_only"]
        .iter()
        .filter_map(|name| variables.get(*name))
        .any(|value| !["", "0", "OFF"].contains(&&*value.to_uppercase()))
}

/// The database's name and address for messages, without user and password.
pub(super) fn database_label(context: &StoreContext) -> String {
    let config = &context.config;
    format!("{:?} at {}", config.database, config.address())
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr, TcpListener},
        sync::Arc,
    };

    use distlock_core::SystemClock;
    use distlock_harness::servers::mysql::{MySqlServer, Product};

    use super::*;

    /// Connects to the server by this name, which has a silent address first, then one that nobody
    /// listens at, and the server's last.
    async fn connect_by_name(server: &MySqlServer, name: &str, options: &str) -> Result<()> {
        let address = server.address();
        let at = |last| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), address.port()));
        let _silent = TcpListener::bind(at(2)).unwrap();
        let at_address = format!("@{address}");
        let url = server
            .url()
            .replace(&at_address, &format!("@{name}:{}", address.port()));
        let url = url.replace("ssl-mode=disabled", options);
        let config = ServerConfig::from_url(&url)?;
        let limit = config.connect_timeout;
        let mut context = StoreContext::new(config, Arc::new(SystemClock))?;
        let addresses = vec![at(2), at(3), address];
        context.servers.names = vec![(name.to_owned(), addresses)];
        let started = context.common.clock.now();
        let connected = connect(&context).await;
        let took = context.common.clock.now().since(started);
        assert!(took < limit, "{took:?}");
        let mut connection = connected?.connection;
        let question = "SELECT 7".to_owned();
        let answer = connection.exchange(&context, question, Access::Read).await;
        let seven: i64 = rows::column(&answer.unwrap().rows[0], 0)?;
        assert_eq!(seven, 7);
        connection.close().await.unwrap();
        Ok(())
    }

    #[tokio::test]
    async fn the_next_address_of_a_name_is_tried_in_time() {
        for product in [Product::MariaDb, Product::MySql] {
            let server = MySqlServer::start(product).unwrap();
            connect_by_name(&server, "db.example", "ssl-mode=DISABLED")
                .await
                .unwrap();
        }
    }

    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn tls_verifies_the_name_at_each_address() {
        let pki = distlock_harness::Pki::new().unwrap();
        let authority = pki.path("ca.crt").display().to_string();
        for product in [Product::MariaDb, Product::MySql] {
            let server = MySqlServer::with_tls(product, &pki).unwrap();
            let verified = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={authority}");
            connect_by_name(&server, "localhost", &verified)
                .await
                .unwrap();
            // The certificate is for the addresses, and not for this name.
            let error = connect_by_name(&server, "db.example", &verified).await;
            let said = error.unwrap_err().to_string();
            assert!(said.contains("not for this host"), "{said}");
            let unverified = format!("ssl-mode=VERIFY_CA&ssl-ca={authority}");
            connect_by_name(&server, "db.example", &unverified)
                .await
                .unwrap();
        }
    }
}
