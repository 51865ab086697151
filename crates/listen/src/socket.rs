//! The sockets that a server listens at: TCP, and Unix sockets of this host.
//!
//! This module must never return a socket of TCP beyond loopback without TLS, unless the server was
//! told to listen there all the same. It must never take the place of a server that still serves.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener},
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The address of a client that came through a Unix socket: it is on this host.
const ON_THIS_HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The mode of a Unix socket: its user and its group may connect.
const MODE: u32 = 0o660;

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Socket(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix {
        socket: UnixListener,
        _file: Option<SocketFile>,
    },
}

/// The file of a Unix socket that this process has made. Its drop removes the file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Another process may have replaced the file.
    inode: u64,
}

/// A connection that a socket has accepted.
pub(crate) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Whether a listener at this address needs TLS, and has none: somebody else on the network could
/// read and change the bytes. `advice` says what to set. The answer follows the name of the setting
/// as the rest of the sentence.
#[must_use]
pub fn problem_without_tls(address: SocketAddr, secured: bool, advice: &str) -> Option<String> {
    if secured || address.ip().is_loopback() {
        return None;
    }
    Some(format!(
        "is {address}, which is beyond loopback, without TLS: {advice}, or where the network \
         itself keeps others out insecure_listen (--insecure-listen)"
    ))
}

impl Socket {
    /// Binds an address of TCP.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn bind_tcp(address: &str) -> io::Result<Self> {
        Ok(TcpListener::bind(address).await?.into())
    }

    /// Makes a Unix socket at this path, for the user and the group of this process. A socket that
    /// an ended process has left there is replaced.
    ///
    /// # Errors
    /// Those of the system; [`io::ErrorKind::AddrInUse`] if another process serves there, or if the
    /// path is no socket.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                let why =
                    "another file is there, which is no socket: move it away, or name another path";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
            if StdUnixStream::connect(path).is_ok() {
                let why = "another server serves there: stop it, or name another path";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
            fs::remove_file(path)?;
        }
        let socket = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
        let file = SocketFile {
            path: path.to_owned(),
            inode: fs::symlink_metadata(path)?.ino(),
        };
        Ok(Self(Kind::Unix {
            socket,
            _file: Some(file),
        }))
    }

    /// A socket of TCP that another process has bound, such as systemd.
    ///
    /// # Errors
    /// Those of the system.
    pub fn inherit_tcp(socket: StdTcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(TcpListener::from_std(socket)?.into())
    }

    /// A Unix socket that another process has made, such as systemd. Its file stays.
    ///
    /// # Errors
    /// Those of the system.
    pub fn inherit_unix(socket: StdUnixListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self(Kind::Unix {
            socket: UnixListener::from_std(socket)?,
            _file: None,
        }))
    }

    /// The address of a socket of TCP.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(socket) => socket.local_addr().ok(),
            Kind::Unix { .. } => None,
        }
    }

    /// The path of a Unix socket.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match &self.0 {
            Kind::Tcp(_) => None,
            Kind::Unix { socket, .. } => {
                socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
            }
        }
    }

    /// The next connection, and the address of its client.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        match &self.0 {
            Kind::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                Ok((Accepted::Tcp(stream), peer))
            }
            Kind::Unix { socket, .. } => {
                let (stream, _) = socket.accept().await?;
                Ok((Accepted::Unix(stream), ON_THIS_HOST))
            }
        }
    }
}

impl From<TcpListener> for Socket {
    fn from(socket: TcpListener) -> Self {
        Self(Kind::Tcp(socket))
    }
}

impl Accepted {
    /// Makes the drop of the connection send a reset, or what a Unix socket has for it.
    pub(crate) fn set_zero_linger(&self) {
        // A Unix socket keeps no port in use.
        if let Self::Tcp(stream) = self {
            let _ = stream.set_zero_linger();
        }
    }

    /// Frames are small, and each frame must be sent at once.
    pub(crate) fn set_nodelay(&self) {
        if let Self::Tcp(stream) = self {
            let _ = SockRef::from(stream).set_tcp_nodelay(true);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|it| it.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_left_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.sock");
        let left = StdUnixListener::bind(&path).unwrap();
        drop(left);
        let first = Socket::bind_unix(&path).unwrap();
        assert_eq!(first.path().as_deref(), Some(&*path));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        let refused = Socket::bind_unix(&path).unwrap_err();
        assert!(refused.to_string().contains("another server"), "{refused}");
        drop(first);
        assert!(!path.exists(), "its file is gone");
        fs::write(&path, "notes").unwrap();
        let refused = Socket::bind_unix(&path).unwrap_err();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
    }

    #[test]
    fn only_loopback_needs_no_tls() {
        let problem = |address: &str, secured| {
            problem_without_tls(address.parse().unwrap(), secured, "set tls_cert")
        };
        assert_eq!(problem("127.0.0.1:1", false), None);
        assert_eq!(problem("[::1]:1", false), None);
        assert_eq!(problem("0.0.0.0:1", true), None);
        let told = problem("0.0.0.0:1", false).unwrap();
        for says in [
            "0.0.0.0:1",
            "beyond loopback",
            "set tls_cert",
            "--insecure-listen",
        ] {
            assert!(told.contains(says), "{told}");
        }
    }
}
