//! The servers, and the options for their use.

use std::{fmt, ops::RangeInclusive, path::PathBuf, time::Duration};

use distlock_backend_kit::{
    DriverOption, PasswordRule, Secret, SharedProvider, TLS_DISABLE, TargetParts, not_compiled_in,
};
use distlock_core::{Error, ErrorKind, Result};
use distlock_wire::DEFAULT_PORT;

use crate::error::{BACKEND, invalid};

/// The option for the time of a request.
pub(crate) const REQUEST_TIMEOUT: DriverOption = DriverOption::new(
    "request_timeout",
    "100 ms to 60 s: how long one request waits for its answer",
    "3s",
);

/// The features of the library that add this backend and TLS.
const TLS_FEATURES: &str = "remote,tls";

const CERTIFICATE: &str = "PEM files of the client's certificate";

pub(crate) const OPTIONS: [DriverOption; 8] = [
    REQUEST_TIMEOUT,
    DriverOption::new(
        "socket",
        "Unix socket of the server on this host, instead of the address",
        "TCP",
    ),
    DriverOption::new(
        "tls",
        "`disable`: a token may leave this machine in clear",
        "",
    ),
    DriverOption::new(
        "tls_ca",
        "PEM file with the authorities to trust",
        "the system's",
    ),
    DriverOption::new("tls_cert", CERTIFICATE, "none"),
    DriverOption::new("tls_key", CERTIFICATE, "none"),
    DriverOption::new(
        "token",
        "what this client may do; the server issues it",
        "none",
    ),
    DriverOption::new(
        "token_file",
        "file with the token, which is read again for each connection",
        "none",
    ),
];

/// The range of the time of a request.
pub(crate) const REQUEST_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);

/// The servers, and the options for their use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteConfig {
    /// Servers of one store. If one cannot be reached, the next one is asked.
    pub hosts: Vec<Host>,
    /// The Unix socket of a server on this host, which is used instead of `hosts`.
    pub socket: Option<PathBuf>,
    /// The files for TLS; `None` = no TLS.
    pub tls: Option<RemoteTls>,
    /// The token that says what this client may do.
    pub token: Option<Secret>,
    /// The file with the token. It is read again for each connection.
    pub token_file: Option<PathBuf>,
    /// Whether a token may leave this machine without TLS (`tls=disable`).
    pub clear_token: bool,
    /// Gives the token for each new connection as a password, instead of those above.
    pub provider: Option<SharedProvider>,
    /// The time for which one request waits for its answer; 100 ms to 60 s, 3 s by default.
    pub request_timeout: Duration,
    /// The time limit of one attempt to connect; 5 s by default.
    pub connect_timeout: Duration,
}

