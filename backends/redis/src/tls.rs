//! Certificates, read when the store is opened, so that a wrong path is a wrong configuration and not a failed connection.

use std::{fs, path::Path};

use distlock_core::{Error, ErrorKind, Result};
use redis::{ClientTlsConfig, RedisError, TlsCertificates};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use crate::{config::RedisConfig, error::BACKEND};

/// What the driver needs; `None` without TLS.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a file that cannot be read or holds something else.
pub(crate) fn certificates(config: &RedisConfig) -> Result<Option<TlsCertificates>> {
    let Some(tls) = &config.tls else {
        return Ok(None);
    };
    let root_cert = tls.ca.as_deref();
    let root_cert = root_cert.map(|path| chain("ca", path)).transpose()?;
    let client_tls = match &tls.client {
        None => None,
        Some((cert, key)) => Some(ClientTlsConfig {
            client_cert: chain("cert", cert)?,
            client_key: private("key", key)?,
        }),
    };
    Ok(Some(TlsCertificates {
        client_tls,
        root_cert,
    }))
}

/// The driver could not make anything of them.
pub(crate) fn refused(error: &RedisError) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("options `ca`, `cert` and `key`: {error}"),
    )
    .on(BACKEND)
}

/// A PEM file with certificates. The driver would take one without any for an empty list.
fn chain(option: &str, path: &Path) -> Result<Vec<u8>> {
    let pem = read(option, path)?;
    let certificates = CertificateDer::pem_slice_iter(&pem);
    match certificates.collect::<std::result::Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(pem),
        _ => Err(holds_no(option, "certificate", path)),
    }
}

/// A PEM file with a private key.
fn private(option: &str, path: &Path) -> Result<Vec<u8>> {
    let pem = read(option, path)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(_) => Ok(pem),
        Err(_) => Err(holds_no(option, "private key", path)),
    }
}

fn holds_no(option: &str, what: &str, path: &Path) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!(
            "option `{option}`: {} holds no {what} in PEM form",
            path.display()
        ),
    )
    .on(BACKEND)
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("option `{option}`: cannot read {}", path.display()),
        )
        .on(BACKEND)
        .caused_by(error)
    })
}
