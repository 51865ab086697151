//! Connections to other nodes, and the causes of those that fail.
//!
//! Invariant of this module: a cause says that the other node has executed no call of the
//! connection. A connection that breaks for another reason has no cause here. The causes are read
//! by people at night, so each one says what to change, and on which side.

use std::{
    error::Error,
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::http::Uri;
use distlock_core::{Clock, at_most, sync::Mutex};
use distlock_listen::Tls;
use hyper_util::rt::TokioIo;
use rustls::{AlertDescription, CertificateError, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, lookup_host},
};
use tokio_rustls::TlsConnector;
use tower::{Service, service_fn};

/// First byte of a TLS alert. As the first byte of an HTTP/2 frame it would announce a length that
/// no node accepts.
const TLS_ALERT: u8 = 0x15;

/// Why a connection to another node carries no call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ConnectFailure {
    /// The host of the node's address has no address.
    UnknownHost,
    /// Nothing listens at the address.
    Refused,
    /// The connection could not be made.
    Unreachable(io::ErrorKind),
    /// The connection, with TLS, took longer than this.
    TooSlow(Duration),
    /// This node calls by TLS, and the other one answers without TLS.
    OnlyHereTls,
    /// This node calls without TLS, and the other one expects TLS.
    OnlyThereTls,
    /// The certificate of the other node was not accepted here.
    Certificate(CertificateError),
    /// The other node did not accept this node's certificate.
    Rejected(AlertDescription),
    /// The TLS handshake failed in another way.
    Handshake(String),
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownHost => f.write_str(
                "the host of its address is not known: check peer_advertise there, and the name \
                 service here",
            ),
            Self::Refused => f.write_str(
                "nothing listens at its address: check peer_listen and peer_advertise there",
            ),
            Self::Unreachable(kind) => write!(
                f,
                "no connection to its address ({kind}): check the network and peer_advertise there"
            ),
            Self::TooSlow(limit) => write!(
                f,
                "no connection to its address within {limit:.1?}: check firewalls between the \
                 nodes, and peer_advertise there"
            ),
            Self::OnlyHereTls => f.write_str(
                "it answers without TLS, and this node calls by TLS: set peer_tls_ca on both nodes \
                 or on none",
            ),
            Self::OnlyThereTls => f.write_str(
                "it expects TLS, and this node calls without TLS: set peer_tls_ca on both nodes or \
                 on none",
            ),
            Self::Certificate(error) => write_certificate_cause(f, error),
            Self::Rejected(alert) => write_rejection(f, *alert),
            Self::Handshake(why) => write!(f, "the TLS handshake failed: {why}"),
        }
    }
}

impl Error for ConnectFailure {}

fn write_certificate_cause(f: &mut fmt::Formatter<'_>, error: &CertificateError) -> fmt::Result {
    use CertificateError as It;
    match error {
        It::Expired | It::ExpiredContext { .. } => f.write_str(
            "its certificate has expired: renew the file of peer_tls_cert (or tls_cert) there, and \
             send HUP",
        ),
        It::NotValidYet | It::NotValidYetContext { .. } => {
            f.write_str("its certificate is not valid yet: compare the clocks of the nodes")
        }
        It::UnknownIssuer | It::BadSignature => f.write_str(
            "its certificate is not from an authority in peer_tls_ca of this node: check \
             peer_tls_ca here, and peer_tls_cert (or tls_cert) there",
        ),
        It::NotValidForName => f.write_str(
            "its certificate is not for its address: set peer_advertise there to a name in its \
             certificate, or peer_tls_name here",
        ),
        It::NotValidForNameContext { expected, .. } => write!(
            f,
            "its certificate is not for {}: set peer_advertise there to a name in its certificate, \
             or peer_tls_name here",
            expected.to_str(),
        ),
        other => write!(f, "its certificate is not accepted: {other}"),
    }
}

fn write_rejection(f: &mut fmt::Formatter<'_>, alert: AlertDescription) -> fmt::Result {
    let why = match alert {
        AlertDescription::CertificateRequired => {
            "it asks for a certificate: set peer_tls_auth = \"mutual\" on both nodes or on none"
        }
        AlertDescription::CertificateExpired => {
            "this node's certificate has expired, it says: renew the file of peer_tls_cert (or \
             tls_cert) here, and send HUP"
        }
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::DecryptError => {
            "it does not accept this node's certificate: check peer_tls_ca there, and \
             peer_tls_cert (or tls_cert) here"
        }
        other => return write!(f, "it refused this node's TLS: {other:?}"),
    };
    f.write_str(why)
}

impl From<io::Error> for ConnectFailure {
    fn from(error: io::Error) -> Self {
        let tls = error
            .get_ref()
            .and_then(|it| it.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(error)) => Self::Certificate(error.clone()),
            // The first bytes of a node without TLS are no TLS record.
            Some(rustls::Error::InvalidMessage(_)) => Self::OnlyHereTls,
            Some(rustls::Error::AlertReceived(alert)) => Self::Rejected(*alert),
            Some(other) => Self::Handshake(other.to_string()),
            None if error.kind() == io::ErrorKind::ConnectionRefused => Self::Refused,
            None => Self::Unreachable(error.kind()),
        }
    }
}

