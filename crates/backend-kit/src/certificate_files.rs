//! The certificate files of a store, which are read again for each new connection.
//!
//! This module owns the last good content of each file. Invariant: a connection never gets a
//! certificate with the key of another certificate, and a file that cannot be used now does not
//! stop a store that is open. The content of a file is never shown.

use std::{fmt, path::PathBuf, sync::Arc};

use distlock_core::{Result, sync::Mutex};

use crate::{Certificates, FileReads, Secret, TlsFile};

/// An option, and the path of the PEM file that the option names.
pub type NamedFile = (&'static str, PathBuf);

/// The files that the options of a store name.
#[derive(Clone)]
pub struct CertificateFiles(Arc<Files>);

struct Files {
    authorities: Option<NamedFile>,
    /// The client's certificate and its key.
    client: Option<(NamedFile, NamedFile)>,
    /// Whether one unusable certificate makes the file of the authorities unusable; see
    /// [`TlsFile::authorities`].
    all: bool,
    reads: FileReads,
    // A blocking mutex: it is held to copy and to replace the content only.
    good: Mutex<Good>,
}

#[derive(Default)]
struct Good {
    certificates: Certificates,
    /// The problem that was logged last, until the files are good again.
    said: Option<String>,
}

impl CertificateFiles {
    /// Reads the files of the authorities and of the client for the first time, and returns their
    /// content as well.
    ///
    /// # Errors
    /// As [`TlsFile::authorities`] and [`TlsFile::identity`].
    pub fn open(
        authorities: Option<NamedFile>,
        client: Option<(NamedFile, NamedFile)>,
        all: bool,
    ) -> Result<(Self, Certificates)> {
        let files = Files {
            authorities,
            client,
            all,
            reads: FileReads::default(),
            good: Mutex::default(),
        };
        let certificates = Certificates {
            authorities: files.read_authorities()?,
            client: files.read_client()?,
        };
        files.good.lock().certificates = certificates.clone();
        Ok((Self(Arc::new(files)), certificates))
    }

    /// Reads the files, for a connection that is made now. Where the authorities, or the client's
    /// certificate with its key, cannot be used, their last good content is returned. That is
    /// logged once. A certificate and its key are two files, so a reader may find one of them
    /// replaced and the other not yet. While a file system hangs, the last good content is returned
    /// after half a second, and no second read begins.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn latest(&self) -> Certificates {
        let files = Arc::clone(&self.0);
        // A thread of its own: the file system may hang, and the caller's thread renews leases.
        match self.0.reads.read(move || Ok(files.read())).await {
            Ok(certificates) => certificates,
            Err(error) => {
                let mut good = self.0.good.lock();
                good.say(error.to_string());
                good.certificates.clone()
            }
        }
    }
}

impl Files {
    fn read(&self) -> Certificates {
        let (authorities, client) = (self.read_authorities(), self.read_client());
        let mut good = self.good.lock();
        let mut problem = None;
        match authorities {
            Ok(authorities) => good.certificates.authorities = authorities,
            Err(error) => problem = Some(error),
        }
        match client {
            Ok(client) => good.certificates.client = client,
            Err(error) => problem = Some(error),
        }
        match problem {
            Some(problem) => good.say(problem.to_string()),
            None => good.said = None,
        }
        good.certificates.clone()
    }

    fn read_authorities(&self) -> Result<Option<Vec<u8>>> {
        let read = |(option, path): &NamedFile| TlsFile::new(option, path).authorities(self.all);
        self.authorities.as_ref().map(read).transpose()
    }

    fn read_client(&self) -> Result<Option<(Vec<u8>, Secret)>> {
        let Some(((cert_option, cert), (key_option, key))) = &self.client else {
            return Ok(None);
        };
        let (cert, key) =
            TlsFile::new(cert_option, cert).identity(TlsFile::new(key_option, key))?;
        // PEM is text, and a key that is no UTF-8 was refused.
        let key = Secret::new(String::from_utf8_lossy(&key));
        Ok(Some((cert, key)))
    }
}

impl Good {
    fn say(&mut self, problem: String) {
        if self.said.as_ref() != Some(&problem) {
            tracing::warn!(
                %problem,
                "new connections use the certificates that were read before, until the files are \
                 good again",
            );
            self.said = Some(problem);
        }
    }
}

impl fmt::Debug for CertificateFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateFiles")
            .field("authorities", &self.0.authorities)
            .field("client", &self.0.client)
            .finish_non_exhaustive()
    }
}
