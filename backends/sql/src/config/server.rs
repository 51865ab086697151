//! The options of a store on a database server.
//!
//! The module owns the ranges of all options and the rule that no password crosses a network in
//! clear unless the options allow it. Reading and writing URLs is in `server_url`.
//!
//! The servers are the part `h1:5432,[::1]:5433` of a URL. No error shows a part of that text,
//! because a URL that lacks its `@` has a password there.

use std::{fmt, path::PathBuf, time::Duration};

use distlock_backend_kit::{
    PasswordRule, Secret, SharedProvider, is_loopback, not_compiled_in, percent_decode,
    percent_encode,
};
use distlock_core::{Error, ErrorKind, Result, path_excerpt};

use super::{
    product::{Product, SslMode},
    values::{REAP_AFTER, check_prefix, check_range, invalid},
};
#[cfg(feature = "tls")]
use distlock_backend_kit::CertificateFiles;

/// The servers, and the options of a store on them. `Debug` hides the password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The product.
    pub product: Product,
    /// The servers, of which the one that takes writes is used.
    pub hosts: Vec<ServerHost>,
    /// The Unix socket (MySQL) or its folder (Postgres), instead of the servers.
    pub socket: Option<PathBuf>,
    /// The user; by default the driver's own choice.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// Gives the credentials for each new connection, instead of `user` and `password`.
    pub provider: Option<SharedProvider>,
    /// The database that holds the tables.
    pub database: String,
    /// The protection of the connection.
    pub ssl_mode: SslMode,
    /// A PEM file with the authorities to trust.
    pub ssl_ca: Option<PathBuf>,
    /// PEM files with the client's certificate and its key.
    pub ssl_client: Option<(PathBuf, PathBuf)>,
    /// A text before the tables' names; empty by default.
    pub table_prefix: String,
    /// The largest number of connections of one handle; 1 to 32, 4 by default. Two connections can
    /// carry batches of changes at the same time, or one connection if the number is below three.
    /// All connections can carry reads. Renewals use another set of as many connections. On
    /// Postgres, waiting needs two more connections.
    pub pool_size: u32,
    /// The time limit of connecting; 100 ms to 60 s, 5 s by default.
    pub connect_timeout: Duration,
    /// The time limit of one statement, including the transfer of the request and of the answer;
    /// 100 ms to 60 s, 5 s by default.
    pub statement_timeout: Duration,
    /// Whether connecting creates absent tables. Connecting never changes tables that exist.
    pub migrate: bool,
    /// The time after which a free or expired row is removed; 1 s to 365 days, 1 h by default.
    pub reap_after: Duration,
}

impl ServerConfig {
    /// The configuration of one server at the default port, with the default of every other option.
    pub fn new(product: Product, host: impl Into<String>, database: impl Into<String>) -> Self {
        Self {
            product,
            hosts: vec![ServerHost::new(host, product.default_port())],
            socket: None,
            user: None,
            password: None,
            provider: None,
            database: database.into(),
            ssl_mode: SslMode::Auto,
            ssl_ca: None,
            ssl_client: None,
            table_prefix: String::new(),
            pool_size: 4,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(5),
            migrate: true,
            reap_after: Duration::from_secs(3600),
        }
    }

    /// Checks every option against its range, and whether the files of TLS can be read.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the option;
    /// [`ErrorKind::Unsupported`] when the options demand TLS and this build contains no TLS.
    pub fn check(&self) -> Result<()> {
        let checked = self.checked();
        // In a build without TLS, `checked` refuses the options that name files.
        #[cfg(feature = "tls")]
        let checked = checked.and_then(|()| self.certificate_files().map(drop));
        checked.map_err(|error| error.on(self.product.name()))
    }

    /// Reads and checks the files of TLS. A wrong file is then reported as a wrong configuration,
    /// and not as a failed connection.
    #[cfg(feature = "tls")]
    pub(super) fn certificate_files(&self) -> Result<CertificateFiles> {
        let [ca, cert, key] = self.product.ssl_files();
        let authorities = self.ssl_ca.clone().map(|path| (ca, path));
        let client = self.ssl_client.clone();
        let client = client.map(|(certificate, secret)| ((cert, certificate), (key, secret)));
        Ok(CertificateFiles::open(authorities, client, true)?.0)
    }

