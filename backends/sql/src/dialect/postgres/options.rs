//! The names and values of Postgres' options. The mode `allow` is not offered: the driver would
//! treat `allow` as `disable`.

use distlock_backend_kit::DriverOption;

use crate::config::{
    MIGRATE, REAP_AFTER_OPTION, ServerOptions,
    SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull},
    TABLE_PREFIX, shared,
};

pub(crate) const OPTIONS: ServerOptions = ServerOptions {
    name: "postgres",
    default_port: 5432,
    example: "postgres://user@127.0.0.1/database",
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
        ("disable", Disable),
        ("prefer", Prefer),
        ("require", Require),
        ("verify-ca", VerifyCa),
        ("verify-full", VerifyFull),
    ],
    tls_features: "postgres,tls",
    require_tls_advice: "set `sslmode` to require, verify-ca or verify-full for TLS",
};