/// The cause, if the connection of a failed call could not be made.
pub(super) fn find_failure(status: &tonic::Status) -> Option<ConnectFailure> {
    let mut cause = Error::source(status);
    while let Some(error) = cause {
        if let Some(failure) = error.downcast_ref::<ConnectFailure>() {
            return Some(failure.clone());
        }
        cause = error.source();
    }
    None
}

/// Why the newest connection of a channel ended before the other node spoke HTTP/2 on it.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstAnswer(Arc<Mutex<Option<ConnectFailure>>>);

impl FirstAnswer {
    /// The cause, if there is one.
    pub(super) fn failure(&self) -> Option<ConnectFailure> {
        self.0.lock().clone()
    }

    fn set(&self, failure: Option<ConnectFailure>) {
        *self.0.lock() = failure;
    }
}

/// A connection to another node, for hyper.
type PeerIo = TokioIo<PeerStream>;

/// Connects to a node, by TLS if the node has TLS for calls, each time with the current
/// certificates.
pub(super) fn connector(
    tls: Option<Arc<Tls>>,
    addr: String,
    limit: Duration,
    clock: Arc<dyn Clock>,
    first: FirstAnswer,
) -> impl Service<Uri, Response = PeerIo, Error = ConnectFailure, Future: Send> + Send + 'static {
    service_fn(move |_| {
        let (tls, addr, clock) = (tls.clone(), addr.clone(), Arc::clone(&clock));
        let first = first.clone();
        async move {
            first.set(None);
            let (stream, plain) = at_most(&*clock, limit, connect(tls.as_deref(), &addr))
                .await
                .unwrap_or(Err(ConnectFailure::TooSlow(limit)))?;
            Ok(TokioIo::new(PeerStream {
                stream,
                plain,
                first: Some(first),
            }))
        }
    })
}

/// Returns the stream, and whether it has no TLS.
async fn connect(
    tls: Option<&Tls>,
    addr: &str,
) -> Result<(Box<dyn ByteStream>, bool), ConnectFailure> {
    let addresses: Vec<_> = match lookup_host(addr).await {
        Ok(found) => found.collect(),
        Err(_) => return Err(ConnectFailure::UnknownHost),
    };
    let stream = TcpStream::connect(&*addresses).await?;
    stream.set_nodelay(true)?;
    let Some((config, name)) = tls.and_then(Tls::client_config) else {
        return Ok((Box::new(stream), true));
    };
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let name = name.unwrap_or(host.trim_matches(['[', ']'])).to_owned();
    let name = ServerName::try_from(name)
        .map_err(|error| ConnectFailure::Handshake(format!("its name: {error}")))?;
    let secured = TlsConnector::from(config).connect(name, stream).await;
    Ok((Box::new(secured?), false))
}

/// A connection to another node. It notes if the first bytes of that node are no HTTP/2: such a
/// node has read no call.
pub(super) struct PeerStream {
    stream: Box<dyn ByteStream>,
    /// Whether the connection has no TLS.
    plain: bool,
    /// `None` once the node has spoken.
    first: Option<FirstAnswer>,
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

impl PeerStream {
    /// Looks at the first answer of the node, and keeps the cause if the answer is a refusal.
    fn note_first(&mut self, answer: io::Result<&[u8]>) {
        let Some(first) = self.first.take() else {
            return;
        };
        match answer {
            Ok(bytes) if self.plain && bytes.first() == Some(&TLS_ALERT) => {
                first.set(Some(ConnectFailure::OnlyThereTls));
            }
            // With TLS 1.3 the handshake is over for a caller before the node has checked the
            // caller's certificate, so the refusal comes as the first answer.
            Err(error) => {
                if let rejected @ ConnectFailure::Rejected(_) = ConnectFailure::from(error) {
                    first.set(Some(rejected));
                }
            }
            Ok(_) => {}
        }
    }

    /// Passes on the outcome of a write. A node that refuses a connection resets it, so a write may
    /// fail before the refusal was read. The refusal is then still in the socket.
    fn after_write<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if matches!(outcome, Poll::Ready(Err(_))) && self.first.is_some() {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            // The read notes the answer. A socket that cannot be written to is readable soon, at
            // its end at the latest, so the failed write is not held back for long.
            let _ = ready!(Pin::new(self).poll_read(context, &mut buffer));
        }
        outcome
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match ready!(Pin::new(&mut self.stream).poll_read(context, buffer)) {
            Ok(()) => {
                self.note_first(Ok(&buffer.filled()[before..]));
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                let kind = error.kind();
                self.note_first(Err(error));
                Poll::Ready(Err(kind.into()))
            }
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.after_write(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.after_write(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
