//! Reads the certificate and key files of TLS when the store is opened. A wrong file is then
//! reported as a wrong configuration and not as a failed connection.

use std::path::Path;

use distlock_backend_kit::TlsFile;
use distlock_core::Result;

/// Checks that each file can be read and fits its option. `options` are the names of the options
/// for the authorities, for the client's certificate and for the key of that certificate.
pub(super) fn check(
    options: [&str; 3],
    authorities: Option<&Path>,
    client: Option<(&Path, &Path)>,
) -> Result<()> {
    let [ca, cert, key] = options;
    if let Some(path) = authorities {
        TlsFile::new(ca, path).authorities(true)?;
    }
    if let Some((certificate, secret)) = client {
        TlsFile::new(cert, certificate).identity(TlsFile::new(key, secret))?;
    }
    Ok(())
}
