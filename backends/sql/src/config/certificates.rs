//! The files of TLS, looked at when the store is opened, so that a wrong path is a wrong configuration and not a failed
//! connection.

use std::{fs, path::Path};

use distlock_core::Result;

use super::{ServerConfig, invalid};

/// The driver takes a file without any certificate for an empty list.
const CERTIFICATE: &[&str] = &["-----BEGIN CERTIFICATE-----"];
/// The kinds that the driver can read.
const KEY: &[&str] = &[
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----",
];

/// Whether each file can be read and holds what its option is for.
pub(super) fn check(config: &ServerConfig) -> Result<()> {
    let [ca, cert, key] = config.product.ssl_files();
    if let Some(path) = &config.ssl_ca {
        holds(ca, path, "certificate", CERTIFICATE)?;
    }
    if let Some((certificate, secret)) = &config.ssl_client {
        holds(cert, certificate, "certificate", CERTIFICATE)?;
        holds(key, secret, "private key", KEY)?;
    }
    Ok(())
}

fn holds(option: &str, path: &Path, what: &str, headers: &[&str]) -> Result<()> {
    let shown = path.display();
    let pem = fs::read(path).map_err(|error| {
        invalid(format!("option `{option}`: cannot read {shown}")).caused_by(error)
    })?;
    let pem = String::from_utf8_lossy(&pem);
    if headers.iter().any(|header| pem.contains(header)) {
        return Ok(());
    }
    Err(invalid(format!(
        "option `{option}`: {shown} holds no {what} in PEM form"
    )))
}
