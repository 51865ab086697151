//! The start of a node: it checks, binds, takes the lease, and then serves.
//!
//! This module keeps this order, so that a wrong configuration changes nothing in the store. The
//! node must never serve a client before it has its lease.

use std::sync::Arc;

use distlock_core::{Clock, Result, Store};
use distlock_kickout::{KickOut, NodeId, Policy, Profiles};
use distlock_listen::{ListenerKind, MetricsPage, Tls};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Gateway, Ready,
    gateway::{Reloader, Servers},
    listeners::{ListenerFactory, Sockets, page_url},
};
use crate::{
    accounts::Turns,
    admin::{AdminAccess, AdminContext, AdminTokens, AuditLog},
    bearer::BearerToken,
    config::{ClientAddress, GatewayConfig, config_error},
    front::{FrontContext, SendLimits},
    hooks::Hooks,
    inbox::{OfflineStore, RecordsInbox},
    metering,
    page::PageContext,
    peer::GrpcPeers,
    send_api::SendApi,
    services::{MaySend, WebMaySend, WebProfiles, WebSaver, WebService},
    takeovers::RecentTakeovers,
    token::{LoginKeys, TokenKey},
};

/// Starts a node, announces it, serves until `shutdown`, and then ends all sessions:
/// [`Gateway::start`] and [`Gateway::run`].
///
/// # Errors
/// The same as for [`Gateway::start`] and [`Gateway::run`].
///
/// # Cancel safety
/// A dropped call ends the node at once, and clients get no notice.
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

