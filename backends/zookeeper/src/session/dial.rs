//! Opens a client of the ensemble, with the credentials and certificates of the configuration. No
//! error may contain a password.

use std::time::Duration;

#[cfg(feature = "tls")]
use distlock_backend_kit::TlsFile;
use distlock_core::{Error, Result};
use zookeeper_client as zk;

#[cfg(feature = "tls")]
use crate::error::invalid_config;
use crate::{
    config::{Mechanism, ZooKeeperConfig},
    error::{Access, translate},
};

/// Opens a client whose session requests this timeout.
pub(crate) async fn dial(
    config: &ZooKeeperConfig,
    session_timeout: Duration,
) -> Result<zk::Client> {
    let mut connector = zk::Client::connector()
        .with_session_timeout(session_timeout)
        // A holder trusts its lock for at most two thirds of the session timeout without an answer.
        // The client must find another server well before that time is over.
        .with_connection_timeout(session_timeout / 4)
        .with_fail_eagerly();
    if let Some(credentials) = &config.credentials {
        let password = credentials.password.reveal();
        connector = match credentials.mechanism {
            Mechanism::Digest => connector.with_auth(
                "digest",
                format!("{}:{password}", credentials.user).as_bytes(),
            ),
            Mechanism::SaslDigestMd5 => {
                #[cfg(feature = "sasl")]
                {
                    connector.with_sasl(zk::SaslOptions::digest_md5(
                        credentials.user.clone(),
                        password.to_owned(),
                    ))
                }
                // Unreachable: the check of the configuration refuses SASL without the feature
                // `sasl`.
                #[cfg(not(feature = "sasl"))]
                connector
            }
        };
    }
    let servers = config.servers.join(",");
    let dialled = match &config.tls {
        None => connector.connect(&servers).await,
        #[cfg(feature = "tls")]
        Some(files) => {
            connector
                .with_tls(tls_options(files)?)
                .secure_connect(&servers)
                .await
        }
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(zk::Error::Unimplemented),
    };
    dialled.map_err(|error| -> Error { translate(error, Access::Read).during("connect") })
}

/// Reads and checks the certificate files.
#[cfg(feature = "tls")]
fn tls_options(files: &crate::config::TlsFiles) -> Result<zk::TlsOptions> {
    let text = |pem: Vec<u8>| String::from_utf8_lossy(&pem).into_owned();
    // Core checks the files first, because the client's own errors do not name the file and do not
    // say which part of it is broken.
    let bad =
        |error: zk::Error| invalid_config(format!("the TLS certificates cannot be used: {error}"));
    let authorities = TlsFile::new("tls_ca", &files.ca).authorities(false)?;
    let ca = zk::TlsCa::from_pem(&text(authorities)).map_err(bad)?;
    let mut certs = zk::TlsCerts::builder().with_ca(ca);
    if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
        let (cert, key) = TlsFile::new("tls_cert", cert).identity(TlsFile::new("tls_key", key))?;
        let identity = zk::TlsIdentity::from_pem(&text(cert), &text(key)).map_err(bad)?;
        certs = certs.with_identity(identity);
    }
    Ok(zk::TlsOptions::new().with_certs(certs.build().map_err(bad)?))
}
