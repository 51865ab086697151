//! What a server has before it has a store: its sockets, certificates and keys.
//!
//! Everything here is checked before the store is touched, so that a wrong option changes nothing.
//! This module must never return a socket of TCP beyond loopback without TLS, unless
//! `insecure_listen` allows it.

use std::{net::SocketAddr, path::Path, sync::Arc};

use distlock_core::{Clock, Result, path_excerpt};
use distlock_listen::{Socket, Tls, TokenKeys};

use crate::{ServerConfig, config::config_error};

/// The sockets and files of a server.
pub(crate) struct Front {
    pub(crate) sockets: Vec<Socket>,
    pub(crate) metrics: Option<Socket>,
    pub(crate) files: ServerFiles,
}

/// The certificates and keys of a server, which can be read again while it runs.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    pub(crate) tls: Arc<Tls>,
    pub(crate) keys: Option<Arc<TokenKeys>>,
}

impl ServerFiles {
    /// Reads the files of these options.
    ///
    /// # Errors
    /// Those of [`reload`](Self::reload).
    pub(crate) async fn read(config: &ServerConfig, clock: &Arc<dyn Clock>) -> Result<Self> {
        let tls = Tls::read(config.tls_files()?, Arc::clone(clock)).await?;
        let keys = match config.token_file() {
            Some(file) => Some(Arc::new(TokenKeys::read(file).await?)),
            None => None,
        };
        Ok(Self {
            tls: Arc::new(tls),
            keys,
        })
    }

    /// Whether there is any file.
    pub(crate) fn is_some(&self) -> bool {
        self.tls.has_files() || self.keys.is_some()
    }

    /// Reads the files again. New connections use the new certificates, and new calls and sessions
    /// are checked with the new keys. Files that cannot be used change nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig), naming the file, and
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) when the file system does
    /// not answer within five seconds.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn reload(&self) -> Result<()> {
        self.tls.reload().await?;
        match &self.keys {
            Some(keys) => keys.reload().await,
            None => Ok(()),
        }
    }
}

impl Front {
    /// Checks the options, reads the files and binds the sockets.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig), naming the option.
    pub(crate) async fn open(config: &mut ServerConfig, clock: &Arc<dyn Clock>) -> Result<Self> {
        config.validate()?;
        let files = ServerFiles::read(config, clock).await?;
        let mut sockets = std::mem::take(&mut config.inherited);
        if let Some(listen) = &config.listen {
            sockets.push(bind("listen", listen).await?);
        }
        for address in sockets.iter().filter_map(Socket::address) {
            config.check_address("listen", address)?;
        }
        if let Some(path) = &config.unix {
            sockets.push(bind_unix(path)?);
        }
        let metrics = match &config.metrics_listen {
            Some(listen) => Some(bind("metrics_listen", listen).await?),
            None => None,
        };
        if let Some(address) = metrics.as_ref().and_then(Socket::address) {
            config.check_address("metrics_listen", address)?;
        }
        Ok(Self {
            sockets,
            metrics,
            files,
        })
    }

    /// The address of the first socket of TCP.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.sockets.iter().find_map(Socket::address)
    }

    /// The URL by which a client on this host finds the server.
    pub(crate) fn url(&self, secured: bool) -> String {
        if let Some(address) = self.address() {
            let scheme = if secured { "distlocks" } else { "distlock" };
            return format!("{scheme}://{address}");
        }
        let path = self.sockets.iter().find_map(Socket::path);
        let path = path.unwrap_or_default();
        let path: String =
            form_urlencoded::byte_serialize(path.as_os_str().as_encoded_bytes()).collect();
        format!("distlock://localhost?socket={path}")
    }
}

async fn bind(option: &'static str, address: &str) -> Result<Socket> {
    let bound = Socket::bind_tcp(address).await;
    bound.map_err(|error| {
        let problem = format!("is \"{address}\", which cannot be bound");
        config_error(option, &problem).caused_by(error)
    })
}

fn bind_unix(path: &Path) -> Result<Socket> {
    Socket::bind_unix(path).map_err(|error| {
        let path = path_excerpt(path);
        config_error("unix", &format!("is \"{path}\", which cannot be bound")).caused_by(error)
    })
}
