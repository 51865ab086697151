//! What the options of one product look like.

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

/// The names and values of the options of one product.
pub(crate) struct ServerOptions {
    /// The backend's short name, which is also its scheme.
    pub(crate) name: &'static str,
    /// The port it listens on unless told otherwise.
    pub(crate) default_port: u16,
    /// A URL, for messages.
    pub(crate) example: &'static str,
    /// The names of the options, as in a URL.
    pub(crate) names: &'static [&'static str],
    /// The option of the mode of TLS.
    pub(crate) ssl_option: &'static str,
    /// The options of the authorities, the client's certificate and its key.
    pub(crate) ssl_files: [&'static str; 3],
    /// The modes of TLS as the product's own tools name them.
    pub(crate) ssl_modes: [(&'static str, SslMode); 5],
    /// The features of the library that bring this backend with TLS.
    pub(crate) tls_features: &'static str,
    /// What to set where a password must not cross a network in clear.
    pub(crate) tls_remedy: &'static str,
}
