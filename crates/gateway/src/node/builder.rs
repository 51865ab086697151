//! A gateway node: its listeners, its start and its end.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind, Result, Store};
use distlock_kickout::{Event, KickOut, NodeId, Policy, Profiles};
use serde::Serialize;
use tokio::{net::TcpListener, sync::broadcast, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin::{Admin, Audit, Guard, serve_admin},
    bearer::Bearer,
    config::{ClientAddress, GatewayConfig, Secret, invalid},
    front::{Front, Limits, serve_tcp, serve_websocket},
    inbox::{OfflineStore, RecordsInbox},
    listen::{Bounds, LineListener, Places, Side, Tls},
    may_send::{MaySend, WebMaySend},
    metering,
    page::Page,
    peer::{GrpcPeers, serve_peers},
    profiles::WebProfiles,
    sender::Sender,
    takeovers::Recent,
    web::WebService,
};

/// How often the metrics recorder tidies up.
const UPKEEP: Duration = Duration::from_secs(5);
/// Connections of nodes at one time, and as many of administrators.
const PEERS: Bounds = Bounds {
    all: 1024,
    pending: 256,
    all_per_address: 512,
    pending_per_address: 64,
};
/// Time for showing a token over them.
const PEERS_SHOW: Duration = Duration::from_secs(10);
/// Time for the servers to finish what is under way, after the sessions have ended.
const FINISH: Duration = Duration::from_secs(1);

/// Where the node listens, as it is announced: one JSON line.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Ready {
    /// Always `ready`.
    pub event: &'static str,
    /// The node.
    pub node: NodeId,
    /// For WebSocket clients.
    pub listen: SocketAddr,
    /// For raw TCP clients.
    pub tcp_listen: Option<SocketAddr>,
    /// For other nodes.
    pub peer_listen: SocketAddr,
    /// For administrators.
    pub admin_listen: SocketAddr,
    /// The page for people, on the same address.
    pub page: String,
}

/// A node that has its lease and its listeners.
#[derive(Debug)]
#[must_use = "it serves nobody until it runs"]
pub struct Gateway {
    ready: Ready,
    kick: KickOut,
    stop: CancellationToken,
    cut: CancellationToken,
    connections: TaskTracker,
    servers: JoinSet<Result<()>>,
    clock: Arc<dyn Clock>,
    grace: Duration,
    tls: Arc<Tls>,
    made_token: Option<Secret>,
}

/// The certificates of a node, which go on changing while it runs. All clones are of one node.
#[derive(Clone, Debug)]
pub struct Certificates(Arc<Tls>);

impl Certificates {
    /// Reads the files of the configuration again. New connections use what is in them; those that
    /// are open go on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], naming the file; the node goes on with what it has.
    pub fn reload(&self) -> Result<()> {
        self.0.reload()
    }
}

/// Starts a node, announces it, serves until `shutdown` and takes leave of everybody: [`Gateway::start`] and [`Gateway::run`].
///
/// # Errors
/// As those two.
///
/// # Cancel safety
/// Dropping it ends the node at once, without taking leave.
pub async fn run(
    config: GatewayConfig,
    store: Store,
    shutdown: impl Future<Output = ()>,
    announce: impl FnOnce(&Gateway),
) -> Result<()> {
    let gateway = Gateway::start(config, store).await?;
    announce(&gateway);
    gateway.run(shutdown).await
}

/// Prepares a [`Gateway`] with parts of the embedder's own.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    config: GatewayConfig,
    store: Store,
    offline: Arc<dyn OfflineStore>,
    profiles: Option<Arc<dyn Profiles>>,
    may_send: Option<Arc<dyn MaySend>>,
}

impl Builder {
    /// Where messages are kept for accounts that are not logged in; [`RecordsInbox`] unless set.
    pub fn offline_store(mut self, offline: Arc<dyn OfflineStore>) -> Self {
        self.offline = offline;
        self
    }

    /// What is asked about an account before it may log in, instead of the service at `profile_url`.
    pub fn profiles(mut self, profiles: Arc<dyn Profiles>) -> Self {
        self.profiles = Some(profiles);
        self
    }

    /// What is asked about each message of a client, instead of the service at `may_send_url`.
    pub fn may_send(mut self, may_send: Arc<dyn MaySend>) -> Self {
        self.may_send = Some(may_send);
        self
    }

