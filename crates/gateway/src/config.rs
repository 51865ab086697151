//! The `[gateway]` table: every key, its default and its limits, checked once before anything is bound.

use std::{fmt, net::SocketAddr, time::Duration};

use distlock_core::{Error, ErrorKind, Result, parse_duration};
use distlock_kickout::{Admission, Confirm, NodeId, OnExceed, PolicyName, RouteMode, Timers};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    profiles,
    token::{self, TokenKey},
};

/// Everything a gateway node is told. Every key has a default except `node` and `token_key`.
///
/// It reads from TOML (unknown keys are refused), and [`set`](Self::set) sets one key from text, for flags and environment
/// variables. [`validate`](Self::validate) is called by [`Gateway::start`](crate::Gateway::start).
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GatewayConfig {
    /// This node's name, unique among the nodes of one store: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub node: String,
    /// Where WebSocket clients connect.
    pub listen: String,
    /// Where raw TCP clients connect; nowhere unless set.
    pub tcp_listen: Option<String>,
    /// Where other nodes reach this one.
    pub peer_listen: String,
    /// The address other nodes are told; `peer_listen` as it was bound unless set.
    pub peer_advertise: Option<String>,
    /// Where the admin HTTP listens.
    pub admin_listen: String,
    /// The bearer token of the admin HTTP: required when `admin_listen` is not a loopback address.
    pub admin_token: Option<Secret>,
    /// How many sessions an account may have.
    pub policy: PolicyName,
    /// What happens to a login beyond that.
    pub on_exceed: OnExceed,
    /// When a login is answered while an older session could not be told yet.
    pub confirm: Confirm,
    /// How a message finds its session.
    pub route: RouteMode,
    /// The key that signs login tokens: at least 32 bytes, the same on every node.
    pub token_key: Option<Secret>,
    /// A key that is accepted too and never signs, while one key takes the place of the other; none unless set.
    pub token_key_also: Option<Secret>,
    /// TTL of the account's lock.
    #[serde(deserialize_with = "duration")]
    pub lock_ttl: Duration,
    /// Longest wait for the account's lock.
    #[serde(deserialize_with = "duration")]
    pub lock_wait: Duration,
    /// Time for telling the older sessions before a login is answered.
    #[serde(deserialize_with = "duration")]
    pub kick_budget: Duration,
    /// TTL of this node's own lease.
    #[serde(deserialize_with = "duration")]
    pub node_lease: Duration,
    /// Time a client has to leave before it is cut off.
    #[serde(deserialize_with = "duration")]
    pub grace: Duration,
    /// Period of the sweeper.
    #[serde(deserialize_with = "duration")]
    pub sweep: Duration,
    /// Longest silence of a client.
    #[serde(deserialize_with = "duration")]
    pub heartbeat: Duration,
    /// Time a client has to send its login.
    #[serde(deserialize_with = "duration")]
    pub login_timeout: Duration,
    /// Longest frame in bytes.
    pub max_frame: usize,
    /// Most connections at one time; more are refused.
    pub max_connections: usize,
    /// Most connections at one time that have not logged in yet; more are refused.
    pub max_pending: usize,
    /// Logins of one account per second on this node, in the long run; 0 = no bound.
    pub login_rate: usize,
    /// Logins of one account on this node at once, after a quiet time.
    pub login_burst: usize,
    /// Most logins under way on this node at one time.
    pub max_logins: usize,
    /// The web service that is asked about each login before it may go on; none unless set. Not shown, since it may hold a key.
    pub profile_url: Option<Secret>,
    /// The bearer token that it is asked with.
    pub profile_token: Option<Secret>,
    /// Longest wait for its answer.
    #[serde(deserialize_with = "duration")]
    pub profile_timeout: Duration,
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
            admin_token: None,
            policy: PolicyName::Single,
            on_exceed: OnExceed::EvictOldest,
            confirm: Confirm::Available,
            route: RouteMode::Fenced,
            token_key: None,
            token_key_also: None,
            lock_ttl: timers.lock_ttl,
            lock_wait: timers.lock_wait,
            kick_budget: timers.kick_budget,
            node_lease: timers.node_lease,
            grace: timers.grace,
            sweep: timers.sweep,
            heartbeat: Duration::from_secs(60),
            login_timeout: Duration::from_secs(5),
            max_frame: 65_535,
            max_connections: 10_000,
            max_pending: 4096,
            login_rate: 20,
            login_burst: 200,
            max_logins: 4096,
            profile_url: None,
            profile_token: None,
            profile_timeout: Duration::from_secs(2),
        }
    }
}

