//! One connection to a server: TCP, TLS or a Unix socket, and the token that is shown on it.
//!
//! Certificates and tokens are read again for each connection. This module must never show a token,
//! and never send one in clear beyond this machine unless the options allow it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

#[cfg(feature = "tls")]
use distlock_backend_kit::CertificateFiles;
use distlock_backend_kit::{
    CredentialSource, Credentials, FileReads, Secret, SharedProvider, read_bounded,
};
use distlock_core::{Clock, Error, ErrorKind, Result};
#[cfg(feature = "tls")]
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::{
    config::{Host, RemoteConfig},
    error::{BACKEND, unavailable},
};

/// Bytes that the server may send before this client takes them.
const WINDOW: u32 = 4 * 1024 * 1024;

/// How the connections of a store are made.
#[derive(Debug)]
pub(crate) struct Dial {
    config: RemoteConfig,
    pub(crate) credentials: CredentialSource,
    #[cfg(feature = "tls")]
    certificates: Option<CertificateFiles>,
}

impl Dial {
    /// Reads the files of the options for the first time.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for options that do not fit together, and for a file that
    /// cannot be used.
    pub(crate) fn new(config: &RemoteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        #[cfg(feature = "tls")]
        let certificates = match &config.tls {
            Some(tls) => {
                let authorities = tls.ca.clone().map(|path| ("tls_ca", path));
                let client = tls.client.clone();
                let client = client.map(|(cert, key)| (("tls_cert", cert), ("tls_key", key)));
                Some(CertificateFiles::open(authorities, client, true)?.0)
            }
            None => None,
        };
        let provider = match (&config.provider, &config.token_file) {
            (Some(provider), _) => Some(provider.clone()),
            (None, Some(path)) => {
                // A wrong path is a mistake now, and a failed connection later.
                read_token(path)?;
                Some(of_file(path.clone()))
            }
            (None, None) => None,
        };
        let written = Credentials::written(None, config.token.clone());
        let limit = config.connect_timeout;
        let credentials = CredentialSource::new(written, provider, clock, limit);
        let has_certificate = config.tls.as_ref().is_some_and(|tls| tls.client.is_some());
        Ok(Self {
            config: config.clone(),
            credentials: credentials.with_certificates(has_certificate),
            #[cfg(feature = "tls")]
            certificates,
        })
    }

    /// The header with the token.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a token that no header can carry.
    pub(crate) fn header(&self, shown: &Credentials) -> Result<Option<MetadataValue<Ascii>>> {
        let Some(token) = &shown.password else {
            return Ok(None);
        };
        let header: Option<MetadataValue<Ascii>> =
            format!("Bearer {}", token.reveal().trim()).parse().ok();
        let mut header = header.ok_or_else(|| {
            let problem = "the token has characters that no token has";
            Error::new(ErrorKind::InvalidConfig, problem)
        })?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    /// Makes one connection.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the system's or the handshake's reason.
    pub(crate) async fn connect(&self, host: &Host) -> Result<Channel> {
        let to = match &self.config.socket {
            Some(path) => path.display().to_string(),
            None => host.to_string(),
        };
        let failed = |error: tonic::transport::Error| {
            unavailable(format!("no connection to {to}")).caused_by(root_cause(&error))
        };
        let endpoint = self.endpoint(host).map_err(|error| {
            unavailable(format!("{to} is no address of a server")).caused_by(error)
        })?;
        #[cfg(feature = "tls")]
        let endpoint = match &self.certificates {
            Some(files) => endpoint.tls_config(tls(files).await).map_err(failed)?,
            None => endpoint,
        };
        endpoint.connect().await.map_err(failed)
    }

    fn endpoint(&self, host: &Host) -> Result<Endpoint, tonic::transport::Error> {
        let timeout = self.config.request_timeout;
        let url = match (&self.config.socket, &self.config.tls) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(_)) => format!("https://{host}"),
            (None, None) => format!("http://{host}"),
        };
        Ok(Endpoint::from_shared(url)?
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keep_alive_interval(timeout)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true))
    }
}

/// The certificates for a connection that is made now.
#[cfg(feature = "tls")]
async fn tls(files: &CertificateFiles) -> ClientTlsConfig {
    let latest = files.latest().await;
    let mut tls = match latest.authorities {
        Some(authorities) => {
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities))
        }
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((cert, key)) = latest.client {
        tls = tls.identity(Identity::from_pem(cert, key.reveal()));
    }
    tls
}

/// Reads the token of a file for each connection.
fn of_file(path: PathBuf) -> SharedProvider {
    let reads = Arc::new(FileReads::default());
    SharedProvider::new(move || {
        let (reads, path) = (Arc::clone(&reads), path.clone());
        async move {
            let token = reads.read(move || read_token(&path)).await?;
            Ok(Credentials::written(None, Some(token)))
        }
    })
}

fn read_token(path: &Path) -> Result<Secret> {
    let wrong = |problem: &str| {
        let path = path.display().to_string();
        let problem = format!("option `token_file`: {} {problem}", path.escape_debug());
        Error::new(ErrorKind::InvalidConfig, problem).on(BACKEND)
    };
    let token = read_bounded(path).map_err(|error| wrong("cannot be read").caused_by(error))?;
    let token = String::from_utf8(token).map_err(|_| wrong("holds no token"))?;
    match token.trim() {
        "" => Err(wrong("is empty")),
        token => Ok(Secret::new(token)),
    }
}

/// The text of the innermost cause, which says what the system reported.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
