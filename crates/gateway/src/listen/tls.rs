//! TLS of a node, by rustls: on its listeners, and for its calls to other nodes.
//!
//! This module owns the certificates and keys, which come from files. It reads the files at the
//! start and again on request. Open connections keep the certificates they began with. Files that
//! cannot be used must never replace good certificates. The module warns of certificates that the
//! other side refuses for their dates, and never refuses one itself: the clock of this host may be
//! wrong.

use std::{
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use distlock_backend_kit::{FileReads, read_bounded};
use distlock_core::{Clock, Error, Result, sync::RwLock};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use x509_cert::{
    Certificate,
    der::{DateTime, Decode as _},
};

use crate::config::{PeerAuth, TlsFiles, config_error};

/// The longest wait for the files. A node goes on without an answer, so it may wait for a slow file
/// system longer than a connection may.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The current certificates of the node.
pub(crate) struct Tls {
    files: TlsFiles,
    reads: FileReads,
    clock: Arc<dyn Clock>,
    current: RwLock<LoadedTls>,
}

/// The kind of listener, which decides the certificate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListenerKind {
    /// For clients and administrators.
    Clients,
    /// For other nodes.
    Peers,
}

#[derive(Default)]
struct LoadedTls {
    clients: Option<Arc<ServerConfig>>,
    peers: Option<(Arc<ServerConfig>, Arc<ClientConfig>)>,
    /// For each file with certificates.
    dates: Vec<CertificateDates>,
}

/// A certificate that the node shows, with its key.
struct Identity {
    /// The configuration key that names the file of the certificate.
    cert_key: &'static str,
    file: String,
    chain: Vec<CertificateDer<'static>>,
    secret: PrivateKeyDer<'static>,
}

impl Tls {
    /// Reads the files. A certificate that is not valid now is only logged.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig), naming key and file;
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) when the file system does
    /// not answer.
    pub(crate) async fn read(files: TlsFiles, clock: Arc<dyn Clock>) -> Result<Self> {
        let tls = Self {
            files,
            clock,
            reads: FileReads::within(READ_LIMIT),
            current: RwLock::default(),
        };
        tls.reload().await?;
        Ok(tls)
    }

    /// Whether the configuration names any file.
    pub(crate) const fn has_files(&self) -> bool {
        self.files.own.is_some() || self.files.peer_ca.is_some()
    }

    /// Reads the files again. Files that cannot be used change nothing.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub(crate) async fn reload(&self) -> Result<()> {
        let files = self.files.clone();
        let reading = self.reads.read(move || LoadedTls::read(&files)).await;
        let current = reading.map_err(|error| error.during("read certificates"))?;
        let now = self.clock.wall();
        current.dates.iter().for_each(|dates| dates.warn(now));
        *self.current.write() = current;
        Ok(())
    }

    /// Sets the metrics for the times until the certificates expire.
    pub(crate) fn record_expiry(&self) {
        let current = self.current.read();
        let now = self.clock.wall();
        current.dates.iter().for_each(|dates| dates.record(now));
    }

    /// The time until the first certificate of the node expires, in seconds, negative afterwards;
    /// `None` without certificates.
    pub(crate) fn seconds_left(&self) -> Option<f64> {
        let current = self.current.read();
        let now = self.clock.wall();
        let left = current.dates.iter().map(|dates| dates.seconds_left(now));
        left.reduce(f64::min)
    }

    /// The TLS settings of a listener. `None` means that the listener speaks without TLS.
    pub(crate) fn server_config(&self, kind: ListenerKind) -> Option<Arc<ServerConfig>> {
        let current = self.current.read();
        match kind {
            ListenerKind::Clients => current.clients.clone(),
            ListenerKind::Peers => current.peers.as_ref().map(|(server, _)| Arc::clone(server)),
        }
    }

    /// The TLS settings for calls to other nodes, and the name that their certificates must have.
    /// Without a name, the certificate must have the host of the node's address. `None` means that
    /// calls go without TLS.
    pub(crate) fn client_config(&self) -> Option<(Arc<ClientConfig>, Option<&str>)> {
        let current = self.current.read();
        let (_, client) = current.peers.as_ref()?;
        Some((Arc::clone(client), self.files.peer_name.as_deref()))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl LoadedTls {
    fn read(files: &TlsFiles) -> Result<Self> {
        // The provider is chosen here for this node only. A provider for the whole process is the
        // choice of the embedding program.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let load = |pair: &Option<(String, String)>, cert_key, key_key| {
            let load =
                |(cert, key): &(String, String)| Identity::load(cert_key, cert, key_key, key);
            pair.as_ref().map(load).transpose()
        };
        let own = load(&files.own, "tls_cert", "tls_key")?;
        let peer = load(&files.peer, "peer_tls_cert", "peer_tls_key")?;
        let clients = own.as_ref();
        let clients = clients.map(|own| build_server_config(&provider, own, None, &[]));
        let mut loaded = Self {
            clients: clients.transpose()?,
            peers: None,
            dates: [&own, &peer]
                .into_iter()
                .filter_map(|it| it.as_ref()?.dates())
                .collect(),
        };
        let Some(ca) = &files.peer_ca else {
            return Ok(loaded);
        };
        let shown = peer.or(own).ok_or_else(|| {
            config_error(
                "peer_tls_ca",
                "is set, and this node has no certificate: set peer_tls_cert and peer_tls_key, \
                 or tls_cert and tls_key",
            )
        })?;
        let authorities = load_certificates("peer_tls_ca", ca)?;
        loaded
            .dates
            .extend(CertificateDates::read("peer_tls_ca", ca, &authorities));
        let roots = Arc::new(trust(ca, authorities)?);
        let mutual = files.peer_auth == PeerAuth::Mutual;
        let verifies = mutual.then(|| Arc::clone(&roots));
        let server = build_server_config(&provider, &shown, verifies, &[b"h2"])?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable_file("peer_tls_ca", ca, error))?
            .with_root_certificates(roots);
        let mut client = if mutual {
            client
                .with_client_auth_cert(shown.chain.clone(), shown.secret.clone_key())
                .map_err(|error| unusable_file(shown.cert_key, &shown.file, error))?
        } else {
            client.with_no_client_auth()
        };
        client.alpn_protocols = vec![b"h2".to_vec()];
        loaded.peers = Some((server, Arc::new(client)));
        Ok(loaded)
    }
}

