//! The files of TLS, looked at when the store is opened, so that a wrong file is a wrong
//! configuration and not a failed connection.

use distlock_core::{Result, TlsFile};

use super::ServerConfig;

/// Whether each file can be read and holds what its option is for.
pub(super) fn check(config: &ServerConfig) -> Result<()> {
    let [ca, cert, key] = config.product.ssl_files();
    if let Some(path) = &config.ssl_ca {
        TlsFile::new(ca, path).authorities(true)?;
    }
    if let Some((certificate, secret)) = &config.ssl_client {
        TlsFile::new(cert, certificate).identity(TlsFile::new(key, secret))?;
    }
    Ok(())
}
