//! The `[gateway]` table, with its defaults.

use std::time::Duration;

use distlock_core::{Result, parse_duration};
use distlock_kickout::{Admission, Class, Confirm, OnExceed, PolicyName, Timers};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{ClientAddress, HookConfig, PeerAuth, Secret, ServiceSettings, config_error};

/// All settings of a gateway node. Every key has a default except `node` and `token_key`.
///
/// The table is read from TOML, and unknown keys are refused. [`set`](Self::set) sets one key from
/// text, for flags and environment variables. [`Gateway::start`](crate::Gateway::start) calls
/// [`validate`](Self::validate).
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GatewayConfig {
    /// This node's name, unique among the nodes of one store: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub node: String,
    /// The address for WebSocket clients.
    pub listen: String,
    /// The address for raw TCP clients. Without this key the node does not listen for raw TCP
    /// clients.
    pub tcp_listen: Option<String>,
    /// The address for other nodes.
    pub peer_listen: String,
    /// The address that other nodes call; the bound `peer_listen` unless set.
    pub peer_advertise: Option<String>,
    /// The address of the admin HTTP.
    pub admin_listen: String,
    /// Certificate chain (PEM file) for clients and administrators. Without this key they connect
    /// without TLS.
    pub tls_cert: Option<String>,
    /// The private key of `tls_cert` (PEM file).
    pub tls_key: Option<String>,
    /// The CA certificates (PEM file) by which nodes check each other. This key turns on TLS
    /// between nodes.
    pub peer_tls_ca: Option<String>,
    /// Certificate chain (PEM file) for other nodes; `tls_cert` unless set.
    pub peer_tls_cert: Option<String>,
    /// The private key of `peer_tls_cert` (PEM file).
    pub peer_tls_key: Option<String>,
    /// Whether a caller of `peer_listen` has to show a certificate, too.
    pub peer_tls_auth: PeerAuth,
    /// The name in the certificates of other nodes; the host of their address unless set.
    pub peer_tls_name: Option<String>,
    /// Allows listening beyond loopback without TLS.
    pub insecure_listen: bool,
    /// The source of a client's address.
    pub client_address: ClientAddress,
    /// The bearer token of the admin HTTP. The token is required if `admin_listen` is not a
    /// loopback address. On loopback, the node makes a random token at each start if this key is
    /// not set.
    pub admin_token: Option<Secret>,
    /// The file with further tokens of administrators, each on a line with its name and right:
    /// `read`, `operate` or `admin`.
    pub admin_token_file: Option<String>,
    /// The bearer token of servers that send messages by `POST /v1/send`. Without this key no
    /// server may send.
    pub send_token: Option<Secret>,
    /// The number of sessions that an account may have.
    pub policy: PolicyName,
    /// The node's decision about a login beyond the policy's number of sessions.
    pub on_exceed: OnExceed,
    /// The classes of devices that clients may name under a policy that counts by class, separated
    /// by commas. If a device's token names its class, the device has that class even if the class
    /// is not listed.
    pub classes: String,
    /// Whether a login is answered before the end of an older session is confirmed.
    pub confirm: Confirm,
    /// The key that signs login tokens: at least 32 bytes, the same on every node.
    pub token_key: Option<Secret>,
    /// A second key, for the time in which one key replaces the other. Tokens of the second key are
    /// accepted, but it signs none.
    pub token_key_also: Option<Secret>,
    /// The public keys (PEM file) that check login tokens beside `token_key`.
    pub login_key_file: Option<String>,
    /// The URL of a JWK set whose keys check login tokens beside `token_key`. A token names its key
    /// in the set. No log and no error shows the URL, because it may contain a key.
    pub login_jwks_url: Option<Secret>,
    /// The issuer that a token of a public key must name; `distlock` unless set.
    pub login_issuer: Option<String>,
    /// The audience that a token of a public key must name; `distlock-gateway` unless set.
    pub login_audience: Option<String>,
    /// TTL of an account's lock.
    #[serde(deserialize_with = "deserialise_duration")]
    pub lock_ttl: Duration,
    /// Longest wait for an account's lock.
    #[serde(deserialize_with = "deserialise_duration")]
    pub lock_wait: Duration,
    /// Time for ending the older sessions before a login is answered.
    #[serde(deserialize_with = "deserialise_duration")]
    pub kick_budget: Duration,
    /// TTL of this node's own lease.
    #[serde(deserialize_with = "deserialise_duration")]
    pub node_lease: Duration,
    /// Time for a client to leave before its connection is reset.
    #[serde(deserialize_with = "deserialise_duration")]
    pub grace: Duration,
    /// Time for the program of an ended session to save, before the next login is answered.
    #[serde(deserialize_with = "deserialise_duration")]
    pub save_budget: Duration,
    /// Period of the sweeper.
    #[serde(deserialize_with = "deserialise_duration")]
    pub sweep: Duration,
    /// Longest silence of a client.
    #[serde(deserialize_with = "deserialise_duration")]
    pub heartbeat: Duration,
    /// Time for a client to send its login.
    #[serde(deserialize_with = "deserialise_duration")]
    pub login_timeout: Duration,
    /// Longest frame in bytes.
    pub max_frame: usize,
    /// Most connections at one time; further connections are refused.
    pub max_connections: usize,
    /// Most connections at one time that have not logged in yet; further connections are refused.
    pub max_pending: usize,
    /// Most connections of one address (of IPv6, of one /64 network) at one time.
    pub max_per_address: usize,
    /// Most connections of one address at one time that have not logged in yet.
    pub max_pending_per_address: usize,
    /// Average number of logins of one account per second on this node; 0 = no limit.
    pub login_rate: usize,
    /// Number of logins of one account at once on this node, after a quiet time.
    pub login_burst: usize,
    /// Most logins in progress on this node at one time.
    pub max_logins: usize,
    /// Average number of messages of one account per second on this node; 0 = no limit.
    pub send_rate: usize,
    /// Number of messages of one account at once on this node, after a quiet time.
    pub send_burst: usize,
    /// Average number of messages of one account to one other account per second on this node; 0 =
    /// no limit.
    pub pair_rate: usize,
    /// Number of messages of one account to one other account at once on this node, after a quiet
    /// time.
    pub pair_burst: usize,
    /// The URL of the web service that checks each login. Without this key there is no such check.
    /// No log and no error shows the URL, because it may contain a key.
    pub profile_url: Option<Secret>,
    /// The bearer token that the node shows to the service at `profile_url`.
    pub profile_token: Option<Secret>,
    /// Longest wait for an answer of the service at `profile_url`.
    #[serde(deserialize_with = "deserialise_duration")]
    pub profile_timeout: Duration,
    /// The URL of the web service that checks each message of a client. Without this key there is
    /// no such check. No log and no error shows the URL, because it may contain a key.
    pub may_send_url: Option<Secret>,
    /// The bearer token that the node shows to the service at `may_send_url`.
    pub may_send_token: Option<Secret>,
    /// Longest wait for an answer of the service at `may_send_url`.
    #[serde(deserialize_with = "deserialise_duration")]
    pub may_send_timeout: Duration,
    /// The URL of the web service that saves after each session of this node. Without this key
    /// clients may save by themselves. No log and no error shows the URL, because it may contain a
    /// key.
    pub save_url: Option<Secret>,
    /// The bearer token that the node shows to the service at `save_url`.
    pub save_token: Option<Secret>,
    /// The receivers of web hooks. Only the file of the configuration can set them.
    pub hooks: Vec<HookConfig>,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        let timers = Timers::default();
        Self {
            node: String::new(),
            listen: "127.0.0.1:7430".into(),
            tcp_listen: None,
            peer_listen: "127.0.0.1:7431".into(),
            peer_advertise: None,
            admin_listen: "127.0.0.1:7432".into(),
            tls_cert: None,
            tls_key: None,
            peer_tls_ca: None,
            peer_tls_cert: None,
            peer_tls_key: None,
            peer_tls_auth: PeerAuth::Token,
            peer_tls_name: None,
            insecure_listen: false,
            client_address: ClientAddress::Connection,
            admin_token: None,
            admin_token_file: None,
            send_token: None,
            policy: PolicyName::Single,
            on_exceed: OnExceed::EvictOldest,
            classes: "phone,tablet,pc,web,tv,watch".into(),
            confirm: Confirm::Available,
            token_key: None,
            token_key_also: None,
            login_key_file: None,
            login_jwks_url: None,
            login_issuer: None,
            login_audience: None,
            lock_ttl: timers.lock_ttl,
            lock_wait: timers.lock_wait,
            kick_budget: timers.kick_budget,
            node_lease: timers.node_lease,
            grace: timers.grace,
            save_budget: timers.save_budget,
            sweep: timers.sweep,
            heartbeat: Duration::from_secs(60),
            login_timeout: Duration::from_secs(5),
            max_frame: 65_535,
            max_connections: 10_000,
            max_pending: 4096,
            max_per_address: 10_000,
            max_pending_per_address: 1024,
            login_rate: 20,
            login_burst: 200,
            max_logins: 4096,
            send_rate: 50,
            send_burst: 500,
            pair_rate: 20,
            pair_burst: 200,
            profile_url: None,
            profile_token: None,
            profile_timeout: Duration::from_secs(2),
            may_send_url: None,
            may_send_token: None,
            may_send_timeout: Duration::from_secs(2),
            save_url: None,
            save_token: None,
            hooks: Vec::new(),
        }
    }
}