impl Identity {
    fn load(cert_key: &'static str, cert: &str, key_key: &str, key: &str) -> Result<Self> {
        let chain = load_certificates(cert_key, cert)?;
        let secret = PrivateKeyDer::from_pem_slice(&read_file(key_key, key)?)
            .map_err(|error| unusable_file(key_key, key, error))?;
        Ok(Self {
            cert_key,
            file: cert.to_owned(),
            chain,
            secret,
        })
    }

    fn dates(&self) -> Option<CertificateDates> {
        CertificateDates::read(self.cert_key, &self.file, &self.chain)
    }
}

fn build_server_config(
    provider: &Arc<CryptoProvider>,
    identity: &Identity,
    verifies: Option<Arc<RootCertStore>>,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>> {
    let unusable = |error| unusable_file(identity.cert_key, &identity.file, error);
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match verifies {
        Some(roots) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| config_error("peer_tls_ca", &format!("{error}")))?,
            )
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(identity.chain.clone(), identity.secret.clone_key())
        .map_err(unusable)?;
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    Ok(Arc::new(config))
}

fn load_certificates(key: &str, file: &str) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read_file(key, file)?;
    let read = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|error| unusable_file(key, file, error))?;
    if read.is_empty() {
        return Err(config_error(
            key,
            &format!("is \"{}\", which holds no certificate", file.escape_debug()),
        ));
    }
    Ok(read)
}

fn read_file(key: &str, file: &str) -> Result<Vec<u8>> {
    read_bounded(Path::new(file)).map_err(|error| unusable_file(key, file, error))
}

/// The authorities of `peer_tls_ca`, which is this file.
fn trust(file: &str, authorities: Vec<CertificateDer<'static>>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots
            .add(certificate)
            .map_err(|error| unusable_file("peer_tls_ca", file, error))?;
    }
    Ok(roots)
}

fn unusable_file(
    key: &str,
    file: &str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    let problem = format!("is \"{}\", which cannot be used", file.escape_debug());
    config_error(key, &problem).caused_by(error)
}

/// The metric for the time until a certificate expires.
pub(crate) const EXPIRY: &str = "distlock_tls_expiry_seconds";

/// The time during which every certificate of one file is valid.
#[derive(Clone, Debug)]
pub(super) struct CertificateDates {
    /// The configuration key that names the file.
    key: &'static str,
    file: String,
    not_before: DateTime,
    not_after: DateTime,
}

impl CertificateDates {
    /// Reads the dates of the certificates in a file; `None` if no certificate shows its dates.
    pub(super) fn read(
        key: &'static str,
        file: &str,
        certificates: &[CertificateDer<'_>],
    ) -> Option<Self> {
        let dates = certificates.iter().filter_map(|certificate| {
            let parsed = Certificate::from_der(certificate).ok()?;
            let validity = parsed.tbs_certificate().validity();
            let dates = (validity.not_before, validity.not_after);
            Some((dates.0.to_date_time(), dates.1.to_date_time()))
        });
        let (not_before, not_after) =
            dates.reduce(|all, one| (all.0.max(one.0), all.1.min(one.1)))?;
        Some(Self {
            key,
            file: file.to_owned(),
            not_before,
            not_after,
        })
    }

    /// Warns if a certificate of the file is not valid at this time.
    pub(super) fn warn(&self, now: SystemTime) {
        let (key, file) = (self.key, &self.file);
        if self.not_after.to_system_time() < now {
            tracing::warn!(
                key, ?file, expired = %self.not_after,
                "a certificate has expired, so connections that need it are refused: replace the \
                 file and send HUP to the node"
            );
        }
        if now < self.not_before.to_system_time() {
            tracing::warn!(
                key, ?file, valid_from = %self.not_before,
                "a certificate is not valid yet, so connections that need it are refused: is the \
                 clock of this host right?"
            );
        }
    }

    /// Sets the metric for the time until the first certificate of the file expires.
    pub(super) fn record(&self, now: SystemTime) {
        metrics::gauge!(EXPIRY, "key" => self.key).set(self.seconds_left(now));
    }

    /// The time until the first certificate of the file expires, in seconds, negative afterwards.
    pub(super) fn seconds_left(&self, now: SystemTime) -> f64 {
        match self.not_after.to_system_time().duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(since) => -since.duration().as_secs_f64(),
        }
    }
}
