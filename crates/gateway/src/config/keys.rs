//! Every key of the table: its line of help, its default, and the code that reads it from text.
//!
//! Invariant of this module: each key in `KEYS` can be set from text.

use std::time::Duration;

use distlock_core::{Error, Result, excerpt, parse_duration};
use serde::Deserialize;

use super::{GatewayConfig, Secret, config_error};

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
        ("peer_advertise", "address that other nodes call"),
        ("admin_listen", "address of the admin HTTP"),
        (
            "tls_cert",
            "certificate chain (PEM file): clients and administrators come by TLS",
        ),
        ("tls_key", "private key of tls_cert (PEM file)"),
        (
            "peer_tls_ca",
            "CA certificates (PEM file): nodes call one another by TLS",
        ),
        (
            "peer_tls_cert",
            "certificate chain for other nodes (PEM file; tls_cert unless set)",
        ),
        ("peer_tls_key", "private key of peer_tls_cert (PEM file)"),
        (
            "peer_tls_auth",
            "what a node must show beside a certificate's check: token, or mutual for its own \
             certificate as well",
        ),
        (
            "peer_tls_name",
            "name in the certificates of other nodes (the host of their address unless set)",
        ),
        ("insecure_listen", "listen beyond loopback without TLS"),
        (
            "client_address",
            "where a client's address comes from: connection, proxy_protocol or forwarded_for",
        ),
        ("admin_token", "bearer token of the admin HTTP"),
        (
            "admin_token_file",
            "further tokens of the admin HTTP, a line each: name, right (read, operate, admin), \
             token",
        ),
        (
            "send_token",
            "bearer token of servers that send messages (nobody may unless set)",
        ),
        (
            "policy",
            "sessions per account: single, phone+pc, one_per_class, n_per_class(N), n_total(N) or \
             unlimited",
        ),
        (
            "on_exceed",
            "a login beyond the policy: evict_oldest, evict_idle or deny",
        ),
        (
            "classes",
            "classes that clients may name under a policy that counts by class, separated by \
             commas",
        ),
        (
            "confirm",
            "login answer while an older session is unreachable: available or strict",
        ),
        (
            "token_key",
            "key that signs login tokens, at least 32 bytes",
        ),
        (
            "token_key_also",
            "key that is accepted too, while token_key is changed",
        ),
        (
            "login_key_file",
            "public keys that check login tokens too (PEM file): ES256, EdDSA, RS256",
        ),
        (
            "login_jwks_url",
            "the same as a JWK set at a URL, in which a token names its key",
        ),
        (
            "login_issuer",
            "issuer that a token of such a key must name (distlock unless set)",
        ),
        (
            "login_audience",
            "audience that a token of such a key must name (distlock-gateway unless set)",
        ),
        ("lock_ttl", "TTL of an account's lock"),
        ("lock_wait", "longest wait for an account's lock"),
        (
            "kick_budget",
            "time for telling older sessions before a login is answered",
        ),
        ("node_lease", "TTL of this node's own lease"),
        ("grace", "time a client has to leave before it is cut off"),
        (
            "save_budget",
            "time to save after a session, before the next login is answered",
        ),
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
            "max_per_address",
            "most connections of one address at one time",
        ),
        (
            "max_pending_per_address",
            "most connections of one address that have not logged in yet",
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
            "send_rate",
            "messages of one account per second and node, in the long run; 0 = no bound",
        ),
        (
            "send_burst",
            "messages of one account and node at once, after a quiet time",
        ),
        (
            "pair_rate",
            "messages of one account to another per second and node; 0 = no bound",
        ),
        (
            "pair_burst",
            "messages of one account to another and node at once, after a quiet time",
        ),
        (
            "profile_url",
            "web service that is asked about each login (none unless set)",
        ),
        ("profile_token", "bearer token that it is asked with"),
        ("profile_timeout", "longest wait for its answer"),
        (
            "may_send_url",
            "web service that is asked about each message of a client (none unless set)",
        ),
        ("may_send_token", "bearer token that it is asked with"),
        ("may_send_timeout", "longest wait for its answer"),
        (
            "save_url",
            "web service that saves after each session (none unless set)",
        ),
        ("save_token", "bearer token that it is asked with"),
    ];

    /// The keys whose value is `true` or `false`. On a command line, the flag without a value means
    /// `true`.
    pub const SWITCHES: &'static [&'static str] = &["insecure_listen"];

    /// Sets one key from the text of a flag or an environment variable.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for an unknown key, and for a
    /// text that is no value of this key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let text = || value.to_owned();
        match key {
            "node" => self.node = text(),
            "listen" => self.listen = text(),
            "tcp_listen" => self.tcp_listen = Some(text()),
            "peer_listen" => self.peer_listen = text(),
            "peer_advertise" => self.peer_advertise = Some(text()),
            "admin_listen" => self.admin_listen = text(),
            "tls_cert" => self.tls_cert = Some(text()),
            "tls_key" => self.tls_key = Some(text()),
            "peer_tls_ca" => self.peer_tls_ca = Some(text()),
            "peer_tls_cert" => self.peer_tls_cert = Some(text()),
            "peer_tls_key" => self.peer_tls_key = Some(text()),
            "peer_tls_auth" => self.peer_tls_auth = parse_choice(key, value)?,
            "peer_tls_name" => self.peer_tls_name = Some(text()),
            "insecure_listen" => self.insecure_listen = parse_bool(key, value)?,
            "client_address" => self.client_address = parse_choice(key, value)?,
            "admin_token" => self.admin_token = Some(Secret::new(value)),
            "admin_token_file" => self.admin_token_file = Some(text()),
            "send_token" => self.send_token = Some(Secret::new(value)),
            "policy" => {
                self.policy = value.parse().map_err(|error: Error| {
                    config_error(key, &format!("is not valid: {}", error.message()))
                })?;
            }
            "on_exceed" => self.on_exceed = parse_choice(key, value)?,
            "classes" => self.classes = text(),
            "confirm" => self.confirm = parse_choice(key, value)?,
            "token_key" => self.token_key = Some(Secret::new(value)),
            "token_key_also" => self.token_key_also = Some(Secret::new(value)),
            "login_key_file" => self.login_key_file = Some(text()),
            "login_jwks_url" => self.login_jwks_url = Some(Secret::new(value)),
            "login_issuer" => self.login_issuer = Some(text()),
            "login_audience" => self.login_audience = Some(text()),
            "profile_url" => self.profile_url = Some(Secret::new(value)),
            "profile_token" => self.profile_token = Some(Secret::new(value)),
            "may_send_url" => self.may_send_url = Some(Secret::new(value)),
            "may_send_token" => self.may_send_token = Some(Secret::new(value)),
            "save_url" => self.save_url = Some(Secret::new(value)),
            "save_token" => self.save_token = Some(Secret::new(value)),
            _ if self.number_mut(key).is_some() => {
                let value = parse_number(key, value)?;
                if let Some(setting) = self.number_mut(key) {
                    *setting = value;
                }
            }
            _ => {
                let setting = self
                    .duration_mut(key)
                    .ok_or_else(|| config_error(key, "is not a key of [gateway]"))?;
                *setting =
                    parse_duration(value).map_err(|error| config_error(key, error.message()))?;
            }
        }
        Ok(())
    }

    /// The default of a key as text for [`set`](Self::set); `None` for a key without a default.
    #[must_use]
    pub fn default_of(key: &str) -> Option<String> {
        let mut config = Self::default();
        if let Some(time) = config.duration_mut(key) {
            return Some(format!("{time:?}"));
        }
        if let Some(number) = config.number_mut(key) {
            return Some(number.to_string());
        }
        match key {
            "listen" => Some(config.listen),
            "peer_listen" => Some(config.peer_listen),
            "admin_listen" => Some(config.admin_listen),
            "peer_tls_auth" => Some("token".into()),
            "client_address" => Some("connection".into()),
            "policy" => Some(config.policy.to_string()),
            "on_exceed" => Some("evict_oldest".into()),
            "classes" => Some(config.classes),
            "confirm" => Some("available".into()),
            _ => None,
        }
    }

    /// The setting of a key whose value is a number.
    fn number_mut(&mut self, key: &str) -> Option<&mut usize> {
        Some(match key {
            "max_frame" => &mut self.max_frame,
            "max_connections" => &mut self.max_connections,
            "max_pending" => &mut self.max_pending,
            "max_per_address" => &mut self.max_per_address,
            "max_pending_per_address" => &mut self.max_pending_per_address,
            "login_rate" => &mut self.login_rate,
            "login_burst" => &mut self.login_burst,
            "max_logins" => &mut self.max_logins,
            "send_rate" => &mut self.send_rate,
            "send_burst" => &mut self.send_burst,
            "pair_rate" => &mut self.pair_rate,
            "pair_burst" => &mut self.pair_burst,
            _ => return None,
        })
    }

    /// The setting of a key whose value is a duration.
    fn duration_mut(&mut self, key: &str) -> Option<&mut Duration> {
        Some(match key {
            "lock_ttl" => &mut self.lock_ttl,
            "lock_wait" => &mut self.lock_wait,
            "kick_budget" => &mut self.kick_budget,
            "node_lease" => &mut self.node_lease,
            "grace" => &mut self.grace,
            "save_budget" => &mut self.save_budget,
            "sweep" => &mut self.sweep,
            "heartbeat" => &mut self.heartbeat,
            "login_timeout" => &mut self.login_timeout,
            "profile_timeout" => &mut self.profile_timeout,
            "may_send_timeout" => &mut self.may_send_timeout,
            _ => return None,
        })
    }
}

/// Reads one of the fixed values of a key.
fn parse_choice<T: for<'de> Deserialize<'de>>(key: &str, value: &str) -> Result<T> {
    let deserializer = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(value);
    T::deserialize(deserializer)
        .map_err(|error| config_error(key, &format!("is not valid: {error}")))
}

fn parse_bool(key: &str, value: &str) -> Result<bool> {
    value.parse().map_err(|_| {
        config_error(
            key,
            &format!("is \"{}\": true or false is needed", excerpt(value)),
        )
    })
}

fn parse_number(key: &str, value: &str) -> Result<usize> {
    value.parse().map_err(|_| {
        config_error(
            key,
            &format!("is \"{}\": a whole number is needed", excerpt(value)),
        )
    })
}
