//! Counts the bytes between a client and a server: the client connects through a counting proxy.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use distlock::{Store, Target};

use distlock_cli::program;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::stores::{Server, StoreUnderTest, zookeeper_url};

/// The server to which a counted connection leads.
pub(super) struct CountedConnection {
    server: SocketAddr,
    url: String,
}

impl CountedConnection {
    /// The server of this store; `None` for a server that this run did not start.
    pub(super) fn to_server_of(store: &StoreUnderTest) -> Option<Self> {
        let to = |server, url| Some(Self { server, url });
        match store.server.as_ref()? {
            Server::Redis(it) => to(it.address(), it.url()),
            // The servers of a group report their own addresses to clients, so clients would bypass
            // the proxy.
            Server::RedisSentinels(_) | Server::RedisCluster(_) => None,
            Server::MySql(it) => to(it.address(), it.url()),
            Server::Postgres(it) => to(it.address(), it.url()),
            Server::ZooKeeper(it) => to(it.address(0), zookeeper_url(&it.server(0))),
        }
    }

    /// Opens a client that connects through the proxy. The proxy lives as long as the returned
    /// counter.
    pub(super) async fn open(self) -> anyhow::Result<(Store, ByteCounter)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let bytes = Arc::new(AtomicU64::new(0));
        let mut forwarding = JoinSet::new();
        forwarding.spawn(forward(listener, self.server, Arc::clone(&bytes)));
        let through_counter = format!("127.0.0.1:{port}");
        let url = self.url.replace(&self.server.to_string(), &through_counter);
        let store = program::open(Target::new(url)).await?;
        let counter = ByteCounter {
            bytes,
            _forwarding: forwarding,
        };
        Ok((store, counter))
    }
}

/// The counter of a proxy, for both directions.
pub(super) struct ByteCounter {
    bytes: Arc<AtomicU64>,
    _forwarding: JoinSet<()>,
}

impl ByteCounter {
    /// The bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Accepts connections, and connects each to the server.
async fn forward(listener: TcpListener, server: SocketAddr, bytes: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let bytes = Arc::clone(&bytes);
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else {
                return;
            };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::join!(
                copy(from_client, to_server, &bytes),
                copy(from_server, to_client, &bytes)
            );
        });
    }
}

/// Copies one direction of a connection, and counts its bytes.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    bytes: &AtomicU64,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length) = from.read(&mut buffer).await {
        let Some(read) = buffer.get(..length).filter(|read| !read.is_empty()) else {
            break;
        };
        bytes.fetch_add(u64::try_from(length).unwrap_or(0), Ordering::Relaxed);
        if to.write_all(read).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
