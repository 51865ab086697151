//! The server products: the options of each, and their names and values.

use distlock_backend_kit::{DriverOption, DriverUrl};

use super::values::{MIGRATE, REAP_AFTER_OPTION, TABLE_PREFIX};

/// The product whose dialect a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Product {
    /// MySQL or MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
}

/// The protection of the connection to a server. In a URL, each product has its own names:
/// `sslmode=verify-full` for Postgres, `ssl-mode=VERIFY_IDENTITY` for MySQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SslMode {
    /// The option is absent: [`SslMode::Require`] where a password would leave this machine, and
    /// [`SslMode::Prefer`] elsewhere.
    #[default]
    Auto,
    /// Never TLS. (`disable`, `DISABLED`, and `tls=disable`)
    Disable,
    /// TLS if the server offers TLS and this build contains TLS; plain text otherwise. (`prefer`,
    /// `PREFERRED`) This mode is refused where a password would leave this machine.
    Prefer,
    /// Only TLS, but the server's certificate is not verified. (`require`, `REQUIRED`)
    Require,
    /// Only TLS with a certificate of a trusted authority. (`verify-ca`, `VERIFY_CA`)
    VerifyCa,
    /// Only TLS with a certificate of a trusted authority for this host. (`verify-full`,
    /// `VERIFY_IDENTITY`)
    VerifyFull,
}

impl Product {
    /// The product of a URL with this scheme.
    #[must_use]
    pub fn of(scheme: &str) -> Option<Self> {
        let mut all = [Self::MySql, Self::Postgres].into_iter();
        all.find(|product| product.schemes().contains(&scheme))
    }

    const fn facts(self) -> &'static Facts {
        match self {
            Self::MySql => &MYSQL,
            Self::Postgres => &POSTGRES,
        }
    }

    /// The backend's short name, which is also its scheme.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    pub(crate) const fn schemes(self) -> &'static [&'static str] {
        self.facts().schemes
    }

    pub(crate) const fn urls(self) -> &'static [DriverUrl] {
        self.facts().urls
    }

    /// The default TCP port.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        self.facts().default_port
    }

    /// The options, as in a URL.
    #[must_use]
    pub const fn options(self) -> &'static [DriverOption] {
        self.facts().options
    }

    pub(super) const fn example(self) -> &'static str {
        self.facts().example
    }

    pub(super) const fn ssl_option(self) -> &'static str {
        self.facts().ssl_option
    }

    pub(super) const fn ssl_files(self) -> [&'static str; 3] {
        self.facts().ssl_files
    }

    pub(super) const fn ssl_modes(self) -> [(&'static str, SslMode); 5] {
        self.facts().ssl_modes
    }

    pub(super) const fn tls_features(self) -> &'static str {
        self.facts().tls_features
    }

    pub(super) const fn require_tls_advice(self) -> &'static str {
        self.facts().require_tls_advice
    }

    pub(super) fn ssl_mode(self, value: &str) -> Option<SslMode> {
        let modes = self.ssl_modes();
        let found = modes
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(value));
        found.map(|(_, mode)| *mode)
    }
}

