//! A way for the driver to reach one address of a name, and to verify the name.
//!
//! The driver connects to the host for whose name it verifies the server's certificate, and chooses
//! the address itself. A Unix socket is the exception: the driver connects to the socket, and still
//! verifies the name of the host. So a bridge listens on a Unix socket for one connection of the
//! driver, and passes its bytes on to the address. The name of the socket stays taken until the
//! driver has connected.

use std::{future::Future, io, net::SocketAddr, path::PathBuf};

use tokio::{
    io::{AsyncWriteExt as _, copy},
    net::{TcpStream, UnixListener, UnixStream},
};
use uuid::Uuid;

use super::servers::Candidate;
use crate::config::{ServerConfig, SslMode};

/// The way by which the driver connects.
pub(crate) enum Route {
    /// The driver connects to this host.
    Host(String),
    /// The driver uses a bridge, and has the host's name for TLS.
    Bridge(Bridge),
}

/// A listener on a Unix socket, and the connection to the server.
pub(crate) struct Bridge {
    name: String,
    /// The path of the socket, without the suffix.
    path: PathBuf,
    listener: UnixListener,
    server: TcpStream,
}

impl Route {
    /// Chooses the way to a candidate. The driver of Postgres appends `suffix` to the path of a
    /// Unix socket.
    pub(crate) async fn to(
        candidate: &Candidate,
        config: &ServerConfig,
        suffix: &str,
    ) -> io::Result<Self> {
        let name = candidate.host.name.clone();
        Ok(match (candidate.address, config.ssl_mode_in_use()) {
            (None, _) => Self::Host(name),
            // Without a demand for TLS, nobody verifies a name.
            (Some(address), SslMode::Auto | SslMode::Disable | SslMode::Prefer) => {
                Self::Host(address.ip().to_string())
            }
            (Some(address), SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => {
                Self::Bridge(Bridge::new(name, address, suffix).await?)
            }
        })
    }

    /// The host that the driver connects to, or verifies.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Host(name) => name,
            Self::Bridge(bridge) => &bridge.name,
        }
    }

    /// The Unix socket that the driver connects to instead of the host.
    pub(crate) fn socket(&self) -> Option<&PathBuf> {
        match self {
            Self::Host(_) => None,
            Self::Bridge(bridge) => Some(&bridge.path),
        }
    }

    /// Awaits `connecting`, in which the driver connects by this way.
    pub(crate) async fn carry<T>(self, connecting: impl Future<Output = T>) -> T {
        match self {
            Self::Host(_) => connecting.await,
            Self::Bridge(bridge) => bridge.carry(connecting).await,
        }
    }
}

impl Bridge {
    async fn new(name: String, address: SocketAddr, suffix: &str) -> io::Result<Self> {
        let server = TcpStream::connect(address).await?;
        server.set_nodelay(true)?;
        let path = socket_path();
        let mut whole = path.clone().into_os_string();
        whole.push(suffix);
        let listener = UnixListener::bind(whole)?;
        Ok(Self {
            name,
            path,
            listener,
            server,
        })
    }

    async fn carry<T>(self, connecting: impl Future<Output = T>) -> T {
        let Self {
            listener, server, ..
        } = self;
        let bridging = async {
            if let Ok(driver) = accept_own(&listener).await {
                tokio::spawn(pass_on(driver, server));
                // The driver's pool may repeat an attempt. Without this listener, another process
                // could have bound the name by then, and would be sent the password. So the name
                // stays taken, and a further connection ends at once.
                while let Ok((further, _)) = listener.accept().await {
                    drop(further);
                }
            }
            // The listener has failed. The driver's own connect must fail at once, and not wait.
            drop(listener);
            std::future::pending().await
        };
        tokio::select! {
            biased;
            connected = connecting => connected,
            never = bridging => never,
        }
    }
}

/// Accepts the connection of this process. Another process of this machine may connect too: the
/// name of the socket is no secret.
async fn accept_own(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        let pid = stream.peer_cred()?.pid();
        if pid.is_none_or(|pid| u32::try_from(pid) == Ok(std::process::id())) {
            return Ok(stream);
        }
    }
}

/// Passes bytes on in both directions until the driver closes its end. The driver never closes only
/// one direction. The server's end is not waited for: a dead server would never close it.
async fn pass_on(mut driver: UnixStream, mut server: TcpStream) {
    let (mut requests, mut to_driver) = driver.split();
    let (mut answers, mut to_server) = server.split();
    let answering = async {
        let answered = copy(&mut answers, &mut to_driver).await;
        // The driver reads the end, as of any connection that the server closes. Until it closes
        // its own end, its last bytes must not fail: it may be saying goodbye.
        let _ = to_driver.shutdown().await;
        if let Err(error) = answered {
            tracing::debug!(%error, "a connection to the server broke");
        }
        std::future::pending().await
    };
    let asked = tokio::select! {
        asked = copy(&mut requests, &mut to_server) => asked,
        never = answering => never,
    };
    if let Err(error) = asked {
        tracing::debug!(%error, "a connection to the server broke");
    }
    // A failure means that the server is gone already.
    let _ = to_server.shutdown().await;
}

/// A path that no other socket has. On Linux the name is an abstract one, which needs no writable
/// folder.
fn socket_path() -> PathBuf {
    let name = format!("distlock-{}", Uuid::new_v4().simple());
    if cfg!(target_os = "linux") {
        PathBuf::from(format!("\0{name}"))
    } else {
        std::env::temp_dir().join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::{io::AsyncReadExt as _, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn only_the_first_connection_reaches_the_server() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let bridge = Bridge::new("db.example".to_owned(), address, "").await;
        let bridge = bridge.unwrap();
        let path = bridge.path.clone();
        let connecting = async {
            let mut first = UnixStream::connect(&path).await.unwrap();
            for _ in 0..2 {
                let mut further = UnixStream::connect(&path).await.unwrap();
                assert_eq!(further.read(&mut [0; 4]).await.unwrap(), 0);
            }
            first.write_all(b"ping").await.unwrap();
            first
        };
        let first = bridge.carry(connecting).await;
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut received = [0; 4];
        accepted.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"ping");
        UnixStream::connect(&path).await.unwrap_err();
        drop(first);
    }
}
