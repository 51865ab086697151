//! The certificates of a store's connections, in the driver's form.
//!
//! The files are read when the store is opened, so a wrong file is an invalid configuration, and
//! not a failed connection. They are read again for each new connection.

use distlock_backend_kit::CertificateFiles;
use distlock_core::{Error, ErrorKind, Result};
use redis::{ClientTlsConfig, RedisError, TlsCertificates};

use crate::{config::RedisConfig, error::BACKEND};

/// Opens the certificate files; `None` without TLS.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a file that cannot be read or has the wrong content.
pub(crate) fn open_files(config: &RedisConfig) -> Result<Option<CertificateFiles>> {
    let Some(tls) = &config.tls else {
        return Ok(None);
    };
    let authorities = tls.ca.clone().map(|path| ("tls_ca", path));
    let client = tls.client.clone();
    let client = client.map(|(cert, key)| (("tls_cert", cert), ("tls_key", key)));
    let files = CertificateFiles::open(authorities, client, true);
    files
        .map(|(files, _)| Some(files))
        .map_err(|error| error.on(BACKEND))
}

/// Reads the files for a connection that is made now.
pub(crate) async fn latest(files: &CertificateFiles) -> TlsCertificates {
    let latest = files.latest().await;
    TlsCertificates {
        client_tls: latest.client.map(|(client_cert, key)| ClientTlsConfig {
            client_cert,
            client_key: key.reveal().as_bytes().to_vec(),
        }),
        root_cert: latest.authorities,
    }
}

/// Returns the error for certificates that the driver refused.
pub(crate) fn refused(error: &RedisError) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("options `tls_ca`, `tls_cert` and `tls_key`: {error}"),
    )
    .on(BACKEND)
}
