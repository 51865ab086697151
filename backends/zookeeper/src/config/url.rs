//! Reads the options of a ZooKeeper store from the parts of a URL.
//!
//! No message may contain the user's part of the URL, because that part includes the password.

use std::{path::PathBuf, time::Duration};

use distlock_backend_kit::{
    Secret, SharedProvider, TLS_DISABLE, TargetParts, has_whole_escapes, percent_decode,
    unknown_option,
};
use distlock_core::{Result, parse_duration};

use super::options::{AclPolicy, Credentials, Mechanism, TlsFiles, ZooKeeperConfig};
use crate::error::invalid_config;

impl ZooKeeperConfig {
    /// Reads the parts of a URL `zookeeper://user:password@h1:2181,h2:2181/root?option=value&..`:
    /// the text between the scheme's colon and the question mark, and the decoded options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the option.
    /// For an unknown option it names the nearest known one.
    pub fn from_url_parts(body: &str, options: &[(String, String)]) -> Result<Self> {
        Self::parse(body, options, None)
    }

    /// Reads a target, like [`ZooKeeperConfig::from_url_parts`].
    pub(crate) fn from_target(parts: &TargetParts, options: &[(String, String)]) -> Result<Self> {
        Self::parse(&parts.body, options, parts.credentials.clone())
    }

    fn parse(
        body: &str,
        options: &[(String, String)],
        provider: Option<SharedProvider>,
    ) -> Result<Self> {
        let body = body
            .strip_prefix("//")
            .ok_or_else(|| invalid_config("a ZooKeeper URL starts with `zookeeper://host`"))?;
        let (authority, root) = match body.find('/') {
            Some(at) => (&body[..at], Some(&body[at..])),
            None => (body, None),
        };
        let (user, servers) = match authority.rsplit_once('@') {
            Some((user, servers)) => (Some(user), servers),
            None => (None, authority),
        };
        let mut config = Self::new(servers.split(',').map(with_default_port));
        if let Some(root) = root {
            config.root = decode("the root path", root)?;
        }
        if let Some(user) = user {
            // The text contains a password, so no error may show a part of it.
            let (user, password) = match user.split_once(':') {
                Some(both) => both,
                None if provider.is_some() => (user, ""),
                None => {
                    return Err(invalid_config(
                        "the user in the URL has no password: write `user:password@`",
                    ));
                }
            };
            config.credentials = Some(Credentials {
                user: decode("the user", user)?,
                password: Secret::new(decode("the password", password)?),
                mechanism: Mechanism::Digest,
            });
            config.acl = AclPolicy::Creator;
        }
        config.provider = provider;
        let (mut ca, mut cert, mut key) = (None, None, None);
        for (name, value) in options {
            match name.as_str() {
                "acl" => config.acl = parse_acl(value)?,
                "reap_after" => config.reap_after = parse_duration_option(name, value)?,
                "request_timeout" => config.request_timeout = parse_duration_option(name, value)?,
                "sasl" => config.use_sasl(value)?,
                "session_timeout" => config.session_timeout = parse_duration_option(name, value)?,
                "tick_time" => config.tick_time = Some(parse_duration_option(name, value)?),
                "tls" if value == TLS_DISABLE => config.clear_password = true,
                "tls" => {
                    return Err(invalid_config(format!(
                        "option `tls`: {value:?} is not `disable`; for TLS set `tls_ca`"
                    )));
                }
                "tls_ca" => ca = Some(PathBuf::from(value)),
                "tls_cert" => cert = Some(PathBuf::from(value)),
                "tls_key" => key = Some(PathBuf::from(value)),
                _ => return Err(unknown_option(name, "zookeeper", &ZooKeeperConfig::OPTIONS)),
            }
        }
        config.tls = match (ca, cert, key) {
            (None, None, None) => None,
            (None, ..) => {
                return Err(invalid_config(
                    "option `tls_ca` is missing: it names the authorities that may vouch for the \
                     servers",
                ));
            }
            (Some(ca), cert, key) => Some(TlsFiles { ca, cert, key }),
        };
        if config.clear_password && config.tls.is_some() {
            return Err(invalid_config(
                "option `tls` is `disable`, and `tls_ca` asks for TLS: leave out one of the two",
            ));
        }
        config.check()?;
        Ok(config)
    }

    /// Sets SASL as the mechanism of the credentials.
    fn use_sasl(&mut self, value: &str) -> Result<()> {
        if value != "digest-md5" {
            return Err(invalid_config(format!(
                "option `sasl`: {value:?} is unknown: `digest-md5` is"
            )));
        }
        let Some(credentials) = &mut self.credentials else {
            return Err(invalid_config(
                "option `sasl` needs credentials: write `zookeeper://user:password@..`",
            ));
        };
        credentials.mechanism = Mechanism::SaslDigestMd5;
        Ok(())
    }
}

/// Appends the standard port to a server that has none.
fn with_default_port(server: &str) -> String {
    let after_address = server.rsplit(']').next().unwrap_or(server);
    if after_address.contains(':') {
        server.to_owned()
    } else {
        format!("{server}:{}", ZooKeeperConfig::PORT)
    }
}

fn parse_acl(value: &str) -> Result<AclPolicy> {
    match value {
        "creator" => Ok(AclPolicy::Creator),
        "open" => Ok(AclPolicy::Open),
        _ => Err(invalid_config(format!(
            "option `acl`: {value:?} is unknown: `creator` and `open` are known"
        ))),
    }
}

fn parse_duration_option(option: &str, value: &str) -> Result<Duration> {
    parse_duration(value)
        .map_err(|error| invalid_config(format!("option `{option}`: {}", error.message())))
}

/// Decodes `%xx` in a part of the URL. An error names the part as `what` and does not show its
/// text.
fn decode(what: &str, text: &str) -> Result<String> {
    if !has_whole_escapes(text) {
        return Err(invalid_config(format!("{what} has a broken %-escape")));
    }
    percent_decode(text).ok_or_else(|| invalid_config(format!("{what} is not UTF-8")))
}
