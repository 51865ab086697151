//! The modes of TLS, and the table that describes the options of one server product.

use distlock_backend_kit::DriverOption;

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

/// The names and values of the options of one product.
pub(crate) struct ServerOptions {
    /// The backend's short name, which is also its scheme.
    pub(crate) name: &'static str,
    /// The default TCP port.
    pub(crate) default_port: u16,
    /// An example of a URL, for messages.
    pub(crate) example: &'static str,
    /// The options, as in a URL.
    pub(crate) options: &'static [DriverOption],
    /// The option that sets the mode of TLS.
    pub(crate) ssl_option: &'static str,
    /// The options of the authorities, the client's certificate and its key.
    pub(crate) ssl_files: [&'static str; 3],
    /// The modes of TLS as the product's own tools name them.
    pub(crate) ssl_modes: [(&'static str, SslMode); 5],
    /// The features of the library that build this backend with TLS.
    pub(crate) tls_features: &'static str,
    /// The advice in an error about a password that would cross a network in clear: the option that
    /// requires TLS.
    pub(crate) require_tls_advice: &'static str,
}

/// The options that MySQL and Postgres have in common.
pub(crate) mod shared {
    use distlock_backend_kit::DriverOption;

    const CREDENTIALS: &str = "used instead of those in the URL";

    pub(crate) const USER: DriverOption = DriverOption::new("user", CREDENTIALS, "");
    pub(crate) const PASSWORD: DriverOption = DriverOption::new("password", CREDENTIALS, "");
    pub(crate) const SOCKET: DriverOption = DriverOption::new(
        "socket",
        "MySQL: the Unix socket; Postgres: the folder it is in",
        "TCP",
    );
    pub(crate) const POOL_SIZE: DriverOption = DriverOption::new(
        "pool_size",
        "1 to 32 connections of one handle; renewals have as many of their own",
        "4",
    );
    pub(crate) const STATEMENT_TIMEOUT: DriverOption = DriverOption::new(
        "statement_timeout",
        "100 ms to 60 s: how long one statement may take",
        "5s",
    );
    pub(crate) const TLS: DriverOption = DriverOption::new(
        "tls",
        "`disable`: as `ssl-mode=DISABLED` and `sslmode=disable`",
        "",
    );
}
