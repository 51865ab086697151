//! The check of TLS files when a store is opened.
//!
//! This module owns the check that each file can be read and holds the certificates or the key that
//! its option expects. Invariant: a wrong file is a configuration error with the name of the file,
//! and not a failed connection later. The module must never put the content of a file into an
//! error, because a private key is a secret.

use std::path::Path;

use rustls::{
    RootCertStore,
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::ParsedCertificate,
    sign::CertifiedKey,
};

use distlock_core::{Error, ErrorKind, Result};

use crate::read_bounded;

/// An option, and the PEM file that the option names.
#[derive(Clone, Copy, Debug)]
pub struct TlsFile<'a> {
    /// The name of the option, as the user writes it.
    pub option: &'a str,
    /// The path in the value of the option.
    pub path: &'a Path,
}

impl<'a> TlsFile<'a> {
    /// The file at `path`, which `option` names.
    #[must_use]
    pub const fn new(option: &'a str, path: &'a Path) -> Self {
        Self { option, path }
    }

    /// Reads the certificates of the trusted authorities. A collection of authorities often holds
    /// some certificates that cannot be used. With `all`, one unusable certificate is an error, for
    /// a driver that would later refuse such a file. Without `all`, only a file without any usable
    /// certificate is an error.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the option and the file, when the file cannot be read or
    /// used.
    pub fn authorities(self, all: bool) -> Result<Vec<u8>> {
        let pem = self.read()?;
        let mut usable = RootCertStore::empty();
        let mut problem = None;
        for certificate in self.certificates(&pem)? {
            if let Err(error) = usable.add(certificate) {
                problem = Some(error);
            }
        }
        match problem {
            Some(error) if all || usable.is_empty() => Err(self
                .wrong("holds a certificate that cannot be used")
                .caused_by(error)),
            _ => Ok(pem),
        }
    }

    /// Reads a client's certificate, and its private key from `key`.
    ///
    /// # Errors
    /// As [`TlsFile::authorities`], and when the key belongs to another certificate.
    pub fn identity(self, key: TlsFile<'_>) -> Result<(Vec<u8>, Vec<u8>)> {
        let (pem, key_pem) = (self.read()?, key.read()?);
        let chain = self.certificates(&pem)?;
        for certificate in &chain {
            ParsedCertificate::try_from(certificate).map_err(|error| {
                self.wrong("holds a certificate that cannot be used")
                    .caused_by(error)
            })?;
        }
        let secret = PrivateKeyDer::from_pem_slice(&key_pem)
            .map_err(|_| key.wrong("holds no private key in PEM form"))?;
        let secret = any_supported_type(&secret)
            .map_err(|_| key.wrong("holds a private key that cannot be used"))?;
        if let Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) =
            CertifiedKey::new(chain, secret).keys_match()
        {
            let other = format!(
                "holds another private key than that of the certificate in {}",
                self.path.display()
            );
            return Err(key.wrong(&other));
        }
        Ok((pem, key_pem))
    }

    fn certificates(self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
        // The drivers would accept a file without any certificate as an empty list.
        match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => Err(self.wrong("holds no certificate in PEM form")),
        }
    }

    fn read(self) -> Result<Vec<u8>> {
        read_bounded(self.path).map_err(|error| {
            let problem = format!(
                "option `{}`: cannot read {}",
                self.option,
                self.path.display()
            );
            Error::new(ErrorKind::InvalidConfig, problem).caused_by(error)
        })
    }

    fn wrong(self, what: &str) -> Error {
        let problem = format!("option `{}`: {} {what}", self.option, self.path.display());
        Error::new(ErrorKind::InvalidConfig, problem)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_unusable_file_is_named_in_the_error_and_its_content_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.pem");
        let missing = folder.path().join("missing.pem");
        let begin = |what| format!("-----BEGIN {what}-----\nc2VjcmV0\n-----END {what}-----\n");
        let certificate = begin("CERTIFICATE");
        for (content, says) in [
            ("secret", "holds no certificate in PEM form"),
            (&begin("PRIVATE KEY"), "holds no certificate in PEM form"),
            (&certificate, "holds a certificate that cannot be used"),
        ] {
            fs::write(&path, content).unwrap();
            let file = TlsFile::new("ca", &path);
            for refused in [
                file.authorities(true).map(drop),
                file.authorities(false).map(drop),
                file.identity(file).map(drop),
            ] {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
                let named = format!("option `ca`: {} {says}", path.display());
                assert!(error.to_string().starts_with(&named), "{error}");
                let shown = format!("{error} {error:?}");
                assert!(
                    !shown.contains("secret") && !shown.contains("c2Vj"),
                    "{shown}"
                );
            }
        }
        let error = TlsFile::new("cert", &missing)
            .authorities(true)
            .unwrap_err();
        let named = format!("option `cert`: cannot read {}", missing.display());
        assert!(error.to_string().starts_with(&named), "{error}");
    }
}
