//! Passwords: a type that does not show its password, and the rule for sending one to a server.
//!
//! The rule is the same for every store. This module owns the rule and the texts of its errors and
//! findings. Invariant: a password leaves this machine through TLS only, or in clear text if the
//! option `tls=disable` allows that. The module must never resolve a name or open a connection, so
//! a refusal comes before anything is sent.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use distlock_core::{Error, ErrorKind, Health, Result, Verdict};
use secrecy::{ExposeSecret as _, SecretString};

use crate::not_compiled_in;

/// A password. `Debug` does not show it, and dropping it overwrites its memory with zeros. Copies
/// that a database driver makes are not overwritten.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a password.
    pub fn new(password: impl Into<String>) -> Self {
        let password: String = password.into();
        Self(password.into())
    }

    /// The password itself, for the database driver. Never print the result.
    #[must_use]
    pub fn reveal(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.reveal() == other.reveal()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The value of the option `tls` that allows a password to leave this machine in clear text.
pub const TLS_DISABLE: &str = "disable";

/// The way in which one store sends its password. A backend fills this value from its options.
#[derive(Clone, Copy, Debug)]
pub struct PasswordRule<'a> {
    /// Whether a password is sent in a form that an eavesdropper can use.
    pub sent: bool,
    /// Whether every connection that carries the password is encrypted.
    pub encrypted: bool,
    /// Whether the user allows a password in clear text, with `tls=disable` or with an option of
    /// the same effect (`sslmode=disable`, `ssl-mode=DISABLED`).
    pub clear_allowed: bool,
    /// Whether this build supports TLS.
    pub tls_built: bool,
    /// The features of the library that add the backend with TLS, for example `redis,tls`.
    pub features: &'a str,
    /// The advice how to turn TLS on, for example "write rediss:// instead of redis://".
    pub remedy: &'a str,
}

impl PasswordRule<'_> {
    /// Refuses a password that would cross a network in clear text. `host` is a name or an address
    /// without its port, as the user or another server wrote it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the host and the option to set.
    pub fn check(&self, host: &str) -> Result<()> {
        if !self.sent || self.encrypted || self.clear_allowed || is_loopback(host) {
            return Ok(());
        }
        let remedy = if self.tls_built {
            self.remedy.to_owned()
        } else {
            let feature = not_compiled_in("TLS", self.features);
            format!("{feature}; then {}", self.remedy)
        };
        Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "the password would go to {host:?} in clear, where everybody on the way can read \
                 it: {remedy}; on a network that you trust, set the option `tls` to `disable`"
            ),
        ))
    }

    /// Adds a finding to `health`: whether the password is encrypted on its way to these hosts.
    pub fn examine<'h>(&self, hosts: impl IntoIterator<Item = &'h str>, health: &mut Health) {
        let beyond = hosts.into_iter().find(|host| !is_loopback(host));
        let (verdict, detail) = match beyond {
            _ if !self.sent => (Verdict::Pass, "none is sent that others could use".into()),
            _ if self.encrypted => (Verdict::Pass, "it is sent through TLS".into()),
            None => (Verdict::Pass, "it does not leave this machine".into()),
            Some(host) => (
                Verdict::Warn,
                format!(
                    "it goes to {host:?} in clear (`tls` is `disable`), and everybody on the way \
                     can read it: {}",
                    self.remedy
                ),
            ),
        };
        health.found("password", verdict, detail);
    }
}

/// Whether a connection to this host stays on this machine: `localhost`, the addresses in
/// 127.0.0.0/8, and `::1`. Any other name counts as another machine, because a name server decides
/// to which address the name resolves.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback(),
        Ok(IpAddr::V6(address)) => {
            let mapped = address.to_ipv4_mapped();
            address == Ipv6Addr::LOCALHOST || mapped.is_some_and(|v4| v4.is_loopback())
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: PasswordRule<'_> = PasswordRule {
        sent: true,
        encrypted: false,
        clear_allowed: false,
        tls_built: true,
        features: "redis,tls",
        remedy: "write rediss://",
    };

    #[test]
    fn only_localhost_and_loopback_addresses_are_on_this_machine() {
        for host in [
            "localhost",
            "LocalHost",
            "127.0.0.1",
            "127.255.255.254",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_loopback(host), "{host}");
            RULE.check(host).unwrap();
        }
        for host in [
            "db.example",
            "localhost.example",
            "127.0.0.1.example",
            "127.1",
            "10.0.0.1",
            "0.0.0.0",
            "::",
            "::2",
            "::ffff:10.0.0.1",
            "[::1",
            "",
        ] {
            assert!(!is_loopback(host), "{host}");
            assert_eq!(
                RULE.check(host).unwrap_err().kind(),
                ErrorKind::InvalidConfig
            );
        }
    }

    #[test]
    fn a_password_in_clear_text_is_refused_without_tls_disable() {
        let says = |rule: PasswordRule<'_>| rule.check("db.example").unwrap_err().to_string();
        let said = says(RULE);
        for word in ["\"db.example\"", "write rediss://", "`tls` to `disable`"] {
            assert!(said.contains(word), "{said}");
        }
        assert!(!said.contains("not compiled in"), "{said}");
        let built = PasswordRule {
            tls_built: false,
            ..RULE
        };
        let said = says(built);
        assert!(
            said.contains(&not_compiled_in("TLS", "redis,tls")),
            "{said}"
        );
        for rule in [
            PasswordRule {
                sent: false,
                ..RULE
            },
            PasswordRule {
                encrypted: true,
                ..RULE
            },
            PasswordRule {
                clear_allowed: true,
                ..RULE
            },
        ] {
            rule.check("db.example").unwrap();
        }
    }

    #[test]
    fn the_doctor_warns_of_a_password_in_clear_text_to_another_machine() {
        let verdict = |rule: PasswordRule<'_>, hosts: &[&str]| {
            let mut health = Health::new("a server");
            rule.examine(hosts.iter().copied(), &mut health);
            health.findings[0].verdict
        };
        let clear = PasswordRule {
            clear_allowed: true,
            ..RULE
        };
        assert_eq!(verdict(clear, &["::1", "db.example"]), Verdict::Warn);
        assert_eq!(verdict(clear, &["::1", "localhost"]), Verdict::Pass);
        let encrypted = PasswordRule {
            encrypted: true,
            ..RULE
        };
        assert_eq!(verdict(encrypted, &["db.example"]), Verdict::Pass);
    }
}
