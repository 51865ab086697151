//! Parses the part of a URL before its options.
//!
//! Errors never show the text that is wrong, because it may be a part of a password.

use distlock_backend_kit::{has_whole_escapes, percent_decode};
use distlock_core::Result;

use crate::{
    config::endpoint::{Endpoint, Topology},
    error::invalid,
};

/// The parts of `//user:password@host:port,host:port/path`.
pub(super) struct Address {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    hosts: String,
    path: String,
}

impl Address {
    pub(super) fn parse(body: &str) -> Result<Self> {
        let rest = body
            .strip_prefix("//")
            .ok_or_else(|| invalid("after the scheme comes `//`, as in redis://127.0.0.1:6379"))?;
        // A password may contain anything but `@`, so the last `@` ends it.
        let (userinfo, rest) = match rest.rsplit_once('@') {
            Some((userinfo, rest)) => (Some(userinfo), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let decoded = |text: &str| {
            decode(text)
                .ok_or_else(|| invalid("user name or password is not valid percent-encoded UTF-8"))
        };
        let (user, password) = match userinfo.map(|it| it.split_once(':').unwrap_or((it, ""))) {
            Some((user, password)) => (Some(decoded(user)?), Some(decoded(password)?)),
            None => (None, None),
        };
        Ok(Self {
            user: user.filter(|text| !text.is_empty()),
            password: password.filter(|text| !text.is_empty()),
            hosts: hosts.to_owned(),
            path: decode(path).ok_or_else(|| invalid("the path is not UTF-8"))?,
        })
    }

    /// Returns the servers, and the database number if the path is one.
    pub(super) fn topology(&self, scheme: &str) -> Result<(Topology, Option<u16>)> {
        Ok(match scheme {
            "redis" | "rediss" => {
                let mut endpoints = self.endpoints(6379)?;
                if endpoints.len() > 1 {
                    return Err(invalid(
                        "several hosts: write redis+sentinel:// or redis+cluster://",
                    ));
                }
                let database = self.database("the path is the number of a database")?;
                (Topology::Single(endpoints.swap_remove(0)), database)
            }
            "redis+sentinel" => {
                if self.path.is_empty() {
                    return Err(invalid(
                        "the path is the primary's name, as in redis+sentinel://h1,h2,h3/mymaster",
                    ));
                }
                let sentinels = self.endpoints(26379)?;
                let primary = self.path.clone();
                (Topology::Sentinel { sentinels, primary }, None)
            }
            "redis+cluster" => {
                let database = self.database("a cluster has database 0 only")?;
                // All seeds are asked at once. A seed that is written twice would wait for itself,
                // because a process makes one attempt at a time at a silent server.
                let mut seeds: Vec<Endpoint> = Vec::new();
                for seed in self.endpoints(6379)? {
                    if !seeds.contains(&seed) {
                        seeds.push(seed);
                    }
                }
                (Topology::Cluster(seeds), database)
            }
            _ => {
                return Err(invalid(format!(
                    "unknown scheme {scheme:?}: known are redis, rediss, redis+sentinel and \
                     redis+cluster"
                )));
            }
        })
    }

    fn endpoints(&self, default_port: u16) -> Result<Vec<Endpoint>> {
        // The error does not show the text, which may be a password without its `@`.
        let refused = |number: usize| {
            invalid(format!(
                "the URL's host number {number} is no host, host:port or [IPv6]:port"
            ))
        };
        (1..)
            .zip(self.hosts.split(','))
            .map(|(number, host)| {
                let bare = !host.starts_with('[');
                if host.contains('#') || bare && host.matches(':').count() > 1 {
                    return Err(refused(number));
                }
                Endpoint::parse(host, default_port).ok_or_else(|| refused(number))
            })
            .collect()
    }

    fn database(&self, rule: &str) -> Result<Option<u16>> {
        if self.path.is_empty() {
            return Ok(None);
        }
        match self.path.parse() {
            Ok(number) => Ok(Some(number)),
            // The error does not show the text, which may be a part of a password.
            Err(_) => Err(invalid(format!(
                "the path after the host is no database: {rule}"
            ))),
        }
    }
}

/// Decodes a part of the URL. `None` for a broken escape, and for a result that is not UTF-8.
fn decode(text: &str) -> Option<String> {
    has_whole_escapes(text)
        .then(|| percent_decode(text))
        .flatten()
}
