//! The sockets of a node, and the limits of their listeners.
//!
//! This module must never return a socket that the configuration forbids, such as a socket beyond
//! loopback without TLS.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use distlock_core::{Clock, Result};
use distlock_listen::{ConnectionBounds, ConnectionListener, ConnectionQuota, ListenerKind, Tls};
use tokio::net::TcpListener;

use crate::config::{ClientAddress, GatewayConfig, config_error};

/// Limits for connections of other nodes, and the same limits for connections of administrators.
const GUARDED_BOUNDS: ConnectionBounds = ConnectionBounds {
    all: 1024,
    pending: 256,
    all_per_address: 512,
    pending_per_address: 64,
};
/// Time for a connection of a node or an administrator to show its token, and for each body.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);
/// A socket, and the address that it was bound to.
pub(super) type Bound = (TcpListener, SocketAddr);

/// Every socket of a node.
pub(super) struct Sockets {
    pub(super) websocket: Bound,
    pub(super) tcp: Option<Bound>,
    pub(super) peer: Bound,
    pub(super) admin: Bound,
}

impl Sockets {
    pub(super) async fn bind(config: &GatewayConfig) -> Result<Self> {
        let websocket = bind(config, "listen", &config.listen).await?;
        let tcp = match &config.tcp_listen {
            Some(address) => Some(bind(config, "tcp_listen", address).await?),
            None => None,
        };
        let peer = bind(config, "peer_listen", &config.peer_listen).await?;
        let admin = bind(config, "admin_listen", &config.admin_listen).await?;
        config.check_admin_address(admin.1)?;
        Ok(Self {
            websocket,
            tcp,
            peer,
            admin,
        })
    }

    /// The address that other nodes call.
    pub(super) fn advertised_address(&self, config: &GatewayConfig) -> Result<String> {
        if let Some(address) = &config.peer_advertise {
            return Ok(address.clone());
        }
        config.check_peer_address(self.peer.1)?;
        Ok(self.peer.1.to_string())
    }
}

/// Makes listeners from bound sockets.
pub(super) struct ListenerFactory {
    clock: Arc<dyn Clock>,
    tls: Arc<Tls>,
    /// The quota that all sockets for clients share.
    client_quota: ConnectionQuota,
}

impl ListenerFactory {
    pub(super) fn new(config: &GatewayConfig, clock: Arc<dyn Clock>, tls: Arc<Tls>) -> Self {
        let client_quota = ConnectionQuota::new(ConnectionBounds {
            all: config.max_connections,
            pending: config.max_pending,
            all_per_address: config.max_per_address,
            pending_per_address: config.max_pending_per_address,
        });
        Self {
            clock,
            tls,
            client_quota,
        }
    }

    /// A listener for clients.
    pub(super) fn client_listener(
        &self,
        config: &GatewayConfig,
        socket: TcpListener,
    ) -> ConnectionListener {
        let slowest =
            config.profile_timeout + config.lock_wait + config.kick_budget * 2 + config.node_lease;
        let limit = config.login_timeout;
        let quota = self.client_quota.clone();
        // At `limit`, the connection of a client that has not yet spoken the protocol of its front
        // is closed without an answer. From then on, the front limits each step of the login, and
        // answers a slow login with a last frame. The extra time is longer than the slowest login,
        // so that the connection is still open for this frame.
        ConnectionListener::new(socket, quota, Arc::clone(&self.clock), limit)
            .extra_time_once_open(limit * 2 + slowest)
            .with_tls(Arc::clone(&self.tls), ListenerKind::Clients)
            .proxied(config.client_address == ClientAddress::ProxyProtocol)
    }

    /// A listener for callers that must show a token: nodes, sending servers, administrators.
    pub(super) fn guarded_listener(
        &self,
        socket: TcpListener,
        kind: ListenerKind,
    ) -> ConnectionListener {
        let quota = ConnectionQuota::new(GUARDED_BOUNDS);
        ConnectionListener::new(socket, quota, Arc::clone(&self.clock), TOKEN_TIMEOUT)
            .oldest_stranger_leaves()
            .with_tls(Arc::clone(&self.tls), kind)
    }
}

async fn bind(config: &GatewayConfig, key: &str, address: &str) -> Result<Bound> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        std::io::Result::Ok((listener, address))
    };
    let bound = bound.await.map_err(|error| {
        config_error(key, &format!("is \"{address}\", which cannot be bound")).caused_by(error)
    })?;
    config.check_listen_address(key, bound.1)?;
    Ok(bound)
}

/// The URL of the page for a browser on this host.
pub(super) fn page_url(mut admin: SocketAddr, secure: bool) -> String {
    match admin.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => admin.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => admin.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let scheme = if secure { "https" } else { "http" };
    format!("{scheme}://{admin}/")
}
