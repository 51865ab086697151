//! The server products, and access to the table of options of each product.

use distlock_backend_kit::DriverOption;

use super::server_options::{ServerOptions, SslMode};
use crate::dialect::{mysql, postgres};

/// The product whose dialect a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Product {
    /// MySQL or MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
}

impl Product {
    /// The product of a URL with this scheme.
    #[must_use]
    pub fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "mariadb" | "mysql" => Some(Self::MySql),
            "postgres" | "postgresql" => Some(Self::Postgres),
            _ => None,
        }
    }

    const fn facts(self) -> &'static ServerOptions {
        match self {
            Self::MySql => &mysql::options::OPTIONS,
            Self::Postgres => &postgres::options::OPTIONS,
        }
    }

    /// The backend's short name, which is also its scheme.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().name
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
