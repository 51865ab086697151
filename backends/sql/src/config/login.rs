//! The credentials and the certificates that a connection shows to a server when it is made.
//!
//! Both are asked for again before each attempt, so a password, a certificate or an authority can
//! be replaced while the store is open. No password crosses a network in clear unless the options
//! allow that.

use std::{future::Future, sync::Arc};

use distlock_backend_kit::{Certificates, CredentialSource, Credentials};
use distlock_core::{Clock, Result};

use super::server::ServerConfig;
#[cfg(feature = "tls")]
use distlock_backend_kit::CertificateFiles;

/// The credentials and certificates of a store, for all its handles.
#[derive(Debug)]
pub(crate) struct Login {
    credentials: CredentialSource,
    #[cfg(feature = "tls")]
    files: CertificateFiles,
}

impl Login {
    /// Reads and checks the certificate files.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the option and its
    /// file.
    pub(crate) fn new(config: &ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let written = Credentials::written(config.user.clone(), config.password.clone());
        // A little less than the limit of connecting, so that the provider is named as the cause.
        let (provider, limit) = (config.provider.clone(), config.connect_timeout * 4 / 5);
        Ok(Self {
            credentials: CredentialSource::new(written, provider, clock, limit)
                .with_certificates(config.ssl_client.is_some()),
            #[cfg(feature = "tls")]
            files: config.certificate_files()?,
        })
    }

    /// Makes one attempt to connect, with the credentials and certificates of this moment.
    pub(crate) async fn connect<T, F>(
        &self,
        config: &ServerConfig,
        attempt: impl FnOnce(ServerConfig, Certificates) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let attempt = |credentials| async {
            let config = with(config, credentials)?;
            attempt(config, self.certificates().await).await
        };
        self.credentials.connect(attempt).await
    }

    /// The options with the credentials that a connection would use now.
    pub(crate) async fn current(&self, config: &ServerConfig) -> Result<ServerConfig> {
        with(config, self.credentials.current().await?)
    }

    #[cfg(feature = "tls")]
    async fn certificates(&self) -> Certificates {
        self.files.latest().await
    }

    /// Without TLS, the check of the options refuses certificate files.
    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_async, reason = "with TLS the files are read here")]
    async fn certificates(&self) -> Certificates {
        Certificates::default()
    }
}

/// The options with these credentials, if the credentials may be sent to the server.
fn with(config: &ServerConfig, credentials: Credentials) -> Result<ServerConfig> {
    let config = ServerConfig {
        user: credentials.user,
        password: credentials.password,
        ..config.clone()
    };
    config.check_password()?;
    Ok(config)
}