impl GatewayConfig {
    /// The keys of the table, in the order of their documentation, each with one line of help.
    pub const KEYS: &'static [(&'static str, &'static str)] = &[
        (
            "node",
            "name of this node, unique among the nodes of one store",
        ),
        ("listen", "address for WebSocket clients"),
        ("tcp_listen", "address for raw TCP clients (off unless set)"),
        ("peer_listen", "address for other nodes (gRPC)"),
        ("peer_advertise", "address that other nodes are told"),
        ("admin_listen", "address of the admin HTTP"),
        ("admin_token", "bearer token of the admin HTTP"),
        (
            "policy",
            "sessions per account: single, phone+pc, one_per_class, n_per_class(N), n_total(N) or unlimited",
        ),
        (
            "on_exceed",
            "a login beyond the policy: evict_oldest, evict_idle or deny",
        ),
        (
            "confirm",
            "login answer while an older session is unreachable: available or strict",
        ),
        ("route", "how a message finds its session: fenced or locked"),
        (
            "token_key",
            "key that signs login tokens, at least 32 bytes",
        ),
        (
            "token_key_also",
            "key that is accepted too, while token_key is changed",
        ),
        ("lock_ttl", "TTL of an account's lock"),
        ("lock_wait", "longest wait for an account's lock"),
        (
            "kick_budget",
            "time for telling older sessions before a login is answered",
        ),
        ("node_lease", "TTL of this node's own lease"),
        ("grace", "time a client has to leave before it is cut off"),
        ("sweep", "period of the sweeper"),
        ("heartbeat", "longest silence of a client"),
        ("login_timeout", "time a client has to send its login"),
        ("max_frame", "longest frame in bytes"),
        ("max_connections", "most connections at one time"),
        (
            "max_pending",
            "most connections at one time that have not logged in yet",
        ),
        (
            "login_rate",
            "logins of one account per second and node, in the long run; 0 = no bound",
        ),
        (
            "login_burst",
            "logins of one account and node at once, after a quiet time",
        ),
        ("max_logins", "most logins under way at one time"),
        (
            "profile_url",
            "web service that is asked about each login (none unless set)",
        ),
        ("profile_token", "bearer token that it is asked with"),
        ("profile_timeout", "longest wait for its answer"),
    ];

    /// Sets one key from text, as a flag or an environment variable gives it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an unknown key and for a text that is no value of this key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let text = || value.to_owned();
        match key {
            "node" => self.node = text(),
            "listen" => self.listen = text(),
            "tcp_listen" => self.tcp_listen = Some(text()),
            "peer_listen" => self.peer_listen = text(),
            "peer_advertise" => self.peer_advertise = Some(text()),
            "admin_listen" => self.admin_listen = text(),
            "admin_token" => self.admin_token = Some(Secret::new(value)),
            "policy" => {
                self.policy = value.parse().map_err(|error: Error| {
                    invalid(key, &format!("is not valid: {}", error.message()))
                })?;
            }
            "on_exceed" => self.on_exceed = choice(key, value)?,
            "confirm" => self.confirm = choice(key, value)?,
            "route" => self.route = choice(key, value)?,
            "token_key" => self.token_key = Some(Secret::new(value)),
            "token_key_also" => self.token_key_also = Some(Secret::new(value)),
            "profile_url" => self.profile_url = Some(Secret::new(value)),
            "profile_token" => self.profile_token = Some(Secret::new(value)),
            _ if self.number_slot(key).is_some() => {
                let value = number(key, value)?;
                if let Some(slot) = self.number_slot(key) {
                    *slot = value;
                }
            }
            _ => {
                let slot = self
                    .duration_slot(key)
                    .ok_or_else(|| invalid(key, "is not a key of [gateway]"))?;
                *slot = parse_duration(value).map_err(|error| invalid(key, error.message()))?;
            }
        }
        Ok(())
    }

    /// The default of a key, as [`set`](Self::set) reads it; `None` for one that has none.
    #[must_use]
    pub fn default_of(key: &str) -> Option<String> {
        let mut config = Self::default();
        if let Some(time) = config.duration_slot(key) {
            return Some(format!("{time:?}"));
        }
        if let Some(number) = config.number_slot(key) {
            return Some(number.to_string());
        }
        match key {
            "listen" => Some(config.listen),
            "peer_listen" => Some(config.peer_listen),
            "admin_listen" => Some(config.admin_listen),
            "policy" => Some(config.policy.to_string()),
            "on_exceed" => Some("evict_oldest".into()),
            "confirm" => Some(word(config.confirm)),
            "route" => Some(word(config.route)),
            _ => None,
        }
    }

    /// Checks every key against its limits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], naming the key, the limit and the value.
    pub fn validate(&self) -> Result<()> {
        if self.node.is_empty() {
            return Err(invalid(
                "node",
                "is not set: every node needs a name of its own",
            ));
        }
        NodeId::new(&self.node).map_err(|error| {
            invalid(
                "node",
                &format!("is no name for a node: {}", error.message()),
            )
        })?;
        address("listen", &self.listen)?;
        address("peer_listen", &self.peer_listen)?;
        address("admin_listen", &self.admin_listen)?;
        for (key, value) in [
            ("tcp_listen", &self.tcp_listen),
            ("peer_advertise", &self.peer_advertise),
        ] {
            if let Some(value) = value {
                address(key, value)?;
            }
        }
        // Names are looked up when they are bound, and looked at then.
        if let Ok(address) = self.admin_listen.parse() {
            self.check_admin(address)?;
        }
        if let Ok(address) = self.peer_listen.parse() {
            self.check_peer(address)?;
        }
        if let Some(advertised) = &self.peer_advertise
            && let Ok(address) = advertised.parse::<SocketAddr>()
            && address.ip().is_unspecified()
        {
            return Err(invalid(
                "peer_advertise",
                &format!("is {address}, which other nodes cannot reach"),
            ));
        }
        self.key()?;
        if let Some(url) = &self.profile_url {
            profiles::address(url.expose())?;
        }
        if let Some(token) = &self.profile_token {
            profiles::bearer(token.expose())?;
        }
        if let Some(token) = &self.admin_token
            && token.expose().len() < 16
        {
            return Err(invalid(
                "admin_token",
                &format!(
                    "is {} bytes long: at least 16 are needed",
                    token.expose().len()
                ),
            ));
        }
        let ms = Duration::from_millis;
        let hour = Duration::from_secs(3600);
        for (key, value, least, most) in [
            ("lock_ttl", self.lock_ttl, ms(100), hour),
            ("lock_wait", self.lock_wait, Duration::ZERO, hour),
            ("kick_budget", self.kick_budget, ms(10), hour),
            ("node_lease", self.node_lease, ms(500), hour),
            ("grace", self.grace, ms(10), hour),
            ("sweep", self.sweep, ms(100), hour),
            ("heartbeat", self.heartbeat, ms(100), hour),
            ("login_timeout", self.login_timeout, ms(100), hour),
            ("profile_timeout", self.profile_timeout, ms(10), hour),
        ] {
            if value < least || value > most {
                return Err(invalid(
                    key,
                    &format!("is {value:?}: {least:?} to {most:?} are allowed"),
                ));
            }
        }
        for (key, value, least, most) in [
            ("max_frame", self.max_frame, 512, 65_535),
            ("max_connections", self.max_connections, 1, 1_000_000),
            ("max_pending", self.max_pending, 1, 1_000_000),
            ("login_rate", self.login_rate, 0, 100_000),
            ("login_burst", self.login_burst, 1, 1_000_000),
            ("max_logins", self.max_logins, 1, 1_000_000),
        ] {
            if value < least || value > most {
                return Err(invalid(
                    key,
                    &format!("is {value}: {least} to {most} are allowed"),
                ));
            }
        }
        Ok(())
    }

    /// Without a token, administrators are served on loopback alone.
    pub(crate) fn check_admin(&self, listen: SocketAddr) -> Result<()> {
        if listen.ip().is_loopback() || self.admin_token.is_some() {
            return Ok(());
        }
        Err(invalid(
            "admin_token",
            &format!("is not set, and admin_listen {listen} is not a loopback address"),
        ))
    }

    /// Other nodes need an address of this one.
    pub(crate) fn check_peer(&self, listen: SocketAddr) -> Result<()> {
        if !listen.ip().is_unspecified() || self.peer_advertise.is_some() {
            return Ok(());
        }
        Err(invalid(
            "peer_advertise",
            &format!("is not set, and other nodes cannot reach peer_listen {listen}"),
        ))
    }

    /// The key that an error is about, if it is about one: of [`set`](Self::set), [`validate`](Self::validate), or
    /// [`Gateway::start`](crate::Gateway::start). Whoever knows where that key was written can say so.
    #[must_use]
    pub fn key_of(error: &Error) -> Option<&'static str> {
        let (key, _) = error.message().strip_prefix(PREFIX)?.split_once(' ')?;
        let mut keys = Self::KEYS.iter().map(|(known, _)| *known);
        keys.find(|known| *known == key)
    }

    /// The key that signs, with the one that is accepted too.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when none signs, and when one is shorter than 32 bytes or both are the same.
    pub fn key(&self) -> Result<TokenKey> {
        let secret = self.token_key.as_ref().ok_or_else(|| {
            invalid(
                "token_key",
                "is not set: give it in the configuration file or in DISTLOCK_GATEWAY_TOKEN_KEY",
            )
        })?;
        let key = TokenKey::new(secret.expose().as_bytes())?;
        let Some(also) = &self.token_key_also else {
            return Ok(key);
        };
        // Whoever gives the same twice believes that two are accepted: the other one was lost on the way.
        if also.matches(secret.expose()) {
            return Err(invalid(
                "token_key_also",
                "is the same as token_key: give the other key, or none",
            ));
        }
        key.also(also.expose().as_bytes())
    }

    pub(crate) fn timers(&self) -> Timers {
        let mut timers = Timers::default();
        timers.lock_ttl = self.lock_ttl;
        timers.lock_wait = self.lock_wait;
        timers.kick_budget = self.kick_budget;
        timers.node_lease = self.node_lease;
        timers.grace = self.grace;
        timers.sweep = self.sweep;
        timers
    }

    pub(crate) fn admission(&self) -> Admission {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Admission::unbounded()
            .per_account(number(self.login_rate), number(self.login_burst))
            .under_way(self.max_logins)
    }

    fn number_slot(&mut self, key: &str) -> Option<&mut usize> {
        Some(match key {
            "max_frame" => &mut self.max_frame,
            "max_connections" => &mut self.max_connections,
            "max_pending" => &mut self.max_pending,
            "login_rate" => &mut self.login_rate,
            "login_burst" => &mut self.login_burst,
            "max_logins" => &mut self.max_logins,
            _ => return None,
        })
    }

    fn duration_slot(&mut self, key: &str) -> Option<&mut Duration> {
        Some(match key {
            "lock_ttl" => &mut self.lock_ttl,
            "lock_wait" => &mut self.lock_wait,
            "kick_budget" => &mut self.kick_budget,
            "node_lease" => &mut self.node_lease,
            "grace" => &mut self.grace,
            "sweep" => &mut self.sweep,
            "heartbeat" => &mut self.heartbeat,
            "login_timeout" => &mut self.login_timeout,
            "profile_timeout" => &mut self.profile_timeout,
            _ => return None,
        })
    }
}

/// A secret from the configuration: never shown.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Compares in constant time.
    pub(crate) fn matches(&self, other: &str) -> bool {
        token::same(self.0.as_bytes(), other.as_bytes())
    }

    /// The secret itself, for sending it where it belongs.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map_err(|error| D::Error::custom(error.message()))
}

fn choice<T: for<'de> Deserialize<'de>>(key: &str, value: &str) -> Result<T> {
    let deserializer = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(value);
    T::deserialize(deserializer).map_err(|error| invalid(key, &format!("is not valid: {error}")))
}

/// A choice as it is written.
fn word(choice: impl fmt::Debug) -> String {
    format!("{choice:?}").to_lowercase()
}

fn number(key: &str, value: &str) -> Result<usize> {
    value
        .parse()
        .map_err(|_| invalid(key, &format!("is \"{value}\": a whole number is needed")))
}

fn address(key: &str, value: &str) -> Result<()> {
    match value.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(invalid(
            key,
            &format!("is \"{value}\": host:port is needed, such as 127.0.0.1:0"),
        )),
    }
}

/// What every error about a key begins with, directly before the key.
const PREFIX: &str = "gateway.";

pub(crate) fn invalid(key: &str, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{PREFIX}{key} {problem}"))
}
