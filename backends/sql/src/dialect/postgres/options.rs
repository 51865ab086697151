//! The names and values of Postgres' options. The mode `allow` is missing: the driver takes it for
//! `disable`.

use crate::config::{
    ServerOptions,
    SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull},
};

pub(crate) const OPTIONS: ServerOptions = ServerOptions {
    name: "postgres",
    default_port: 5432,
    example: "postgres://user@127.0.0.1/database",
    names: &[
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
    tls_remedy: "set `sslmode` to require, verify-ca or verify-full for TLS",
};