impl GatewayConfig {
    /// The classes that clients may name; `None` if clients may name any class, because the policy
    /// does not count by class.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a text that is no class.
    pub(crate) fn named_classes(&self) -> Result<Option<Vec<Class>>> {
        let classes = self.classes.split(',').map(str::trim);
        let classes = classes.filter(|class| !class.is_empty()).map(|class| {
            Class::new(class).map_err(|error| {
                config_error(
                    "classes",
                    &format!("has one that is none: {}", error.message()),
                )
            })
        });
        let mut classes = classes.collect::<Result<Vec<_>>>()?;
        classes.push(Class::none());
        let by_class = matches!(
            self.policy,
            PolicyName::OnePerClass | PolicyName::NPerClass(_)
        );
        Ok(by_class.then_some(classes))
    }

    /// The service that checks each login.
    pub(crate) const fn profile_service(&self) -> ServiceSettings<'_> {
        ServiceSettings {
            url: ("profile_url", self.profile_url.as_ref()),
            token: ("profile_token", self.profile_token.as_ref()),
            timeout: self.profile_timeout,
        }
    }

    /// The service that checks each message.
    pub(crate) const fn may_send_service(&self) -> ServiceSettings<'_> {
        ServiceSettings {
            url: ("may_send_url", self.may_send_url.as_ref()),
            token: ("may_send_token", self.may_send_token.as_ref()),
            timeout: self.may_send_timeout,
        }
    }

    /// The service that saves after each session.
    pub(crate) const fn save_service(&self) -> ServiceSettings<'_> {
        ServiceSettings {
            url: ("save_url", self.save_url.as_ref()),
            token: ("save_token", self.save_token.as_ref()),
            timeout: self.save_budget,
        }
    }

    /// The durations of the kick-out flow.
    pub(crate) fn timers(&self) -> Timers {
        let mut timers = Timers::default();
        timers.lock_ttl = self.lock_ttl;
        timers.lock_wait = self.lock_wait;
        timers.kick_budget = self.kick_budget;
        timers.node_lease = self.node_lease;
        timers.grace = self.grace;
        timers.save_budget = self.save_budget;
        timers.sweep = self.sweep;
        timers
    }

    /// The limits of the login queue.
    pub(crate) fn admission(&self) -> Admission {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Admission::unbounded()
            .per_account(number(self.login_rate), number(self.login_burst))
            .under_way(self.max_logins)
    }
}

/// Reads a duration from text such as `250ms`.
pub(super) fn deserialise_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map_err(|error| D::Error::custom(error.message()))
}
