//! The options of the server, with their limits.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use distlock_core::{Error, ErrorKind, Result, Ttl};
use distlock_listen::{
    ConnectionBounds, IdentityFiles, NamedFile, Socket, TlsFiles, problem_without_tls,
};
use distlock_wire::FRAME_BYTES;

/// The options of a server.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The address of TCP to listen at, if there is one.
    pub listen: Option<String>,
    /// The path of a Unix socket to make.
    pub unix: Option<PathBuf>,
    /// Sockets that another process has made, such as systemd.
    pub inherited: Vec<Socket>,
    /// Whether the server may listen beyond loopback without TLS.
    pub insecure_listen: bool,
    /// The certificate chain of the server (PEM file), for sockets of TCP.
    pub tls_cert: Option<String>,
    /// The private key of `tls_cert` (PEM file).
    pub tls_key: Option<String>,
    /// The authorities (PEM file) of which each client has to show a certificate.
    pub tls_client_ca: Option<String>,
    /// The keys that sign the tokens of clients. With keys, each client has to show a token.
    pub token_key: Option<String>,
    /// The address for metrics, as HTTP without TLS.
    pub metrics_listen: Option<String>,
    /// The longest lease. A longer requested TTL is cut to it.
    pub max_lease: Duration,
    /// What clients may use.
    pub limits: ServerLimits,
}

/// What a server needs that keeps the locks in its own memory.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// The file with everything that a crash must not lose. Other files are beside it.
    pub path: PathBuf,
    /// Without the file, no server has granted locks before. Otherwise the server waits until the
    /// leases of a predecessor have ended. With the file, this changes nothing.
    pub is_new: bool,
}

/// What clients may use.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Connections.
    pub connections: usize,
    /// Connections of one address. Those through Unix sockets count as 127.0.0.1.
    pub connections_per_address: usize,
    /// The longest frame and the longest unary call, in bytes.
    pub frame_bytes: usize,
    /// Operations of one session without an answer.
    pub operations: usize,
    /// Names with a lock in the memory of the server.
    pub names: usize,
    /// Names with a lock of one session; 0 = no limit.
    pub names_per_session: usize,
    /// Callers that wait for locks.
    pub waiters: usize,
    /// Callers that wait for one lock.
    pub waiters_per_name: usize,
    /// The time of a connection to show that it speaks the protocol, and its token.
    pub login: Duration,
    /// The time after which a client that reads nothing is cut off.
    pub slow_reader: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: None,
            unix: None,
            inherited: Vec::new(),
            insecure_listen: false,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            token_key: None,
            metrics_listen: None,
            max_lease: Duration::from_secs(60),
            limits: ServerLimits::default(),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_address: 5_000,
            frame_bytes: FRAME_BYTES,
            operations: 4_096,
            names: 4_000_000,
            names_per_session: 0,
            waiters: 100_000,
            waiters_per_name: 100_000,
            login: Duration::from_secs(10),
            slow_reader: Duration::from_secs(10),
        }
    }
}

impl ServerConfig {
    /// The address of a server that was told none.
    #[must_use]
    pub fn default_listen() -> String {
        format!("127.0.0.1:{}", distlock_wire::DEFAULT_PORT)
    }

    /// Checks each option that can be checked without opening anything.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], naming the option.
    pub(crate) fn validate(&self) -> Result<()> {
        self.max_lease()?;
        self.tls_files()?;
        self.limits.validate()?;
        for (option, address) in [
            ("listen", &self.listen),
            ("metrics_listen", &self.metrics_listen),
        ] {
            // The name of a host has no address before it is bound.
            if let Some(address) = address.as_ref().and_then(|it| it.parse().ok()) {
                self.check_address(option, address)?;
            }
        }
        if self.listen.is_none() && self.unix.is_none() && self.inherited.is_empty() {
            return Err(config_error("listen", "is not set, and neither is unix"));
        }
        Ok(())
    }

