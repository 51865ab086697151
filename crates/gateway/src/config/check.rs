//! The limits of every key, checked once before anything is bound.
//!
//! Invariant of this module: each error names the key, the limit and the value. This module must
//! never show a secret.

use std::{net::SocketAddr, time::Duration};

use distlock_core::{Error, ErrorKind, Result, excerpt};
use distlock_kickout::NodeId;

use super::{GatewayConfig, Secret};

/// Longest wait for the check of a message. The wait is short, because the client's next message to
/// the same account waits as well.
pub(crate) const MAX_MAY_SEND: Duration = Duration::from_secs(10);

/// Shortest token of an administrator or of a sending server. A shorter one can be guessed.
pub(crate) const LEAST_TOKEN_BYTES: usize = 16;

/// Returns the token of this key as text, if an HTTP header can carry the token.
fn token_for_header<'a>(key: &str, token: Option<&'a Secret>) -> Result<Option<&'a str>> {
    let Some(token) = token.map(Secret::expose) else {
        return Ok(None);
    };
    let is_plain = token.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    // A value from a file may end with a line break. Servers trim the value of a header, so a token
    // with white space around it would never match.
    if is_plain && token.trim() == token {
        return Ok(Some(token));
    }
    Err(config_error(
        key,
        "cannot be sent in a header: one line of visible ASCII characters is needed, \
         with nothing around it",
    ))
}

impl GatewayConfig {
    /// Checks every key against its limits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig), naming the key, the
    /// limit and the value. The key is the [`setting`](distlock_core::Error::setting) of the error.
    pub fn validate(&self) -> Result<()> {
        self.check_node()?;
        self.check_addresses()?;
        self.key()?;
        self.login_keys()?;
        self.named_classes()?;
        self.profile_service().parse()?;
        self.may_send_service().parse()?;
        self.save_service().parse()?;
        self.check_tokens()?;
        self.check_hooks()?;
        self.check_durations()?;
        self.check_numbers()
    }

    /// Checks the name of the node.
    fn check_node(&self) -> Result<()> {
        if self.node.is_empty() {
            return Err(config_error(
                "node",
                "is not set: every node needs a name of its own",
            ));
        }
        NodeId::new(&self.node).map_err(|error| {
            config_error(
                "node",
                &format!("is no name for a node: {}", error.message()),
            )
        })?;
        Ok(())
    }

    /// Checks the addresses, and the keys that each kind of address needs.
    fn check_addresses(&self) -> Result<()> {
        check_host_port("listen", &self.listen)?;
        check_host_port("peer_listen", &self.peer_listen)?;
        check_host_port("admin_listen", &self.admin_listen)?;
        for (key, value) in [
            ("tcp_listen", &self.tcp_listen),
            ("peer_advertise", &self.peer_advertise),
        ] {
            if let Some(value) = value {
                check_host_port(key, value)?;
            }
        }
        self.tls_files()?;
        // A host name has no address before it is bound, so a host name is checked at the bind.
        for (key, address) in [
            ("listen", Some(&self.listen)),
            ("tcp_listen", self.tcp_listen.as_ref()),
            ("peer_listen", Some(&self.peer_listen)),
            ("admin_listen", Some(&self.admin_listen)),
        ] {
            if let Some(address) = address.and_then(|it| it.parse().ok()) {
                self.check_listen_address(key, address)?;
            }
        }
        if let Ok(address) = self.admin_listen.parse() {
            self.check_admin_address(address)?;
        }
        if let Ok(address) = self.peer_listen.parse() {
            self.check_peer_address(address)?;
        }
        if let Some(advertised) = &self.peer_advertise
            && let Ok(address) = advertised.parse::<SocketAddr>()
            && address.ip().is_unspecified()
        {
            return Err(config_error(
                "peer_advertise",
                &format!("is {address}, which other nodes cannot reach"),
            ));
        }
        Ok(())
    }

    /// Checks the bearer tokens that other programs show to this node.
    fn check_tokens(&self) -> Result<()> {
        for (key, token) in [
            ("admin_token", &self.admin_token),
            ("send_token", &self.send_token),
        ] {
            if let Some(token) = token_for_header(key, token.as_ref())?
                && token.len() < LEAST_TOKEN_BYTES
            {
                let length = token.len();
                let problem =
                    format!("is {length} bytes long: at least {LEAST_TOKEN_BYTES} are needed");
                return Err(config_error(key, &problem));
            }
        }
        // A program that knows one of these secrets must not have the rights of another one.
        let secrets: Vec<_> = self.secrets().collect();
        for (at, (key, secret)) in secrets.iter().enumerate() {
            // `key` has compared the two keys of tokens.
            if *key == "token_key_also" {
                continue;
            }
            for (other, its) in &secrets[..at] {
                if its.matches(secret.expose()) {
                    let problem = format!("is the same as {other}: give each its own");
                    return Err(config_error(key, &problem));
                }
            }
        }
        Ok(())
    }

