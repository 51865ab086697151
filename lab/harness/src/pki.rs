//! Makes a private authority and certificates for servers and clients that use TLS.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// The names in a certificate, unless a test asks for others.
const LOCAL_NAMES: &str = "IP:127.0.0.1,DNS:localhost";
/// The use of a certificate that is for servers and for clients.
const NODE_USE: &str = "serverAuth,clientAuth";

/// A folder with certificates for 127.0.0.1 and `localhost`. The folder is removed when this value
/// is dropped.
///
/// The files are `ca.crt`, and `.crt` and `.key` of `server`, of `client` and of `node`. The
/// certificate of `node` is for servers and for clients. All files have the format PEM.
#[derive(Debug)]
pub struct Pki(TempDir);

impl Pki {
    /// Creates an authority and the certificates that it signs.
    ///
    /// # Errors
    /// Returns an error if `openssl` is not installed or fails.
    pub fn new() -> Result<Self> {
        let pki = Self(tempfile::tempdir().context("a folder for certificates")?);
        let request = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        pki.openssl(&format!(
            "{request} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.crt"
        ))?;
        for (name, use_of_key) in [
            ("server", "serverAuth"),
            ("client", "clientAuth"),
            ("node", NODE_USE),
        ] {
            pki.openssl(&format!(
                "{request} -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ))?;
            pki.sign(name, use_of_key, LOCAL_NAMES, 2)?;
        }
        Ok(pki)
    }

    /// Replaces the certificate `name`, which is for servers and for clients, by one that expired
    /// yesterday.
    ///
    /// # Errors
    /// Returns an error if `openssl` fails.
    pub fn sign_expired(&self, name: &str) -> Result<()> {
        self.sign(name, NODE_USE, LOCAL_NAMES, -1)
    }

    /// Replaces the certificate `name`, which is for servers and for clients, by one for `names`,
    /// for example `DNS:example.org`.
    ///
    /// # Errors
    /// Returns an error if `openssl` fails.
    pub fn sign_for(&self, name: &str, names: &str) -> Result<()> {
        self.sign(name, NODE_USE, names, 2)
    }

    fn sign(&self, name: &str, use_of_key: &str, names: &str, days: i32) -> Result<()> {
        fs::write(
            self.path("extensions"),
            format!(
                "basicConstraints=critical,CA:FALSE\nextendedKeyUsage={use_of_key}\n\
                 subjectAltName={names}\n"
            ),
        )?;
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days {days} \
             -extfile extensions -out {name}.crt"
        ))
    }

    /// Returns the folder with the certificates.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of the file `name`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `openssl` in the folder. Blanks separate the arguments.
    fn openssl(&self, arguments: &str) -> Result<()> {
        let output = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(self.folder())
            .output()
            .context("openssl (Debian: apt-get install openssl)")?;
        ensure!(
            output.status.success(),
            "openssl {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_written_in_pem() {
        let pki = Pki::new().unwrap();
        for name in [
            "ca.crt",
            "server.crt",
            "server.key",
            "client.crt",
            "client.key",
        ] {
            let text = fs::read_to_string(pki.path(name)).unwrap();
            assert!(text.starts_with("-----BEGIN"), "{name}: {text}");
        }
    }
}
