//! The options of a ZooKeeper store, and their types.
//!
//! The `Debug` form of these types must never show a password.

use std::{path::PathBuf, time::Duration};

use distlock_backend_kit::{DriverOption, PasswordRule, Secret, SharedProvider};

/// The features of the library that bring this backend with TLS.
pub(super) const TLS_FEATURES: &str = "zookeeper,tls";

/// The options of a ZooKeeper store: servers, root path, timeouts, credentials and TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZooKeeperConfig {
    /// The servers, each `host:port`.
    pub servers: Vec<String>,
    /// The node that is the parent of all others; `/distlock` by default. This node is created when
    /// it is absent. The path must not be `/` or under `/zookeeper`.
    pub root: String,
    /// The session timeout to request: 500 ms to 1 h, 10 s by default. The ensemble may grant
    /// another timeout; by default it grants 2 to 20 of its ticks. After a holder has crashed, its
    /// lock remains for at most the granted timeout. Without an answer of the ensemble, a holder
    /// trusts its lock for at most two thirds of the granted timeout.
    pub session_timeout: Duration,
    /// The servers' `tickTime`. Set it only when the servers' `minSessionTimeout` is not the
    /// default of two ticks. Otherwise the tick is measured, as half of the shortest session that
    /// the servers grant. A session must last at least two ticks.
    pub tick_time: Option<Duration>,
    /// The time limit of one operation, including its answer: 100 ms to 5 s, 4 s by default.
    pub request_timeout: Duration,
    /// The time for which `open` waits for the first session; 5 s by default.
    pub connect_timeout: Duration,
    /// The credentials of this client.
    pub credentials: Option<Credentials>,
    /// Gives the user and the password for each new session, instead of those in `credentials`. It
    /// is not asked where `credentials` is `None`.
    pub provider: Option<SharedProvider>,
    /// The access list of the nodes that this client creates. Default: [`AclPolicy::Creator`] with
    /// credentials, otherwise [`AclPolicy::Open`].
    pub acl: AclPolicy,
    /// The files for TLS; `None` = without TLS.
    pub tls: Option<TlsFiles>,
    /// Whether a password of ZooKeeper's `digest` may leave this machine without TLS
    /// (`tls=disable`).
    pub clear_password: bool,
    /// The time for which the mark of a deleted record stays: 1 s to 365 days, 1 h by default, and
    /// at least twice the session timeout. A write that is still in flight must find the mark.
    pub reap_after: Duration,
}

/// A user, a password, and the way in which the client proves them to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password. The password is sent in plain text unless TLS or SASL is used.
    pub password: Secret,
    /// The way in which the client proves user and password to the server.
    pub mechanism: Mechanism,
}

/// The way in which a client proves its credentials to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// ZooKeeper's `digest` scheme. The server accepts any user with any password. The access list
    /// of each node says which of these users may change the node.
    #[default]
    Digest,
    /// SASL with DIGEST-MD5. The server knows a list of users and refuses others.
    SaslDigestMd5,
}

/// The clients that may change the nodes that this client creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AclPolicy {
    /// Clients with the same credentials.
    Creator,
    /// Every client that can connect.
    Open,
}

/// The files of certificates, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may sign the servers' certificates.
    pub ca: PathBuf,
    /// The certificate of this client, for servers that require one.
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
}

impl ZooKeeperConfig {
    /// The options, as in a URL.
    pub const OPTIONS: [DriverOption; 10] = {
        const PEM: &str = "PEM files; the first turns TLS on";
        [
            DriverOption::new(
                "session_timeout",
                "500 ms to 1 h; the ensemble may grant another",
                "10s",
            ),
            DriverOption::new(
                "tick_time",
                "the servers' `tickTime`: needed only where their `minSessionTimeout` is less than \
                 two ticks; at most half of `session_timeout`",
                "half of the shortest session that the servers allow",
            ),
            DriverOption::new(
                "request_timeout",
                "100 ms to 5 s: how long one operation waits for its answer",
                "4s",
            ),
            DriverOption::new(
                "reap_after",
                "at least twice `session_timeout`, to 365 d: how long the marker of a deleted \
                 record stays",
                "1h",
            ),
            DriverOption::new(
                "acl",
                "`creator` or `open`: the clients that may use its nodes",
                "`creator` with credentials, else `open`",
            ),
            DriverOption::new(
                "sasl",
                "`digest-md5`: sends credentials by SASL, for servers with a list of users",
                "ZooKeeper's own `digest`",
            ),
            DriverOption::new("tls_ca", PEM, "no TLS"),
            DriverOption::new("tls_cert", PEM, "no TLS"),
            DriverOption::new("tls_key", PEM, "no TLS"),
            DriverOption::new(
                "tls",
                "`disable`: the password of `digest` may leave this machine in clear",
                "TLS for it",
            ),
        ]
    };

    /// The standard port.
    pub const PORT: u16 = 2181;

    /// A configuration for these servers, each `host:port`, with the default for every other
    /// option.
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            root: "/distlock".into(),
            session_timeout: Duration::from_secs(10),
            tick_time: None,
            request_timeout: Duration::from_secs(4),
            connect_timeout: Duration::from_secs(5),
            credentials: None,
            provider: None,
            acl: AclPolicy::Open,
            tls: None,
            clear_password: false,
            reap_after: Duration::from_secs(3600),
        }
    }

    /// Returns the hosts of the servers, without their ports.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        let servers = self.servers.iter();
        servers.map(|server| server.rsplit_once(':').map_or(&**server, |(host, _)| host))
    }

    /// Returns the rule for passwords: whether a password is sent, and whether the connection is
    /// encrypted. SASL proves the password without sending it.
    pub(crate) fn password_rule(&self) -> PasswordRule<'static> {
        let credentials = self.credentials.as_ref();
        PasswordRule {
            sent: credentials.is_some_and(|it| it.mechanism == Mechanism::Digest),
            encrypted: self.tls.is_some(),
            clear_allowed: self.clear_password,
            tls_built: cfg!(feature = "tls"),
            features: TLS_FEATURES,
            remedy: "for TLS name the authorities that may vouch for the servers by the option \
                     `tls_ca`, and the servers' ports for TLS",
        }
    }
}
