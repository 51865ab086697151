//! TLS by rustls: on the listeners of a program, and for its calls to programs of its kind.
//!
//! This module owns the certificates and keys, which come from files. It reads the files at the
//! start and again on request. Open connections keep the certificates they began with. Files that
//! cannot be used must never replace good certificates. The module warns of certificates that the
//! other side refuses for their dates, and never refuses one itself: the clock of this host may be
//! wrong.

use std::{
    borrow::Cow,
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use distlock_backend_kit::{FileReads, read_bounded};
use distlock_core::{Clock, Error, ErrorKind, Result, sync::RwLock};
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

/// The longest wait for the files. The program goes on without an answer, so it may wait for a slow
/// file system longer than a connection may.
pub(crate) const READ_LIMIT: Duration = Duration::from_secs(5);

/// A file that a setting of the program names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The setting, which is the [`setting`](Error::setting) of an error about the file.
    pub setting: &'static str,
    /// The path of the file, in PEM form.
    pub path: String,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate, with the certificates between it and its authority.
    pub cert: NamedFile,
    /// The private key of the certificate.
    pub key: NamedFile,
}

/// The files of a program's certificates and keys.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The text before the name of a setting in an error, such as `gateway.`.
    pub settings_of: &'static str,
    /// What listeners for clients show.
    pub own: Option<IdentityFiles>,
    /// The authorities of which each client has to show a certificate; without them no client needs
    /// one.
    pub client_ca: Option<NamedFile>,
    /// The protocols that listeners for clients offer in the handshake.
    pub client_protocols: &'static [&'static [u8]],
    /// Turns on TLS between programs of one kind.
    pub peers: Option<PeerFiles>,
}

/// The files for TLS between programs of one kind.
#[derive(Clone, Debug)]
pub struct PeerFiles {
    /// What listeners for peers and calls to them show.
    pub identity: IdentityFiles,
    /// The authorities that sign the certificates of peers.
    pub ca: NamedFile,
    /// Whether a caller has to show a certificate of these authorities.
    pub mutual: bool,
    /// The name that a peer's certificate must have; the host of its address if this is `None`.
    pub name: Option<String>,
}

/// The current certificates of the program.
pub struct Tls {
    files: TlsFiles,
    reads: FileReads,
    clock: Arc<dyn Clock>,
    current: RwLock<LoadedTls>,
}

/// The kind of listener, which decides the certificate.
#[derive(Clone, Copy, Debug)]
pub enum ListenerKind {
    /// For clients and administrators.
    Clients,
    /// For programs of the same kind.
    Peers,
}

#[derive(Default)]
struct LoadedTls {
    clients: Option<Arc<ServerConfig>>,
    peers: Option<(Arc<ServerConfig>, Arc<ClientConfig>)>,
    /// For each file with certificates.
    dates: Vec<CertificateDates>,
}

/// A certificate that the program shows, with its key.
struct Identity {
    cert: NamedFile,
    chain: Vec<CertificateDer<'static>>,
    secret: PrivateKeyDer<'static>,
}

impl Tls {
    /// Reads the files. A certificate that is not valid now is only logged.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], naming setting and file; [`ErrorKind::Unavailable`] when the
    /// file system does not answer.
    pub async fn read(files: TlsFiles, clock: Arc<dyn Clock>) -> Result<Self> {
        let tls = Self {
            files,
            clock,
            reads: FileReads::within(READ_LIMIT),
            current: RwLock::default(),
        };
        tls.reload().await?;
        Ok(tls)
    }

    /// Whether there is any file.
    #[must_use]
    pub const fn has_files(&self) -> bool {
        self.files.own.is_some() || self.files.peers.is_some()
    }