    /// Checks the configuration, binds every listener, takes the node's lease and begins to serve.
    ///
    /// # Errors
    /// As [`Gateway::start`]. [`ErrorKind::InvalidConfig`] as well when there are two answers to
    /// who is asked about an account, or about a message.
    ///
    /// # Cancel safety
    /// As [`Gateway::start`].
    pub async fn start(self) -> Result<Gateway> {
        let Self {
            config,
            store,
            offline,
            profiles,
            may_send,
        } = self;
        config.validate()?;
        let key = config.key()?;
        let metrics = metering::handle();
        metering::show();
        let tls = Arc::new(Tls::read(config.tls_files()?)?);
        let front = bind(&config, "listen", &config.listen).await?;
        let tcp = match &config.tcp_listen {
            Some(address) => Some(bind(&config, "tcp_listen", address).await?),
            None => None,
        };
        let peer = bind(&config, "peer_listen", &config.peer_listen).await?;
        let admin = bind(&config, "admin_listen", &config.admin_listen).await?;
        config.check_admin(admin.1)?;
        let node = NodeId::new(&config.node)?;
        let clock = store.locker().clock();
        let timers = config.timers();
        let node_lease = timers.node_lease;
        let peers = GrpcPeers::new(
            node.clone(),
            key.peers()?,
            timers.peer_deadline,
            Arc::clone(&clock),
        )
        .secured(Arc::clone(&tls));
        let peers = Arc::new(peers);
        let advertise = match &config.peer_advertise {
            Some(address) => address.clone(),
            None => {
                config.check_peer(peer.1)?;
                peer.1.to_string()
            }
        };
        let mut kick = KickOut::builder(store.clone(), node.clone())
            .advertise(advertise)
            .front(front.1.to_string())
            .policy(Policy::named(config.policy).on_exceed(config.on_exceed))
            .admission(config.admission())
            .confirm(config.confirm)
            .route(config.route)
            .timers(timers)
            .peers(Arc::<GrpcPeers>::clone(&peers));
        let (what, metric) = ("profile service", "distlock_profile_seconds");
        let web = WebService::configured(what, metric, &config.profile_service(), &clock)?;
        let web = web.map(|web| WebProfiles::new(web, node.clone()));
        let web = web.map(|web| Arc::new(web) as Arc<dyn Profiles>);
        let profiles = one_of("profile_url", profiles, web)?;
        let (what, metric) = ("may-send service", "distlock_may_send_seconds");
        let web = WebService::configured(what, metric, &config.may_send_service(), &clock)?;
        let web = web.map(|web| Arc::new(WebMaySend::new(web)) as Arc<dyn MaySend>);
        let may_send = one_of("may_send_url", may_send, web)?;
        if let Some(profiles) = profiles {
            kick = kick.profiles(profiles);
        }
        let kick = kick.start().await?;

        let stop = CancellationToken::new();
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let shared = Front {
            kick: kick.clone(),
            key: key.clone(),
            classes: config.named_classes()?.map(Arc::from),
            clock: Arc::clone(&clock),
            inbox: offline,
            limits: Arc::new(Limits::of(&config, &clock)),
            may_send,
            heartbeat: config.heartbeat,
            grace: config.grace,
            login_timeout: config.login_timeout,
            max_frame: config.max_frame,
            connections: connections.clone(),
            cut: cut.clone(),
            forwarded: config.client_address == ClientAddress::ForwardedFor,
        };
        let places = Places::new(Bounds {
            all: config.max_connections,
            pending: config.max_pending,
            all_per_address: config.max_per_address,
            pending_per_address: config.max_pending_per_address,
        });
        let proxied = config.client_address == ClientAddress::ProxyProtocol;
        let lines = |listener| {
            let slowest = config.profile_timeout
                + config.lock_wait
                + config.kick_budget * 2
                + config.node_lease;
            let limit = config.login_timeout;
            // Outlasts the slowest login, so that its client is told by a frame; this only ends what says nothing at all.
            LineListener::new(listener, places.clone(), Arc::clone(&clock), limit)
                .more_once_opened(limit * 2 + slowest)
                .secured(Arc::clone(&tls), Side::Clients)
                .proxied(proxied)
        };
        let guarded_lines = |listener, side| {
            let places = Places::new(PEERS);
            LineListener::new(listener, places, Arc::clone(&clock), PEERS_SHOW)
                .secured(Arc::clone(&tls), side)
        };
        let ready = Ready {
            event: "ready",
            node,
            listen: front.1,
            tcp_listen: tcp.as_ref().map(|(_, address)| *address),
            peer_listen: peer.1,
            admin_listen: admin.1,
            page: page_at(admin.1, config.tls_cert.is_some()),
        };
        let secure = config.tls_cert.is_some();
        let (guard, made_token) = Guard::new(config.admin_token, Arc::clone(&clock), secure);
        let mut servers = JoinSet::new();
        let sender = Sender {
            front: shared.clone(),
            bearer: config
                .send_token
                .map(|token| Bearer::of_senders(token, Arc::clone(&clock))),
        };
        let recent = Recent::new(kick.clone());
        let serving = serve_peers(
            kick.clone(),
            recent.clone(),
            key.peers()?,
            sender.clone(),
            guarded_lines(peer.0, Side::Peers),
            stop.child_token(),
        );
        servers.spawn(async move { serving.await.map_err(|error| broke("peer_listen", error)) });
        let admin_state = Admin {
            kick: kick.clone(),
            locker: store.locker().clone(),
            audit: Audit::new(ready.node.clone(), store.records(), Arc::clone(&clock)),
            metrics: metrics.clone(),
            guard: guard.clone(),
        };
        let page = Page {
            kick: kick.clone(),
            key: key.clone(),
            guard,
            node_lease,
            recent,
            peers,
        };
        let serving = serve_admin(
            admin_state,
            sender,
            page,
            guarded_lines(admin.0, Side::Clients),
            stop.child_token(),
        );
        servers.spawn(async move {
            serving.await;
            Ok(())
        });
        let serving = serve_websocket(shared.clone(), lines(front.0), stop.child_token());
        servers.spawn(async move {
            serving.await;
            Ok(())
        });
        if let Some((listener, _)) = tcp {
            let serving = serve_tcp(shared, lines(listener), stop.child_token());
            servers.spawn(async move {
                serving.await;
                Ok(())
            });
        }
        let (tidy_stop, tidy_clock) = (stop.child_token(), Arc::clone(&clock));
        servers.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = tidy_stop.cancelled() => return Ok(()),
                    () = tidy_clock.sleep(UPKEEP) => metrics.run_upkeep(),
                }
            }
        });
        Ok(Gateway {
            ready,
            kick,
            stop,
            cut,
            connections,
            servers,
            clock,
            grace: config.grace,
            tls,
            made_token,
        })
    }
}

