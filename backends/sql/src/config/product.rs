//! What is different in the options of one server and another: names, ports, modes of TLS.

/// Whose dialect a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Product {
    /// MySQL or MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
}

/// How the connection to a server is protected. In a URL each driver's own names are written: `sslmode=verify-full` for
/// Postgres, `ssl-mode=VERIFY_IDENTITY` for MySQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SslMode {
    /// Nothing was said: [`SslMode::Require`] where a password would leave this machine, and
    /// [`SslMode::Prefer`] elsewhere.
    #[default]
    Auto,
    /// Never TLS. (`disable`, `DISABLED`, and `tls=disable`)
    Disable,
    /// TLS where the server offers it and this build has it, plain text otherwise. (`prefer`, `PREFERRED`)
    /// Refused where a password would leave this machine.
    Prefer,
    /// TLS or nothing; the server's certificate is not verified. (`require`, `REQUIRED`)
    Require,
    /// TLS with a certificate of a trusted authority. (`verify-ca`, `VERIFY_CA`)
    VerifyCa,
    /// TLS with a certificate of a trusted authority for this host. (`verify-full`, `VERIFY_IDENTITY`)
    VerifyFull,
}

impl Product {
    /// By the scheme of a URL.
    #[must_use]
    pub fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "mariadb" | "mysql" => Some(Self::MySql),
            "postgres" | "postgresql" => Some(Self::Postgres),
            _ => None,
        }
    }

    /// The backend's short name, which is also its scheme.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        }
    }

    /// The port it listens on unless told otherwise.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::MySql => 3306,
            Self::Postgres => 5432,
        }
    }

    /// The names of the options, as in a URL.
    #[must_use]
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::MySql => &[
                "connect_timeout",
                "migrate",
                "password",
                "pool_size",
                "reap_after",
                "socket",
                "ssl-ca",
                "ssl-cert",
                "ssl-key",
                "ssl-mode",
                "statement_timeout",
                "table_prefix",
                "tls",
                "user",
            ],
            Self::Postgres => &[
                "connect_timeout",
                "migrate",
                "password",
                "pool_size",
                "reap_after",
                "socket",
                "sslcert",
                "sslkey",
                "sslmode",
                "sslrootcert",
                "statement_timeout",
                "table_prefix",
                "tls",
                "user",
            ],
        }
    }

    pub(super) const fn example(self) -> &'static str {
        match self {
            Self::MySql => "mysql://user@127.0.0.1/database",
            Self::Postgres => "postgres://user@127.0.0.1/database",
        }
    }

    pub(super) const fn ssl_option(self) -> &'static str {
        match self {
            Self::MySql => "ssl-mode",
            Self::Postgres => "sslmode",
        }
    }

    pub(super) const fn ssl_files(self) -> [&'static str; 3] {
        match self {
            Self::MySql => ["ssl-ca", "ssl-cert", "ssl-key"],
            Self::Postgres => ["sslrootcert", "sslcert", "sslkey"],
        }
    }

    /// As the drivers name them. Postgres' `allow` is missing: the driver takes it for `disable`.
    pub(super) const fn ssl_modes(self) -> [(&'static str, SslMode); 5] {
        use SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        match self {
            Self::MySql => [
                ("DISABLED", Disable),
                ("PREFERRED", Prefer),
                ("REQUIRED", Require),
                ("VERIFY_CA", VerifyCa),
                ("VERIFY_IDENTITY", VerifyFull),
            ],
            Self::Postgres => [
                ("disable", Disable),
                ("prefer", Prefer),
                ("require", Require),
                ("verify-ca", VerifyCa),
                ("verify-full", VerifyFull),
            ],
        }
    }

    pub(super) fn ssl_mode(self, value: &str) -> Option<SslMode> {
        let modes = self.ssl_modes();
        let found = modes
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(value));
        found.map(|(_, mode)| *mode)
    }
}
