//! Checks every option against its range, and options against each other.

use std::time::Duration;

use distlock_backend_kit::not_compiled_in;
use distlock_core::{Error, ErrorKind, Result};

use super::options::{AclPolicy, Mechanism, TLS_FEATURES, ZooKeeperConfig};
use crate::error::invalid_config;

/// The features of the library that bring this backend with SASL.
const SASL_FEATURES: &str = "zookeeper,sasl";

impl ZooKeeperConfig {
    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option.
    pub fn check(&self) -> Result<()> {
        for (number, server) in (1..).zip(&self.servers) {
            check_server(number, server)?;
        }
        if self.servers.is_empty() {
            return Err(invalid_config("no server is named"));
        }
        check_root(&self.root)?;
        let range = |option: &str, value: Duration, min: Duration, max: Duration| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(invalid_config(format!(
                "option `{option}`: {value:?} is outside {min:?} to {max:?}"
            )))
        };
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        range("session_timeout", self.session_timeout, ms(500), s(3600))?;
        if let Some(tick) = self.tick_time {
            range("tick_time", tick, ms(1), self.session_timeout / 2)?;
        }
        range("request_timeout", self.request_timeout, ms(100), s(5))?;
        range("reap_after", self.reap_after, s(1), s(365 * 24 * 3600))?;
        let least = self.session_timeout * 2;
        if self.reap_after < least {
            return Err(invalid_config(format!(
                "option `reap_after`: {:?} is less than twice the session timeout, {least:?}",
                self.reap_after
            )));
        }
        if self.acl == AclPolicy::Creator && self.credentials.is_none() {
            return Err(invalid_config(
                "option `acl`: `creator` needs credentials: write `zookeeper://user:password@..`",
            ));
        }
        if let Some(tls) = &self.tls
            && tls.cert.is_some() != tls.key.is_some()
        {
            return Err(invalid_config(
                "options `tls_cert` and `tls_key` belong together",
            ));
        }
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(missing_feature_error("TLS", TLS_FEATURES));
        }
        let credentials = self.credentials.as_ref();
        let is_sasl = credentials.is_some_and(|it| it.mechanism == Mechanism::SaslDigestMd5);
        if is_sasl && !cfg!(feature = "sasl") {
            return Err(missing_feature_error("SASL", SASL_FEATURES));
        }
        let rule = self.password_rule();
        for host in self.hosts() {
            rule.check(host).map_err(|error| error.on("zookeeper"))?;
        }
        Ok(())
    }
}

/// Checks that the text is `host:port`. `number` is the position in the list of servers.
fn check_server(number: usize, server: &str) -> Result<()> {
    let well_formed = server.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host_is_fine = match bare {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        host_is_fine && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if well_formed {
        return Ok(());
    }
    // The error does not show the text, because it may be a part of a password in a wrong URL.
    Err(invalid_config(format!(
        "number {number} of the servers in the URL is no server: write `host:port`, with commas \
         between several"
    )))
}

fn check_root(root: &str) -> Result<()> {
    let refuse = |why: &str| {
        Err(invalid_config(format!(
            "root path {root:?} {why}: write a path such as /distlock or /team/app"
        )))
    };
    if root == "/" {
        return refuse("would put locks among the ensemble's own nodes");
    }
    if root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return refuse("belongs to the ensemble itself");
    }
    if !root.starts_with('/') {
        return refuse("does not start with /");
    }
    if root.ends_with('/') {
        return refuse("ends with /");
    }
    if root.len() > 512 {
        return refuse("is over 512 bytes long");
    }
    for part in root[1..].split('/') {
        if part.is_empty() || part == "." || part == ".." {
            return refuse("has an empty or relative part");
        }
    }
    // The servers refuse paths with these characters.
    let refused =
        |c: char| c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    if root.contains(refused) {
        return refuse("has a character that ZooKeeper refuses");
    }
    Ok(())
}

/// The error when an option needs a feature that was not compiled in.
fn missing_feature_error(what: &str, features: &str) -> Error {
    Error::new(ErrorKind::Unsupported, not_compiled_in(what, features)).on("zookeeper")
}
