//! Reads the files of TLS when the store is opened, so that a wrong file is a wrong configuration
//! and not a failed connection.

use std::path::Path;

use distlock_backend_kit::TlsFile;
use distlock_core::Result;

/// Checks that each file can be read and fits its option. `options` names the options of the
/// authorities, of the certificate and of its key.
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