impl Gateway {
    /// A node over `store`, with parts that may be replaced.
    pub fn builder(config: GatewayConfig, store: Store) -> Builder {
        Builder {
            offline: Arc::new(RecordsInbox::new(store.records())),
            config,
            store,
            profiles: None,
            may_send: None,
        }
    }

    /// Checks the configuration, binds every listener, takes the node's lease and begins to serve.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a wrong key and for an address that cannot be bound; [`ErrorKind::Timeout`] when a node
    /// of this name is running; failures of the store.
    ///
    /// # Cancel safety
    /// Safe: what was bound and taken is given back.
    pub async fn start(config: GatewayConfig, store: Store) -> Result<Self> {
        Self::builder(config, store).start().await
    }

    /// Where it listens.
    #[must_use]
    pub const fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The node's transitions: for the first caller those since the start, for later ones those from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.kick.events()
    }

    /// The admin token that it made because none is configured; another one at each start.
    #[must_use]
    pub const fn made_admin_token(&self) -> Option<&Secret> {
        self.made_token.as_ref()
    }

    /// Its certificates, to be read again when the files have changed.
    #[must_use]
    pub fn certificates(&self) -> Certificates {
        Certificates(Arc::clone(&self.tls))
    }

    /// The flow inside.
    #[must_use]
    pub const fn kick_out(&self) -> &KickOut {
        &self.kick
    }

    /// Serves until `shutdown`; then tells every client to go elsewhere, gives them the grace to leave, and gives the node's
    /// lease back.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when a server broke down. The node is shut down then as well.
    ///
    /// # Cancel safety
    /// Dropping it ends the node at once: connections break, the lease is given back in the background.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let outcome = tokio::select! {
            biased;
            () = shutdown => Ok(()),
            ended = self.servers.join_next() => match ended {
                Some(Ok(Err(error))) => Err(error),
                _ => Err(Error::new(ErrorKind::Internal, "a server ended by itself")),
            },
        };
        // Whoever connects now is denied with the advice to go elsewhere; sessions are told. Peers are served until the end.
        self.kick.shutdown().await;
        self.connections.close();
        let limit = self.grace + FINISH;
        tokio::select! {
            biased;
            () = self.connections.wait() => {}
            () = self.clock.sleep(limit) => {}
        }
        self.stop.cancel();
        tokio::select! {
            biased;
            () = async { while self.servers.join_next().await.is_some() {} } => {}
            () = self.clock.sleep(FINISH) => self.servers.abort_all(),
        }
        outcome
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
        self.cut.cancel();
    }
}

/// Who is asked: the embedder's own, or the service that `key` names.
fn one_of<T>(key: &str, own: Option<T>, web: Option<T>) -> Result<Option<T>> {
    match (own, web) {
        (Some(_), Some(_)) => {
            let says = "is set, and the program that embeds the node asks somebody itself";
            Err(invalid(key, says))
        }
        (own, web) => Ok(own.or(web)),
    }
}

async fn bind(
    config: &GatewayConfig,
    key: &str,
    address: &str,
) -> Result<(TcpListener, SocketAddr)> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        std::io::Result::Ok((listener, address))
    };
    let bound = bound.await.map_err(|error| {
        invalid(key, &format!("is \"{address}\", which cannot be bound")).caused_by(error)
    })?;
    config.check_listen(key, bound.1)?;
    Ok(bound)
}

/// Where a browser on this host finds the page.
fn page_at(mut admin: SocketAddr, secure: bool) -> String {
    match admin.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => admin.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => admin.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let scheme = if secure { "https" } else { "http" };
    format!("{scheme}://{admin}/")
}

fn broke(key: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("the server on gateway.{key} broke down"),
    )
    .caused_by(error)
}