/// The facts of one product: the names and values of its options, as the product's own tools name
/// them.
struct Facts {
    /// The backend's short name, which is also its first scheme.
    name: &'static str,
    schemes: &'static [&'static str],
    /// The forms of its URLs, for help texts.
    urls: &'static [DriverUrl],
    /// The default TCP port.
    default_port: u16,
    /// An example of a URL, for messages.
    example: &'static str,
    /// The options, as in a URL.
    options: &'static [DriverOption],
    /// The option that sets the mode of TLS.
    ssl_option: &'static str,
    /// The options of the authorities, the client's certificate and its key.
    ssl_files: [&'static str; 3],
    /// The modes of TLS as the product's own tools name them.
    ssl_modes: [(&'static str, SslMode); 5],
    /// The features of the library that build this backend with TLS.
    tls_features: &'static str,
    /// The advice in an error about a password that would cross a network in clear: the option that
    /// requires TLS.
    require_tls_advice: &'static str,
}

const CREDENTIALS: &str = "used instead of those in the URL";

const USER: DriverOption = DriverOption::new("user", CREDENTIALS, "");
const PASSWORD: DriverOption = DriverOption::new("password", CREDENTIALS, "");
const SOCKET: DriverOption = DriverOption::new(
    "socket",
    "MySQL: the Unix socket; Postgres: the folder it is in",
    "TCP",
);
const POOL_SIZE: DriverOption = DriverOption::new(
    "pool_size",
    "1 to 32 connections of one handle; renewals have as many of their own",
    "4",
);
const STATEMENT_TIMEOUT: DriverOption = DriverOption::new(
    "statement_timeout",
    "100 ms to 60 s: how long one statement may take",
    "5s",
);
const TLS: DriverOption = DriverOption::new(
    "tls",
    "`disable`: as `ssl-mode=DISABLED` and `sslmode=disable`",
    "",
);

const MYSQL: Facts = Facts {
    name: "mysql",
    schemes: &["mysql", "mariadb"],
    urls: &[DriverUrl::new(
        "mysql://USER@HOST/DATABASE",
        "MySQL or MariaDB",
    )],
    default_port: 3306,
    example: "mysql://user@127.0.0.1/database",
    options: &[
        USER,
        PASSWORD,
        SOCKET,
        POOL_SIZE,
        STATEMENT_TIMEOUT,
        MIGRATE,
        REAP_AFTER_OPTION,
        TABLE_PREFIX,
        TLS,
        DriverOption::new(
            "ssl-mode",
            "`DISABLED`, `PREFERRED`, `REQUIRED`, `VERIFY_CA`, `VERIFY_IDENTITY`",
            "`PREFERRED`; `REQUIRED` where a password leaves this machine",
        ),
        DriverOption::new("ssl-ca", "PEM files", ""),
        DriverOption::new("ssl-cert", "PEM files", ""),
        DriverOption::new("ssl-key", "PEM files", ""),
        DriverOption::CONNECT_TIMEOUT,
    ],
    ssl_option: "ssl-mode",
    ssl_files: ["ssl-ca", "ssl-cert", "ssl-key"],
    ssl_modes: [
        ("DISABLED", SslMode::Disable),
        ("PREFERRED", SslMode::Prefer),
        ("REQUIRED", SslMode::Require),
        ("VERIFY_CA", SslMode::VerifyCa),
        ("VERIFY_IDENTITY", SslMode::VerifyFull),
    ],
    tls_features: "mysql,tls",
    require_tls_advice: "set `ssl-mode` to REQUIRED, VERIFY_CA or VERIFY_IDENTITY for TLS",
};

/// The mode `allow` is not offered: the driver would treat `allow` as `disable`.
const POSTGRES: Facts = Facts {
    name: "postgres",
    schemes: &["postgres", "postgresql"],
    urls: &[DriverUrl::new(
        "postgres://USER@HOST/DATABASE",
        "PostgreSQL",
    )],
    default_port: 5432,
    example: "postgres://user@127.0.0.1/database",
    options: &[
        USER,
        PASSWORD,
        SOCKET,
        POOL_SIZE,
        STATEMENT_TIMEOUT,
        MIGRATE,
        REAP_AFTER_OPTION,
        TABLE_PREFIX,
        TLS,
        DriverOption::new(
            "sslmode",
            "`disable`, `prefer`, `require`, `verify-ca`, `verify-full`",
            "`prefer`; `require` where a password leaves this machine",
        ),
        DriverOption::new("sslrootcert", "PEM files", ""),
        DriverOption::new("sslcert", "PEM files", ""),
        DriverOption::new("sslkey", "PEM files", ""),
        DriverOption::CONNECT_TIMEOUT,
    ],
    ssl_option: "sslmode",
    ssl_files: ["sslrootcert", "sslcert", "sslkey"],
    ssl_modes: [
        ("disable", SslMode::Disable),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ],
    tls_features: "postgres,tls",
    require_tls_advice: "set `sslmode` to require, verify-ca or verify-full for TLS",
};