    /// The secrets by which other programs have rights at this node, each with its key.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (&'static str, &Secret)> {
        let secrets = [
            ("token_key", &self.token_key),
            ("token_key_also", &self.token_key_also),
            ("admin_token", &self.admin_token),
            ("send_token", &self.send_token),
        ];
        let secrets = secrets.into_iter();
        secrets.filter_map(|(key, secret)| secret.as_ref().map(|secret| (key, secret)))
    }

    /// Checks each duration against its limits.
    fn check_durations(&self) -> Result<()> {
        let ms = Duration::from_millis;
        let hour = Duration::from_secs(3600);
        for (key, value, least, most) in [
            ("lock_ttl", self.lock_ttl, ms(100), hour),
            ("lock_wait", self.lock_wait, Duration::ZERO, hour),
            ("kick_budget", self.kick_budget, ms(10), hour),
            ("node_lease", self.node_lease, ms(500), hour),
            ("grace", self.grace, ms(10), hour),
            ("save_budget", self.save_budget, ms(10), hour),
            ("sweep", self.sweep, ms(100), hour),
            ("heartbeat", self.heartbeat, ms(100), hour),
            ("login_timeout", self.login_timeout, ms(100), hour),
            ("profile_timeout", self.profile_timeout, ms(10), hour),
            (
                "may_send_timeout",
                self.may_send_timeout,
                ms(10),
                MAX_MAY_SEND,
            ),
        ] {
            if value < least || value > most {
                return Err(config_error(
                    key,
                    &format!("is {value:?}: {least:?} to {most:?} are allowed"),
                ));
            }
        }
        Ok(())
    }

    /// Checks each number against its limits.
    fn check_numbers(&self) -> Result<()> {
        for (key, value, least, most) in [
            ("max_frame", self.max_frame, 512, 65_535),
            ("max_connections", self.max_connections, 1, 1_000_000),
            ("max_pending", self.max_pending, 1, 1_000_000),
            ("max_per_address", self.max_per_address, 1, 1_000_000),
            (
                "max_pending_per_address",
                self.max_pending_per_address,
                1,
                1_000_000,
            ),
            ("login_rate", self.login_rate, 0, 100_000),
            ("login_burst", self.login_burst, 1, 1_000_000),
            ("max_logins", self.max_logins, 1, 1_000_000),
            ("send_rate", self.send_rate, 0, 1_000_000),
            ("send_burst", self.send_burst, 1, 1_000_000),
            ("pair_rate", self.pair_rate, 0, 1_000_000),
            ("pair_burst", self.pair_burst, 1, 1_000_000),
        ] {
            if value < least || value > most {
                return Err(config_error(
                    key,
                    &format!("is {value}: {least} to {most} are allowed"),
                ));
            }
        }
        Ok(())
    }

    /// The `admin_token` in the form that requests carry.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) when no header of a
    /// request could carry it.
    pub fn admin_bearer(&self) -> Result<Option<&str>> {
        token_for_header("admin_token", self.admin_token.as_ref())
    }

    /// Refuses an admin listener without a configured token, unless the listener's address is a
    /// loopback address. For a loopback address, the node makes a random token and prints the
    /// token. An administrator on the same host can read the token in the node's output.
    pub(crate) fn check_admin_address(&self, listen: SocketAddr) -> Result<()> {
        let has_token = self.admin_token.is_some() || self.admin_token_file.is_some();
        if listen.ip().is_loopback() || has_token {
            return Ok(());
        }
        Err(config_error(
            "admin_token",
            &format!(
                "is not set, and admin_token_file neither, and admin_listen {listen} is not a \
                 loopback address"
            ),
        ))
    }

    /// Refuses a wildcard address, such as 0.0.0.0, for other nodes without `peer_advertise`: other
    /// nodes could not call such an address.
    pub(crate) fn check_peer_address(&self, listen: SocketAddr) -> Result<()> {
        if !listen.ip().is_unspecified() || self.peer_advertise.is_some() {
            return Ok(());
        }
        Err(config_error(
            "peer_advertise",
            &format!("is not set, and other nodes cannot reach peer_listen {listen}"),
        ))
    }
}

/// Checks that a value has the form `host:port`.
fn check_host_port(key: &str, value: &str) -> Result<()> {
    match value.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(config_error(
            key,
            &format!(
                "is \"{}\": host:port is needed, such as 127.0.0.1:0",
                excerpt(value)
            ),
        )),
    }
}

/// An error about the value of `key`. `problem` follows the key as the rest of the sentence.
pub(crate) fn config_error(key: &str, problem: &str) -> Error {
    let error = Error::new(ErrorKind::InvalidConfig, format!("gateway.{key} {problem}"));
    let mut keys = GatewayConfig::KEYS.iter().map(|(known, _)| *known);
    match keys.find(|known| *known == key) {
        Some(key) => error.of_setting(key),
        None if key == "hooks" || key.starts_with("hooks.") => error.of_setting("hooks"),
        None => error,
    }
}