/// The files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteTls {
    /// The authorities to trust; `None` = those of the system.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
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
            return Err(invalid(
                "a lock server has no user and no password: option `token_file` names its token",
            ));
        }
        let hosts = rest.strip_suffix('/').unwrap_or(rest);
        if hosts.contains('/') {
            return Err(invalid("a lock server has no path after its address"));
        }
        let hosts = hosts.split(',').map(Host::parse);
        Ok(Self {
            hosts: hosts.collect::<Result<_>>()?,
            socket: None,
            tls: None,
            token: None,
            token_file: None,
            clear_token: false,
            provider: None,
            request_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
        })
    }

    /// Parses the parts of a target.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option or the mistake in the URL.
    pub(crate) fn from_target(parts: &mut TargetParts) -> Result<Self> {
        let mut config = Self::parse(&parts.body).map_err(|error| parts.wrong(error.message()))?;
        let mut options = std::mem::take(&mut parts.options);
        if let Some(time) = options.take_duration(REQUEST_TIMEOUT.name, REQUEST_TIMEOUTS)? {
            config.request_timeout = time;
        }
        let mut path = |name| options.take(name).map(|given| PathBuf::from(given.value));
        config.socket = path("socket");
        let (ca, cert, key) = (path("tls_ca"), path("tls_cert"), path("tls_key"));
        config.token_file = path("token_file");
        config.token = options.take("token").map(|given| Secret::new(given.value));
        if let Some(given) = options.take("tls") {
            if given.value != TLS_DISABLE {
                return Err(given.wrong("only `disable` is possible; distlocks:// means TLS"));
            }
            config.clear_token = true;
        }
        options.finish(BACKEND)?;
        config.connect_timeout = parts.own_connect_timeout();
        config.provider.clone_from(&parts.credentials);
        let is_tls = parts.scheme == "distlocks";
        let files = RemoteTls {
            ca,
            client: match (cert, key) {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                _ => {
                    return Err(parts.wrong("options `tls_cert` and `tls_key` belong together"));
                }
            },
        };
        if !is_tls && files != RemoteTls::default() {
            return Err(parts.wrong(
                "options `tls_ca`, `tls_cert` and `tls_key` are about TLS: write distlocks://",
            ));
        }
        config.tls = is_tls.then_some(files);
        config.check().map_err(|error| match error.kind() {
            ErrorKind::InvalidConfig => parts.wrong(error.message()),
            _ => error,
        })?;
        Ok(config)
    }

    /// Checks the options together.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the mistake, and [`ErrorKind::Unsupported`] for TLS
    /// in a build without it.
    pub(crate) fn check(&self) -> Result<()> {
        if self.tls.is_some() && !cfg!(feature = "tls") {
            let problem = not_compiled_in("TLS", TLS_FEATURES);
            return Err(Error::new(ErrorKind::Unsupported, problem).on(BACKEND));
        }
        if self.tls.is_some() && self.clear_token {
            return Err(invalid(
                "option `tls` is `disable`, and distlocks:// means TLS",
            ));
        }
        if self.tls.is_some() && self.socket.is_some() {
            return Err(invalid(
                "a Unix socket has no TLS: write distlock:// with `socket`",
            ));
        }
        if self.token.is_some() && self.token_file.is_some() {
            return Err(invalid("options `token` and `token_file` are one too many"));
        }
        let rule = self.token_rule();
        self.hosts
            .iter()
            .try_for_each(|host| rule.check(&host.name))
    }

    /// The rule for the token, which is sent as a password is.
    pub(crate) fn token_rule(&self) -> PasswordRule<'static> {
        let has_token = self.token.is_some() || self.token_file.is_some();
        PasswordRule {
            sent: has_token || self.provider.is_some(),
            encrypted: self.tls.is_some() || self.socket.is_some(),
            clear_allowed: self.clear_token,
            tls_built: cfg!(feature = "tls"),
            features: TLS_FEATURES,
            remedy: "write distlocks:// instead of distlock://",
        }
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
    use distlock_backend_kit::Target;

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

    fn of(url: &str) -> Result<RemoteConfig> {
        let mut parts = Target::new(url).parts()?;
        RemoteConfig::from_target(&mut parts)
    }

    #[test]
    fn options_that_do_not_fit_together_are_refused() {
        for (url, says) in [
            ("distlock://a?tls_ca=/ca.pem", "write distlocks://"),
            ("distlocks://a?tls_cert=/c.pem", "belong together"),
            ("distlocks://a?tls=disable", "means TLS"),
            ("distlock://a?tls=true", "distlocks:// means TLS"),
            ("distlocks://a?socket=/s", "has no TLS"),
            ("distlock://localhost?token=a&token_file=/b", "one too many"),
            ("distlock://a?token=canary", "write distlocks://"),
            ("distlock://localhost,a?token_file=/b", "\"a\" in clear"),
            ("distlock://u:canary@a", "token_file"),
        ] {
            let Err(error) = of(url) else {
                panic!("{url} is accepted");
            };
            // In a build without TLS its features are missing first.
            if cfg!(feature = "tls") || !url.starts_with("distlocks") {
                let kind = ErrorKind::InvalidConfig;
                assert!(
                    error.kind() == kind && error.to_string().contains(says),
                    "{error}"
                );
            }
            assert!(
                !format!("{error} {error:?}").contains("canary"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_token_is_sent_by_tls_and_on_this_host_and_is_not_shown() {
        for url in [
            "distlock://127.0.0.1?token=canary",
            "distlock://a?token=canary&tls=disable",
            "distlock://a?token=canary&socket=/s",
            #[cfg(feature = "tls")]
            "distlocks://a?token=canary",
        ] {
            let config = of(url).unwrap();
            assert!(config.token_rule().sent);
            assert!(!format!("{config:?}").contains("canary"), "{config:?}");
        }
    }
}
