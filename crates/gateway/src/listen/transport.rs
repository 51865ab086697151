//! What carries the bytes of a connection.

use std::{io, pin::Pin, sync::Arc};

use rustls::ServerConfig;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{handle::End, proxy};

/// What carries the bytes.
pub(super) enum Link {
    /// The header of the PROXY protocol, then the handshake of TLS.
    Opening(Opening),
    Open(Open),
    Broken(io::Error),
}

pub(super) type Opening = Pin<Box<dyn Future<Output = io::Result<Open>> + Send>>;

pub(super) enum Open {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(super) async fn open(
    mut stream: TcpStream,
    proxied: Option<Arc<End>>,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<Open> {
    if let Some(end) = proxied {
        let source = proxy::source(&mut stream).await;
        let source = source.inspect_err(|error| {
            tracing::warn!(%error, proxy = %end.accepted, "a connection was refused");
        })?;
        // The health checks of a proxy count for its own address.
        if !end.comes_from(source.unwrap_or(end.accepted)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
    }
    let open = match tls {
        Some(config) => Open::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?)),
        None => Open::Plain(stream),
    };
    let _ = SockRef::from(open.tcp()).set_linger(None);
    Ok(open)
}

impl Open {
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}