    /// Reads the files again. Files that cannot be used change nothing.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub async fn reload(&self) -> Result<()> {
        let files = self.files.clone();
        let reading = self.reads.read(move || LoadedTls::read(&files)).await;
        let current = reading.map_err(|error| error.during("read certificates"))?;
        let now = self.clock.wall();
        current.dates.iter().for_each(|dates| dates.warn(now));
        *self.current.write() = current;
        Ok(())
    }

    /// Sets the metrics for the times until the certificates expire.
    pub fn record_expiry(&self) {
        let current = self.current.read();
        let now = self.clock.wall();
        current.dates.iter().for_each(|dates| dates.record(now));
    }

    /// The time until the first certificate expires, in seconds, negative afterwards;
    /// `None` without certificates.
    #[must_use]
    pub fn seconds_left(&self) -> Option<f64> {
        let current = self.current.read();
        let now = self.clock.wall();
        let left = current.dates.iter().map(|dates| dates.seconds_left(now));
        left.reduce(f64::min)
    }

    /// The TLS settings of a listener. `None` means that the listener speaks without TLS.
    #[must_use]
    pub fn server_config(&self, kind: ListenerKind) -> Option<Arc<ServerConfig>> {
        let current = self.current.read();
        match kind {
            ListenerKind::Clients => current.clients.clone(),
            ListenerKind::Peers => current.peers.as_ref().map(|(server, _)| Arc::clone(server)),
        }
    }

    /// The TLS settings for calls to peers, and the name that their certificates must have. Without
    /// a name, the certificate must have the host of the peer's address. `None` means that calls go
    /// without TLS.
    #[must_use]
    pub fn client_config(&self) -> Option<(Arc<ClientConfig>, Option<&str>)> {
        let current = self.current.read();
        let (_, client) = current.peers.as_ref()?;
        let name = self.files.peers.as_ref()?.name.as_deref();
        Some((Arc::clone(client), name))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl LoadedTls {
    fn read(files: &TlsFiles) -> Result<Self> {
        let read = Self::read_all(files);
        read.map_err(|error| error.into_error(files.settings_of))
    }

    fn read_all(all: &TlsFiles) -> Result<Self, FileError> {
        // The provider is chosen here for this program's listeners only. A provider for the whole
        // process is the choice of the embedding program.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut loaded = Self::default();
        if let Some(files) = &all.own {
            let own = Identity::load(files)?;
            loaded.dates.extend(own.dates());
            let verifies = match &all.client_ca {
                None => None,
                Some(ca) => {
                    let authorities = load_certificates(ca)?;
                    let dates = CertificateDates::read(ca, &authorities);
                    loaded.dates.extend(dates);
                    Some((ca, Arc::new(trust(ca, authorities)?)))
                }
            };
            let protocols = all.client_protocols;
            loaded.clients = Some(build_server_config(&provider, &own, verifies, protocols)?);
        }
        let Some(peers) = &all.peers else {
            return Ok(loaded);
        };
        let shown = Identity::load(&peers.identity)?;
        if all.own.as_ref() != Some(&peers.identity) {
            loaded.dates.extend(shown.dates());
        }
        let ca = &peers.ca;
        let authorities = load_certificates(ca)?;
        loaded
            .dates
            .extend(CertificateDates::read(ca, &authorities));
        let roots = Arc::new(trust(ca, authorities)?);
        let verifies = peers.mutual.then(|| (ca, Arc::clone(&roots)));
        let server = build_server_config(&provider, &shown, verifies, &[b"h2"])?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ca.unusable(error))?
            .with_root_certificates(roots);
        let mut client = if peers.mutual {
            client
                .with_client_auth_cert(shown.chain.clone(), shown.secret.clone_key())
                .map_err(|error| shown.cert.unusable(error))?
        } else {
            client.with_no_client_auth()
        };
        client.alpn_protocols = vec![b"h2".to_vec()];
        loaded.peers = Some((server, Arc::new(client)));
        Ok(loaded)
    }
}

impl Identity {
    fn load(files: &IdentityFiles) -> Result<Self, FileError> {
        let chain = load_certificates(&files.cert)?;
        let secret = PrivateKeyDer::from_pem_slice(&read_file(&files.key)?)
            .map_err(|error| files.key.unusable(error))?;
        Ok(Self {
            cert: files.cert.clone(),
            chain,
            secret,
        })
    }

    fn dates(&self) -> Option<CertificateDates> {
        CertificateDates::read(&self.cert, &self.chain)
    }
}