/// Prepares a [`Gateway`] with parts of the embedding program.
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
    /// Stores messages for accounts that are not logged in. Without this call, the node uses
    /// [`RecordsInbox`].
    pub fn offline_store(mut self, offline: Arc<dyn OfflineStore>) -> Self {
        self.offline = offline;
        self
    }

    /// Checks an account before its login, instead of the service at `profile_url`.
    pub fn profiles(mut self, profiles: Arc<dyn Profiles>) -> Self {
        self.profiles = Some(profiles);
        self
    }

    /// Checks each message of a client, instead of the service at `may_send_url`.
    pub fn may_send(mut self, may_send: Arc<dyn MaySend>) -> Self {
        self.may_send = Some(may_send);
        self
    }

    /// Checks the configuration, binds every listener, takes the node's lease and begins to serve.
    ///
    /// # Errors
    /// The same as for [`Gateway::start`]. Also
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) when both the program
    /// and the configuration name a check of accounts, or of messages.
    ///
    /// # Cancel safety
    /// The same as for [`Gateway::start`].
    pub async fn start(mut self) -> Result<Gateway> {
        self.config.validate()?;
        let key = self.config.key()?;
        let metrics = MetricsPage::install();
        metrics.describe(env!("CARGO_PKG_VERSION"));
        metering::describe();
        let clock = self.store.locker().clock();
        let tls = Tls::read(self.config.tls_files()?, Arc::clone(&clock)).await?;
        let tls = Arc::new(tls);
        let keys = LoginKeys::open(key.clone(), self.config.login_keys()?, &clock).await?;
        let keys = Arc::new(keys);
        let tokens = Arc::new(AdminTokens::open(&self.config).await?);
        let node = NodeId::new(&self.config.node)?;
        let hooks = Hooks::open(&self.config.hooks, &node, &clock).await?;
        let sockets = Sockets::bind(&self.config).await?;
        let peers = self.peer_client(&key, &clock, &tls)?;
        let kick = self.kickout_builder(&sockets, Arc::clone(&peers), &clock)?;
        let may_send = self.message_check(&clock)?;
        let saver = self.saver(&clock)?;
        let kick = kick.start().await?;
        // Nobody is served yet, so the receivers hear of everything.
        let hook_tasks = hooks.spawn(&kick);

        let Self {
            config,
            store,
            offline,
            ..
        } = self;
        let stop = CancellationToken::new();
        let front = front_context(&config, &kick, &keys, offline, may_send, saver, &clock)?;
        let (connections, abort_all) = (front.connections.clone(), front.abort_all.clone());
        let secure = config.tls_cert.is_some();
        let ready = node_addresses(kick.node(), &sockets, secure);
        let made_token = match &config.admin_token {
            Some(_) => None,
            None => tokens.own().cloned(),
        };
        let access = AdminAccess::new(kick.node(), Arc::clone(&tokens), Arc::clone(&clock), secure);
        let send_token = config.send_token.clone();
        let bearer = send_token.map(|token| BearerToken::for_senders(token, Arc::clone(&clock)));
        let sender = SendApi::new(front.clone(), bearer);
        let recent = RecentTakeovers::new(kick.clone());
        let admin = AdminContext {
            kick: kick.clone(),
            locker: store.locker().clone(),
            audit: AuditLog::new(ready.node.clone(), store.records(), Arc::clone(&clock)),
            metrics: metrics.clone(),
            tls: Arc::clone(&tls),
            access: access.clone(),
            sender: sender.clone(),
            turns: Turns::new(Arc::clone(&clock)),
        };
        let page = PageContext {
            kick: kick.clone(),
            key: key.clone(),
            access,
            node_lease: config.node_lease,
            tls: Arc::clone(&tls),
            recent: recent.clone(),
            peers,
        };

        let listeners = ListenerFactory::new(&config, Arc::clone(&clock), Arc::clone(&tls));
        let mut servers = Servers::new(stop.clone());
        let listener = listeners.guarded_listener(sockets.peer.0, ListenerKind::Peers);
        servers.spawn_peers(kick.clone(), recent, key.peers()?, sender, listener);
        let listener = listeners.guarded_listener(sockets.admin.0, ListenerKind::Clients);
        servers.spawn_admin(admin, page, listener);
        let listener = listeners.client_listener(&config, sockets.websocket.0);
        servers.spawn_websocket(front.clone(), listener);
        if let Some((socket, _)) = sockets.tcp {
            servers.spawn_tcp(front, listeners.client_listener(&config, socket));
        }
        servers.spawn_upkeep(metrics, Arc::clone(&clock), Arc::clone(&keys));
        Ok(Gateway {
            ready,
            kick,
            stop,
            abort_all,
            connections,
            servers: servers.into_tasks(),
            clock,
            grace: config.grace,
            hook_tasks,
            reloader: Reloader {
                tls,
                keys,
                tokens,
                hooks,
            },
            made_token,
        })
    }

    /// The client for calls to other nodes.
    fn peer_client(
        &self,
        key: &TokenKey,
        clock: &Arc<dyn Clock>,
        tls: &Arc<Tls>,
    ) -> Result<Arc<GrpcPeers>> {
        let node = NodeId::new(&self.config.node)?;
        let deadline = self.config.timers().peer_deadline;
        let peers = GrpcPeers::new(node, key.peers()?, deadline, Arc::clone(clock));
        Ok(Arc::new(peers.with_tls(Arc::clone(tls))))
    }

    /// The kick-out flow, ready to start.
    fn kickout_builder(
        &mut self,
        sockets: &Sockets,
        peers: Arc<GrpcPeers>,
        clock: &Arc<dyn Clock>,
    ) -> Result<distlock_kickout::Builder> {
        let config = &self.config;
        let node = NodeId::new(&config.node)?;
        let flow = KickOut::builder(self.store.clone(), node.clone())
            .advertise(sockets.advertised_address(config)?)
            .front(sockets.websocket.1.to_string())
            .policy(Policy::named(config.policy).on_exceed(config.on_exceed))
            .admission(config.admission())
            .confirm(config.confirm)
            .timers(config.timers())
            .peers(peers);
        let (name, metric) = ("profile service", "distlock_profile_seconds");
        let web = WebService::from_settings(name, metric, &config.profile_service(), clock)?;
        let web = web.map(|web| Arc::new(WebProfiles::new(web, node)) as Arc<dyn Profiles>);
        Ok(
            match own_or_configured("profile_url", self.profiles.take(), web)? {
                Some(profiles) => flow.profiles(profiles),
                None => flow,
            },
        )
    }

    /// The check of each message, if there is one.
    fn message_check(&mut self, clock: &Arc<dyn Clock>) -> Result<Option<Arc<dyn MaySend>>> {
        let (name, metric) = ("may-send service", "distlock_may_send_seconds");
        let web = WebService::from_settings(name, metric, &self.config.may_send_service(), clock)?;
        let web = web.map(|web| Arc::new(WebMaySend::new(web)) as Arc<dyn MaySend>);
        own_or_configured("may_send_url", self.may_send.take(), web)
    }

    /// The service that saves after each session, if there is one.
    fn saver(&self, clock: &Arc<dyn Clock>) -> Result<Option<WebSaver>> {
        let (name, metric) = ("save service", "distlock_save_seconds");
        let web = WebService::from_settings(name, metric, &self.config.save_service(), clock)?;
        Ok(web.map(WebSaver::new))
    }
}