    pub(super) fn checked(&self) -> Result<()> {
        let example = self.product.example();
        let names = || self.hosts.iter().map(|host| host.name.as_str());
        let several = self.hosts.len() > 1;
        let lacks_name = self.hosts.is_empty() || names().any(str::is_empty);
        if lacks_name && (several || self.socket.is_none()) {
            return Err(invalid(format!("the URL names no host, as in {example}")));
        }
        // The text is not shown: a URL that lacks its `@` has a password there.
        if names().any(|name| name.contains(char::is_whitespace)) {
            return Err(invalid(format!(
                "the host in the URL contains a space: name a host or an address, as in {example}"
            )));
        }
        if several && (self.socket.is_some() || names().any(|it| self.is_path(it))) {
            return Err(invalid(
                "a Unix socket leads to one server: name no other host",
            ));
        }
        if self.database.is_empty() {
            return Err(invalid(format!(
                "the URL names no database, as in {example}"
            )));
        }
        let texts = [Some(&self.database), self.user.as_ref()];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            return Err(invalid(
                "the user or the database of the URL contains a NUL character",
            ));
        }
        if !(1..=32).contains(&self.pool_size) {
            return Err(invalid(format!(
                "option `pool_size`: {} is outside 1 to 32",
                self.pool_size
            )));
        }
        let timeouts = (Duration::from_millis(100), Duration::from_secs(60));
        check_range("connect_timeout", self.connect_timeout, timeouts)?;
        check_range("statement_timeout", self.statement_timeout, timeouts)?;
        check_range("reap_after", self.reap_after, REAP_AFTER)?;
        check_prefix(&self.table_prefix)?;
        let asked = !matches!(
            self.ssl_mode,
            SslMode::Auto | SslMode::Disable | SslMode::Prefer
        );
        if !asked && (self.ssl_ca.is_some() || self.ssl_client.is_some()) {
            return Err(invalid(format!(
                "certificates are given, but TLS is not asked for: set `{}` to one of {}",
                self.product.ssl_option(),
                self.product.ssl_modes().map(|(name, _)| name)[2..].join(", ")
            )));
        }
        if asked && !cfg!(feature = "tls") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                not_compiled_in("TLS", self.product.tls_features()),
            ));
        }
        self.check_password()
    }

    /// Refuses a password that would cross a network in clear, unless the options allow that.
    pub(super) fn check_password(&self) -> Result<()> {
        let rule = self.password_rule();
        self.peers()
            .into_iter()
            .try_for_each(|peer| rule.check(peer))
    }

    /// Whether the password would leave this machine. Such a password is sent only over TLS, unless
    /// the options allow plain text.
    fn password_leaves(&self) -> bool {
        self.sends_password() && self.peers().into_iter().any(|peer| !is_loopback(peer))
    }

    /// Whether the driver has a password to send. The driver of Postgres also takes a password from
    /// the environment variable `PGPASSWORD`.
    fn sends_password(&self) -> bool {
        let inherited =
            self.product == Product::Postgres && std::env::var_os("PGPASSWORD").is_some();
        self.password.is_some() || inherited
    }

    /// Whether a host is the folder of a Unix socket. The driver of Postgres takes a path for that.
    fn is_path(&self, host: &str) -> bool {
        self.product == Product::Postgres && host.starts_with('/')
    }

    /// Whether connections use a Unix socket.
    pub(crate) fn uses_socket(&self) -> bool {
        self.socket.is_some() || self.hosts.iter().any(|host| self.is_path(&host.name))
    }

    /// The hosts of the servers; `localhost` for a Unix socket.
    pub(crate) fn peers(&self) -> Vec<&str> {
        if self.uses_socket() {
            vec!["localhost"]
        } else {
            self.hosts.iter().map(|host| host.name.as_str()).collect()
        }
    }

    /// The address of the servers, for messages: without user and password.
    pub(crate) fn address(&self) -> String {
        match &self.socket {
            Some(socket) => path_excerpt(socket),
            None => {
                let hosts = self.hosts.iter().map(ToString::to_string);
                hosts.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// The mode of TLS that is given to the driver.
    pub(crate) fn ssl_mode_in_use(&self) -> SslMode {
        match self.ssl_mode {
            SslMode::Auto if self.password_leaves() && cfg!(feature = "tls") => SslMode::Require,
            SslMode::Auto => SslMode::Prefer,
            mode => mode,
        }
    }

    /// The rule for sending the password, from the options of this server.
    pub(crate) fn password_rule(&self) -> PasswordRule<'static> {
        let mode = self.ssl_mode_in_use();
        PasswordRule {
            sent: self.sends_password(),
            encrypted: !matches!(mode, SslMode::Auto | SslMode::Disable | SslMode::Prefer),
            clear_allowed: mode == SslMode::Disable,
            tls_built: cfg!(feature = "tls"),
            features: self.product.tls_features(),
            remedy: self.product.require_tls_advice(),
        }
    }
}

/// A server of a URL. At any time at most one server of a URL takes writes: the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerHost {
    /// A name or an address, without brackets.
    pub name: String,
    /// The TCP port.
    pub port: u16,
}

impl ServerHost {
    /// The server with this name or address, at this TCP port.
    pub fn new(name: impl Into<String>, port: u16) -> Self {
        Self {
            name: name.into(),
            port,
        }
    }

    /// Reads the list of servers of a URL, which separates them with commas.
    pub(super) fn list(authority: &str, default_port: u16) -> Result<Vec<Self>> {
        let servers = authority.split(',');
        servers.map(|it| Self::parse(it, default_port)).collect()
    }

    fn parse(server: &str, default_port: u16) -> Result<Self> {
        let (name, port) = if let Some(rest) = server.strip_prefix('[') {
            let (name, rest) = rest
                .split_once(']')
                .ok_or_else(|| invalid("the host of the URL has no closing bracket"))?;
            (name, rest.strip_prefix(':'))
        } else {
            match server.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (server, None),
            }
        };
        let name = percent_decode(name).ok_or_else(|| invalid("a part of the URL is not UTF-8"))?;
        let port = match port {
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| invalid("the text after the host and its `:` is no TCP port"))?,
            None => default_port,
        };
        Ok(Self { name, port })
    }

    /// The server as a part of a URL.
    pub(super) fn in_url(&self, default_port: u16) -> String {
        let name = if self.name.contains(':') {
            format!("[{}]", self.name)
        } else {
            percent_encode(&self.name)
        };
        if self.port == default_port {
            name
        } else {
            format!("{name}:{}", self.port)
        }
    }
}

impl fmt::Display for ServerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}
