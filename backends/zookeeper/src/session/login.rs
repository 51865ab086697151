//! The credentials and the certificates that the store's sessions show to the servers.
//!
//! Both are asked for again when a session is opened and when its connection was lost. The client
//! library reconnects by itself, so a session that goes on gets new certificates through a cell of
//! that library. A session keeps the credentials that it began with, and those of ZooKeeper's
//! `digest` are added soon after they change (`connection.rs`): nodes that the session creates from
//! then on belong to both.

use std::{future::Future, sync::Arc};

use distlock_backend_kit::{CredentialSource, Credentials, Secret};
use distlock_core::{Clock, Result};
use zookeeper_client as zk;

use crate::config::{Mechanism, ZooKeeperConfig};

/// The credentials and certificates of a store.
pub(crate) struct Login {
    source: CredentialSource,
    mechanism: Option<Mechanism>,
    #[cfg(feature = "tls")]
    tls: Option<tls::SessionCertificates>,
}

impl Login {
    /// Reads and checks the certificate files.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the option and its
    /// file.
    pub(crate) fn new(config: &ZooKeeperConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let written = config.credentials.as_ref();
        let mechanism = written.map(|written| written.mechanism);
        let written = written.map_or_else(Credentials::default, |written| {
            Credentials::written(Some(written.user.clone()), Some(written.password.clone()))
        });
        // A store without credentials in its URL shows none.
        let provider = config.provider.clone().filter(|_| mechanism.is_some());
        let limit = config.connect_timeout;
        Ok(Self {
            source: CredentialSource::new(written, provider, clock, limit),
            mechanism,
            #[cfg(feature = "tls")]
            tls: config
                .tls
                .as_ref()
                .map(tls::SessionCertificates::open)
                .transpose()?,
        })
    }

    /// Makes one attempt to open a session, with the credentials of this moment.
    pub(crate) async fn connect<T, F>(&self, attempt: impl FnOnce(Credentials) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.source.connect(attempt).await
    }

    /// The credentials of this moment.
    pub(crate) async fn current(&self) -> Result<Credentials> {
        self.source.current().await
    }

    /// Whether an open session can show other credentials. SASL proves its credentials once for
    /// each connection, and the client library repeats the first ones.
    pub(super) fn follows_changes(&self) -> bool {
        self.mechanism == Some(Mechanism::Digest) && !self.source.is_fixed()
    }

    /// Adds the credentials and the certificates to a client.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_async, reason = "files of TLS")
    )]
    pub(super) async fn prepare(
        &self,
        mut connector: zk::Connector,
        credentials: &Credentials,
    ) -> zk::Connector {
        match self.mechanism {
            None => {}
            Some(Mechanism::Digest) => {
                connector = connector.with_auth("digest", digest(credentials).as_bytes());
            }
            Some(Mechanism::SaslDigestMd5) => {
                // Without the feature `sasl`, the check of the configuration refuses SASL.
                #[cfg(feature = "sasl")]
                {
                    let (user, password) = parts(credentials);
                    let options = zk::SaslOptions::digest_md5(user.to_owned(), password.to_owned());
                    connector = connector.with_sasl(options);
                }
            }
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            tls.refresh().await;
            connector = connector.with_tls(tls.options());
        }
        connector
    }

    /// Reads the certificate files again, for the next connection of an open session.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_async, reason = "files of TLS")
    )]
    pub(super) async fn refresh_certificates(&self) {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            tls.refresh().await;
        }
    }
}

fn parts(credentials: &Credentials) -> (&str, &str) {
    let user = credentials.user.as_deref().unwrap_or_default();
    let password = credentials.password.as_ref();
    (user, password.map_or("", Secret::reveal))
}

/// The credentials in the form of ZooKeeper's `digest`.
pub(super) fn digest(credentials: &Credentials) -> String {
    let (user, password) = parts(credentials);
    format!("{user}:{password}")
}

#[cfg(feature = "tls")]
mod tls {
    use distlock_backend_kit::{CertificateFiles, Certificates};
    use distlock_core::{Error, Result};
    use zookeeper_client as zk;

    use crate::{config::TlsFiles, error::invalid_config};

    /// The files, and the cell from which all clients of the store take their certificates.
    pub(super) struct SessionCertificates {
        files: CertificateFiles,
        cell: zk::TlsDynamicCerts,
    }

    impl SessionCertificates {
        pub(super) fn open(names: &TlsFiles) -> Result<Self> {
            let client = names.cert.clone().zip(names.key.clone());
            let client = client.map(|(cert, key)| (("tls_cert", cert), ("tls_key", key)));
            let (files, first) =
                CertificateFiles::open(Some(("tls_ca", names.ca.clone())), client, false)
                    .map_err(|error| error.on("zookeeper"))?;
            let cell = zk::TlsDynamicCerts::new(in_clients_form(&first)?);
            Ok(Self { files, cell })
        }

        /// Reads the files. All clients of the store use the content at their next connection.
        pub(super) async fn refresh(&self) {
            match in_clients_form(&self.files.latest().await) {
                Ok(certs) => self.cell.update(certs),
                Err(error) => {
                    tracing::warn!(%error, "wrong certificates: the store keeps the old ones");
                }
            }
        }

        pub(super) fn options(&self) -> zk::TlsOptions {
            zk::TlsOptions::new().with_certs(self.cell.clone())
        }
    }

    fn in_clients_form(certificates: &Certificates) -> Result<zk::TlsCerts> {
        // The files were checked, because the client's own errors do not name the file and do not
        // say which part of it is broken.
        let bad = |error: zk::Error| -> Error {
            invalid_config(format!("the TLS certificates cannot be used: {error}"))
        };
        let authorities = certificates.authorities.as_deref().unwrap_or_default();
        let ca = zk::TlsCa::from_pem(&String::from_utf8_lossy(authorities)).map_err(bad)?;
        let mut certs = zk::TlsCerts::builder().with_ca(ca);
        if let Some((cert, key)) = &certificates.client {
            let cert = String::from_utf8_lossy(cert);
            let identity = zk::TlsIdentity::from_pem(&cert, key.reveal()).map_err(bad)?;
            certs = certs.with_identity(identity);
        }
        certs.build().map_err(bad)
    }
}
