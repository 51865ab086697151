//! The servers, and the options for their use.

use std::{fmt, ops::RangeInclusive, time::Duration};

use distlock_backend_kit::DriverOption;
use distlock_core::Result;
use distlock_wire::DEFAULT_PORT;

use crate::error::invalid;

/// The option for the time of a request.
pub(crate) const REQUEST_TIMEOUT: DriverOption = DriverOption::new(
    "request_timeout",
    "100 ms to 60 s: how long one request waits for its answer",
    "3s",
);

/// The range of the time of a request.
pub(crate) const REQUEST_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);

/// The servers, and the options for their use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteConfig {
    /// Servers of one store. If one cannot be reached, the next one is asked.
    pub hosts: Vec<Host>,
    /// The time for which one request waits for its answer; 100 ms to 60 s, 3 s by default.
    pub request_timeout: Duration,
    /// The time limit of one attempt to connect; 5 s by default.
    pub connect_timeout: Duration,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an IP address, without brackets.
    pub name: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl RemoteConfig {
    /// Parses the part of a URL after its scheme: `//HOST:PORT,HOST:PORT`.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the mistake.
    pub fn parse(body: &str) -> Result<Self> {
        let rest = body.strip_prefix("//").ok_or_else(|| {
            invalid("after the scheme comes `//`, as in distlock://127.0.0.1:7420")
        })?;
        if rest.contains('@') {
            return Err(invalid("a lock server has no user and no password"));
        }
        let hosts = rest.strip_suffix('/').unwrap_or(rest);
        if hosts.contains('/') {
            return Err(invalid("a lock server has no path after its address"));
        }
        let hosts = hosts.split(',').map(Host::parse);
        Ok(Self {
            hosts: hosts.collect::<Result<_>>()?,
            request_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
        })
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, after) = rest
                    .split_once(']')
                    .ok_or_else(|| invalid("an IPv6 address ends with `]`"))?;
                (name, after.strip_prefix(':'))
            }
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        if name.is_empty() {
            return Err(invalid("the address of a server is empty"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .map_err(|_| invalid("the port of a server is no number from 0 to 65535"))?,
        };
        Ok(Self {
            name: name.to_owned(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ErrorKind;

    use super::*;

    #[test]
    fn servers_are_parsed_with_and_without_a_port() {
        let hosts = |body: &str| {
            let config = RemoteConfig::parse(body).unwrap();
            let hosts = config.hosts.iter().map(ToString::to_string);
            hosts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(hosts("//locks"), "locks:7420");
        assert_eq!(hosts("//10.0.0.1:99/"), "10.0.0.1:99");
        assert_eq!(
            hosts("//a:1,b,[::1]:2,[::2]"),
            "a:1 b:7420 [::1]:2 [::2]:7420"
        );
    }

    #[test]
    fn addresses_that_are_none_are_refused() {
        for wrong in [
            "",
            "locks",
            "//",
            "//a,",
            "//a:",
            "//a:x",
            "//a:99999",
            "//[::1",
            "//a/1",
            "//u:p@a",
        ] {
            let error = RemoteConfig::parse(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{wrong}");
        }
    }
}
