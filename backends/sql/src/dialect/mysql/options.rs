//! The names and values of MySQL's options.

use distlock_backend_kit::DriverOption;

use crate::config::{
    MIGRATE, REAP_AFTER_OPTION, ServerOptions,
    SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull},
    TABLE_PREFIX, shared,
};

pub(crate) const OPTIONS: ServerOptions = ServerOptions {
    name: "mysql",
    default_port: 3306,
    example: "mysql://user@127.0.0.1/database",
    options: &[
        shared::USER,
        shared::PASSWORD,
        shared::SOCKET,
        shared::POOL_SIZE,
        shared::STATEMENT_TIMEOUT,
        MIGRATE,
        REAP_AFTER_OPTION,
        TABLE_PREFIX,
        shared::TLS,
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
        ("DISABLED", Disable),
        ("PREFERRED", Prefer),
        ("REQUIRED", Require),
        ("VERIFY_CA", VerifyCa),
        ("VERIFY_IDENTITY", VerifyFull),
    ],
    tls_features: "mysql,tls",
    require_tls_advice: "set `ssl-mode` to REQUIRED, VERIFY_CA or VERIFY_IDENTITY for TLS",
};