fn build_server_config(
    provider: &Arc<CryptoProvider>,
    identity: &Identity,
    verifies: Option<(&NamedFile, Arc<RootCertStore>)>,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, FileError> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| identity.cert.unusable(error))?;
    let builder = match verifies {
        Some((ca, roots)) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| ca.unusable(error))?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(identity.chain.clone(), identity.secret.clone_key())
        .map_err(|error| identity.cert.unusable(error))?;
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    Ok(Arc::new(config))
}

fn load_certificates(file: &NamedFile) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let pem = read_file(file)?;
    let read = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|error| file.unusable(error))?;
    if read.is_empty() {
        return Err(file.error("which holds no certificate"));
    }
    Ok(read)
}

fn read_file(file: &NamedFile) -> Result<Vec<u8>, FileError> {
    read_bounded(Path::new(&file.path)).map_err(|error| file.unusable(error))
}

/// The authorities of this file.
fn trust(
    file: &NamedFile,
    authorities: Vec<CertificateDer<'static>>,
) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots
            .add(certificate)
            .map_err(|error| file.unusable(error))?;
    }
    Ok(roots)
}

/// A file that cannot be used.
#[derive(Debug)]
struct FileError {
    file: NamedFile,
    problem: Cow<'static, str>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl NamedFile {
    fn error(&self, problem: impl Into<Cow<'static, str>>) -> FileError {
        FileError {
            file: self.clone(),
            problem: problem.into(),
            cause: None,
        }
    }

    /// The error of a file that cannot be read.
    pub(crate) fn unreadable(&self, settings_of: &str, cause: std::io::Error) -> Error {
        self.unusable(cause).into_error(settings_of)
    }

    /// The error of a file with this problem.
    pub(crate) fn wrong(&self, settings_of: &str, problem: Cow<'static, str>) -> Error {
        self.error(problem).into_error(settings_of)
    }

    fn unusable(&self, cause: impl std::error::Error + Send + Sync + 'static) -> FileError {
        FileError {
            cause: Some(Box::new(cause)),
            ..self.error("which cannot be used")
        }
    }
}

impl FileError {
    fn into_error(self, settings_of: &str) -> Error {
        let NamedFile { setting, path } = self.file;
        let (path, problem) = (path.escape_debug(), &self.problem);
        let message = format!("{settings_of}{setting} is \"{path}\", {problem}");
        let error = Error::new(ErrorKind::InvalidConfig, message).of_setting(setting);
        match self.cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }
}

/// The metric for the time until a certificate expires.
pub const EXPIRY: &str = "distlock_tls_expiry_seconds";

/// The time during which every certificate of one file is valid.
#[derive(Clone, Debug)]
pub(crate) struct CertificateDates {
    file: NamedFile,
    not_before: DateTime,
    not_after: DateTime,
}

impl CertificateDates {
    /// Reads the dates of the certificates in a file; `None` if no certificate shows its dates.
    pub(crate) fn read(file: &NamedFile, certificates: &[CertificateDer<'_>]) -> Option<Self> {
        let dates = certificates.iter().filter_map(|certificate| {
            let parsed = Certificate::from_der(certificate).ok()?;
            let validity = parsed.tbs_certificate().validity();
            let dates = (validity.not_before, validity.not_after);
            Some((dates.0.to_date_time(), dates.1.to_date_time()))
        });
        let (not_before, not_after) =
            dates.reduce(|all, one| (all.0.max(one.0), all.1.min(one.1)))?;
        Some(Self {
            file: file.clone(),
            not_before,
            not_after,
        })
    }

    /// Warns if a certificate of the file is not valid at this time.
    pub(crate) fn warn(&self, now: SystemTime) {
        let NamedFile {
            setting: key,
            path: file,
        } = &self.file;
        if self.not_after.to_system_time() < now {
            tracing::warn!(
                key, ?file, expired = %self.not_after,
                "a certificate has expired, so connections that need it are refused: replace the \
                 file and send HUP to this process"
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
    pub(crate) fn record(&self, now: SystemTime) {
        metrics::gauge!(EXPIRY, "key" => self.file.setting).set(self.seconds_left(now));
    }

    /// The time until the first certificate of the file expires, in seconds, negative afterwards.
    pub(crate) fn seconds_left(&self, now: SystemTime) -> f64 {
        match self.not_after.to_system_time().duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(since) => -since.duration().as_secs_f64(),
        }
    }
}
