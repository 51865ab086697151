//! Reads the certificates when the store is opened. So a wrong file is an invalid configuration,
//! and not a failed connection.

use distlock_backend_kit::TlsFile;
use distlock_core::{Error, ErrorKind, Result};
use redis::{ClientTlsConfig, RedisError, TlsCertificates};

use crate::{config::RedisConfig, error::BACKEND};

/// Returns the certificates in the driver's form; `None` without TLS.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a file that cannot be read or has the wrong content.
pub(crate) fn certificates(config: &RedisConfig) -> Result<Option<TlsCertificates>> {
    let read = || -> Result<Option<TlsCertificates>> {
        let Some(tls) = &config.tls else {
            return Ok(None);
        };
        let authorities = |path| TlsFile::new("ca", path).authorities(true);
        let root_cert = tls.ca.as_deref().map(authorities).transpose()?;
        let client_tls = match &tls.client {
            None => None,
            Some((cert, key)) => {
                let (client_cert, client_key) =
                    TlsFile::new("cert", cert).identity(TlsFile::new("key", key))?;
                Some(ClientTlsConfig {
                    client_cert,
                    client_key,
                })
            }
        };
        Ok(Some(TlsCertificates {
            client_tls,
            root_cert,
        }))
    };
    read().map_err(|error| error.on(BACKEND))
}

/// Returns the error for certificates that the driver refused.
pub(crate) fn refused(error: &RedisError) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("options `ca`, `cert` and `key`: {error}"),
    )
    .on(BACKEND)
}
