//! Certificates, read when the store is opened, so that a wrong path is a wrong configuration and not a failed connection.

use std::{fs, path::Path};

use distlock_core::{Error, ErrorKind, Result};
use redis::{ClientTlsConfig, RedisError, TlsCertificates};

use crate::{config::RedisConfig, error::BACKEND};

/// What the driver needs; `None` without TLS.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a file that cannot be read.
pub(crate) fn certificates(config: &RedisConfig) -> Result<Option<TlsCertificates>> {
    let Some(tls) = &config.tls else {
        return Ok(None);
    };
    let root_cert = tls.ca.as_deref().map(|path| read("ca", path)).transpose()?;
    let client_tls = match &tls.client {
        None => None,
        Some((cert, key)) => Some(ClientTlsConfig {
            client_cert: read("cert", cert)?,
            client_key: read("key", key)?,
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