    /// Refuses an address beyond loopback without TLS.
    pub(crate) fn check_address(&self, option: &'static str, address: SocketAddr) -> Result<()> {
        let (secured, advice) = match option {
            "metrics_listen" => (false, "metrics go without TLS, so use 127.0.0.1"),
            _ => (self.tls_cert.is_some(), "set tls_cert and tls_key"),
        };
        match problem_without_tls(address, secured || self.insecure_listen, advice) {
            Some(problem) => Err(config_error(option, &problem)),
            None => Ok(()),
        }
    }

    pub(crate) fn max_lease(&self) -> Result<Ttl> {
        let range = Duration::from_secs(1)..=Ttl::MAX.duration();
        if !range.contains(&self.max_lease) {
            let problem = format!("is {:?}, and 1 s to 24 h are allowed", self.max_lease);
            return Err(config_error("max_lease", &problem));
        }
        Ttl::new(self.max_lease)
    }

    /// The files of the certificate, its key, and the authorities of clients.
    pub(crate) fn tls_files(&self) -> Result<TlsFiles> {
        let mut files = TlsFiles {
            client_protocols: &[b"h2"],
            ..TlsFiles::default()
        };
        files.own = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some(IdentityFiles {
                cert: file("tls_cert", cert),
                key: file("tls_key", key),
            }),
            (None, None) => None,
            (Some(_), None) => return Err(config_error("tls_cert", "needs tls_key as well")),
            (None, Some(_)) => return Err(config_error("tls_key", "needs tls_cert as well")),
        };
        if let Some(ca) = &self.tls_client_ca {
            if files.own.is_none() {
                return Err(config_error(
                    "tls_client_ca",
                    "needs tls_cert and tls_key as well",
                ));
            }
            files.client_ca = Some(file("tls_client_ca", ca));
        }
        Ok(files)
    }

    pub(crate) fn token_file(&self) -> Option<NamedFile> {
        self.token_key.as_ref().map(|path| file("token_key", path))
    }
}

impl ServerLimits {
    /// Checks each limit against its range.
    fn validate(&self) -> Result<()> {
        const MOST: usize = 100_000_000;
        for (option, value, least, most) in [
            ("max_connections", self.connections, 1, 1_000_000),
            (
                "max_per_address",
                self.connections_per_address,
                1,
                1_000_000,
            ),
            // The client fills frames of 1 MiB, and one more operation.
            (
                "max_frame",
                self.frame_bytes,
                2 * 1024 * 1024,
                64 * 1024 * 1024,
            ),
            ("max_operations", self.operations, 1, 1_000_000),
            ("max_names", self.names, 1, MOST),
            ("max_names_per_session", self.names_per_session, 0, MOST),
            ("max_waiters", self.waiters, 1, MOST),
            ("max_waiters_per_name", self.waiters_per_name, 1, MOST),
        ] {
            if !(least..=most).contains(&value) {
                let problem = format!("is {value}: {least} to {most} are allowed");
                return Err(config_error(option, &problem));
            }
        }
        for (option, value) in [
            ("login_timeout", self.login),
            ("slow_reader", self.slow_reader),
        ] {
            if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&value) {
                let problem = format!("is {value:?}: 100 ms to 1 h are allowed");
                return Err(config_error(option, &problem));
            }
        }
        Ok(())
    }

    pub(crate) const fn bounds(&self) -> ConnectionBounds {
        ConnectionBounds {
            all: self.connections,
            // A client shows its first frame at once, so few connections wait for theirs.
            pending: self.connections / 4 + 1,
            all_per_address: self.connections_per_address,
            pending_per_address: self.connections_per_address / 4 + 1,
        }
    }
}

fn file(setting: &'static str, path: &str) -> NamedFile {
    NamedFile {
        setting,
        path: path.to_owned(),
    }
}

/// An error about the value of an option. `problem` follows the option as the rest of the sentence.
pub(crate) fn config_error(option: &'static str, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{option} {problem}")).of_setting(option)
}