impl Gateway {
    /// Prepares a node over `store`, with parts that can be replaced.
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
    /// - [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a wrong key, and
    ///   for an address that cannot be bound;
    /// - [`ErrorKind::Timeout`](distlock_core::ErrorKind::Timeout) when a node of this name is
    ///   running;
    /// - failures of the store.
    ///
    /// # Cancel safety
    /// Safe: a dropped call closes the sockets that it bound, and releases the lease.
    pub async fn start(config: GatewayConfig, store: Store) -> Result<Self> {
        Self::builder(config, store).start().await
    }
}

/// The parts that each connection of a client needs.
fn front_context(
    config: &GatewayConfig,
    kick: &KickOut,
    keys: &Arc<LoginKeys>,
    inbox: Arc<dyn OfflineStore>,
    may_send: Option<Arc<dyn MaySend>>,
    saver: Option<WebSaver>,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<FrontContext>> {
    let forwarded = config.client_address == ClientAddress::ForwardedFor;
    if forwarded && config.tcp_listen.is_some() {
        tracing::warn!(
            "gateway.client_address = forwarded_for says nothing of the clients of tcp_listen: all \
             of them count as the address that connects, so behind a proxy as one client; \
             proxy_protocol serves both"
        );
    }
    Ok(Arc::new(FrontContext {
        kick: kick.clone(),
        keys: Arc::clone(keys),
        classes: config.named_classes()?.map(Arc::from),
        clock: Arc::clone(clock),
        inbox,
        limits: SendLimits::from_config(config, clock),
        may_send,
        saver,
        heartbeat: config.heartbeat,
        grace: config.grace,
        login_timeout: config.login_timeout,
        max_frame: config.max_frame,
        connections: TaskTracker::new(),
        abort_all: CancellationToken::new(),
        client_address: config.client_address,
    }))
}

fn node_addresses(node: &NodeId, sockets: &Sockets, secure: bool) -> Ready {
    Ready {
        event: "ready",
        node: node.clone(),
        listen: sockets.websocket.1,
        tcp_listen: sockets.tcp.as_ref().map(|(_, address)| *address),
        peer_listen: sockets.peer.1,
        admin_listen: sockets.admin.1,
        page: page_url(sockets.admin.1, secure),
    }
}

/// The check of the embedding program, or the service that `key` names. If both exist, the result
/// is an error, because only one of them could decide.
fn own_or_configured<T>(key: &str, own: Option<T>, web: Option<T>) -> Result<Option<T>> {
    match (own, web) {
        (Some(_), Some(_)) => {
            let says = "is set, and the program that embeds the node has its own check: use one";
            Err(config_error(key, says))
        }
        (own, web) => Ok(own.or(web)),
    }
}
