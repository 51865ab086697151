//! The byte stream of a connection, from the first header to the open stream.
//!
//! This module owns the socket. This module must never hand out the stream before the PROXY header
//! and the TLS handshake are complete.

use std::{io, pin::Pin, sync::Arc};

use rustls::ServerConfig;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{handle::ConnectionState, proxy};

/// The stream of a connection, and its progress.
pub(super) enum Transport {
    /// Reads the header of the PROXY protocol, and then completes the handshake of TLS.
    Opening(Opening),
    Open(OpenStream),
    Broken(io::Error),
}

pub(super) type Opening = Pin<Box<dyn Future<Output = io::Result<OpenStream>> + Send>>;

pub(super) enum OpenStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(super) async fn open(
    mut stream: TcpStream,
    proxied: Option<Arc<ConnectionState>>,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<OpenStream> {
    if let Some(state) = proxied {
        let source = proxy::read_source(&mut stream).await;
        let source = source.inspect_err(|error| {
            tracing::warn!(%error, proxy = %state.accepted, "a connection was refused");
        })?;
        // The proxy names no client in its own health check, so the health check counts for the
        // proxy's address.
        if !state.admit_source(source.unwrap_or(state.accepted)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
    }
    let open = match tls {
        Some(config) => OpenStream::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?)),
        None => OpenStream::Plain(stream),
    };
    let _ = SockRef::from(open.tcp()).set_linger(None);
    Ok(open)
}

impl OpenStream {
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}
