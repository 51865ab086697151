//! The names and values of MySQL's options.

use crate::config::{
    ServerOptions,
    SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull},
};

pub(crate) const OPTIONS: ServerOptions = ServerOptions {
    name: "mysql",
    default_port: 3306,
    example: "mysql://user@127.0.0.1/database",
    names: &[
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
    tls_remedy: "set `ssl-mode` to REQUIRED, VERIFY_CA or VERIFY_IDENTITY for TLS",
};
