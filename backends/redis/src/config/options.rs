//! The options, their defaults, and the checks of their ranges.

use std::{path::PathBuf, time::Duration};

use distlock_backend_kit::{
    Credentials, DriverOption, PasswordRule, Secret, SharedProvider, TLS_DISABLE, TargetParts,
    not_compiled_in, unknown_option,
};
use distlock_core::{Error, ErrorKind, Result, parse_duration};

use crate::{
    config::{
        address::Address,
        endpoint::{Tls, Topology},
    },
    error::{BACKEND, invalid},
};

/// The features of the library that add this backend and TLS.
const TLS_FEATURES: &str = "redis,tls";

/// The servers, and the options for their use. `Debug` hides passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The servers and the relation between them.
    pub topology: Topology,
    /// The ACL user; by default the server's user `default`.
    pub user: Option<String>,
    /// The password of `user`.
    pub password: Option<Secret>,
    /// The number of the database; 0 by default, and always 0 in a cluster.
    pub database: u16,
    /// The TLS options; `None` = no TLS.
    pub tls: Option<Tls>,
    /// Whether a password may leave this machine without TLS (`tls=disable`).
    pub clear_password: bool,
    /// The prefix of every key: 1 to 64 of `A-Z a-z 0-9 _ - . : /`; `distlock:` by default.
    pub prefix: String,
    /// The time for which one request waits for its answer; 100 ms to 60 s, 2 s by default.
    pub timeout: Duration,
    /// The time limit of one attempt to connect; 5 s by default.
    pub connect_timeout: Duration,
    /// The ACL user at the sentinels.
    pub sentinel_user: Option<String>,
    /// The password of `sentinel_user`.
    pub sentinel_password: Option<Secret>,
    /// Gives the credentials for each new connection, instead of those above.
    pub provider: Option<SharedProvider>,
}

impl RedisConfig {
    /// The options of a URL.
    pub const OPTIONS: [DriverOption; 12] = {
        const CREDENTIALS: &str = "used instead of those in the URL";
        const CERTIFICATE: &str = "PEM files of the client's certificate";
        const SENTINELS: &str = "credentials for the sentinels";
        [
            DriverOption::new("user", CREDENTIALS, "none"),
            DriverOption::new("password", CREDENTIALS, "none"),
            DriverOption::new("db", "number of the database, instead of the path", "0"),
            DriverOption::new(
                "prefix",
                "before every key: 1 to 64 of `A-Z a-z 0-9 _ - . : /`",
                "distlock:",
            ),
            DriverOption::new(
                "request_timeout",
                "100 ms to 60 s: how long one request waits for its answer",
                "2s",
            ),
            DriverOption::new(
                "tls",
                "`true`: TLS to sentinels and clusters; `disable`: no TLS, and a password may \
                 leave this machine in clear",
                "false",
            ),
            DriverOption::new(
                "tls_ca",
                "PEM file with the authorities to trust",
                "the system's",
            ),
            DriverOption::new("tls_cert", CERTIFICATE, "none"),
            DriverOption::new("tls_key", CERTIFICATE, "none"),
            DriverOption::new("sentinel_user", SENTINELS, "none"),
            DriverOption::new("sentinel_password", SENTINELS, "none"),
            DriverOption::CONNECT_TIMEOUT,
        ]
    };

    /// Creates the options for these servers, with the default of every other option.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            user: None,
            password: None,
            database: 0,
            tls: None,
            clear_password: false,
            prefix: "distlock:".into(),
            timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            sentinel_user: None,
            sentinel_password: None,
            provider: None,
        }
    }

    /// Parses a whole URL: `redis://user:password@host:6379/0?prefix=app:`, `rediss://..`,
    /// `redis+sentinel://h1,h2,h3/primary`, `redis+cluster://h1,h2`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the mistake.
    pub fn from_url(url: &str) -> Result<Self> {
        let (scheme, rest) = url
            .split_once(':')
            .ok_or_else(|| invalid("not a URL: it has no scheme, as in redis://127.0.0.1:6379"))?;
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options: Vec<_> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        Self::from_url_parts(scheme, body, &options)
    }

    /// Parses the parts of a URL: the scheme, the text between the scheme's colon and the query,
    /// and the decoded options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option. For an unknown option it also names the
    /// most similar known one.
    pub fn from_url_parts(scheme: &str, body: &str, options: &[(String, String)]) -> Result<Self> {
        Self::parse(scheme, body, options, None)
    }

    /// Parses a target, like [`RedisConfig::from_url_parts`].
    pub(crate) fn from_target(parts: &TargetParts, options: &[(String, String)]) -> Result<Self> {
        Self::parse(
            &parts.scheme,
            &parts.body,
            options,
            parts.credentials.clone(),
        )
    }

    fn parse(
        scheme: &str,
        body: &str,
        options: &[(String, String)],
        provider: Option<SharedProvider>,
    ) -> Result<Self> {
        let address = Address::parse(body)?;
        let (topology, path_database) = address.topology(scheme)?;
        let mut config = Self::new(topology);
        config.provider = provider;
        config.user = address.user;
        config.password = address.password.map(Secret::new);
        if let Some(database) = path_database {
            config.database = database;
        }
        if scheme == "rediss" {
            config.tls = Some(Tls::default());
        }
        config.apply(scheme, options)?;
        config.check()?;
        Ok(config)
    }

    fn apply(&mut self, scheme: &str, options: &[(String, String)]) -> Result<()> {
        let (mut cert, mut key, mut without_tls) = (None, None, None);
        for (name, value) in options {
            match name.as_str() {
                "tls_ca" => self.tls_option(name)?.ca = Some(value.into()),
                "tls_cert" => {
                    self.tls_option(name)?;
                    cert = Some(PathBuf::from(value));
                }
                "connect_timeout" => self.connect_timeout = duration(name, value)?,
                "db" => {
                    self.database = value.parse().map_err(|_| {
                        invalid(format!("option `db`: {value:?} is no number of a database"))
                    })?;
                }
                "tls_key" => {
                    self.tls_option(name)?;
                    key = Some(PathBuf::from(value));
                }
                "password" => self.password = Some(Secret::new(value.clone())),
                "prefix" => self.prefix.clone_from(value),
                "request_timeout" => self.timeout = duration(name, value)?,
                "sentinel_password" => self.sentinel_password = Some(Secret::new(value.clone())),
                "sentinel_user" => self.sentinel_user = Some(value.clone()),
                "tls" => match (value.as_str(), scheme) {
                    ("true", "redis") => {
                        return Err(invalid("option `tls`: write rediss:// instead of redis://"));
                    }
                    ("true", _) => {
                        self.tls.get_or_insert_default();
                    }
                    ("false" | TLS_DISABLE, "rediss") => {
                        return Err(invalid("option `tls`: write redis:// instead of rediss://"));
                    }
                    ("false", _) => without_tls = Some(value),
                    (TLS_DISABLE, _) => {
                        without_tls = Some(value);
                        self.clear_password = true;
                    }
                    _ => {
                        return Err(invalid(format!(
                            "option `tls`: {value:?} is none of `true`, `false` and `disable`"
                        )));
                    }
                },
                "user" => self.user = Some(value.clone()),
                _ => return Err(unknown_option(name, BACKEND, &Self::OPTIONS)),
            }
        }
        match (cert, key) {
            (None, None) => {}
            (Some(cert), Some(key)) => {
                self.tls.get_or_insert_default().client = Some((cert, key));
            }
            (Some(_), None) => {
                return Err(invalid("option `tls_cert` needs option `tls_key` as well"));
            }
            (None, Some(_)) => {
                return Err(invalid("option `tls_key` needs option `tls_cert` as well"));
            }
        }
        if let (Some(value), Some(_)) = (without_tls, &self.tls) {
            return Err(invalid(format!(
                "option `tls` is `{value}`, and `tls_ca`, `tls_cert` and `tls_key` are about TLS: \
                 leave out one of the two"
            )));
        }
        Ok(())
    }

    /// Returns the TLS options. For sentinels and a cluster this switches TLS on; for a single
    /// server it is an error unless the URL has the scheme `rediss`.
    fn tls_option(&mut self, name: &str) -> Result<&mut Tls> {
        if let (Topology::Single(_), None) = (&self.topology, &self.tls) {
            return Err(invalid(format!(
                "option `{name}` is about TLS, and redis:// does not use it: write rediss://"
            )));
        }
        Ok(self.tls.get_or_insert_default())
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option.
    pub fn check(&self) -> Result<()> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(plain) {
            return Err(invalid(format!(
                "option `prefix`: {:?} is not 1 to 64 of A-Z a-z 0-9 _ - . : /",
                self.prefix
            )));
        }
        let range = Duration::from_millis(100)..=Duration::from_secs(60);
        for (option, value) in [
            ("request_timeout", self.timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            if !range.contains(&value) {
                return Err(invalid(format!(
                    "option `{option}`: {value:?} is outside 100 ms to 60 s"
                )));
            }
        }
        if self.user.is_some() && self.password.is_none() && self.provider.is_none() {
            return Err(invalid("a user name without a password"));
        }
        let is_sentinel = matches!(self.topology, Topology::Sentinel { .. });
        if !is_sentinel && (self.sentinel_user.is_some() || self.sentinel_password.is_some()) {
            return Err(invalid(
                "options `sentinel_user` and `sentinel_password` are for redis+sentinel://",
            ));
        }
        if self.sentinel_user.is_some() && self.sentinel_password.is_none() {
            return Err(invalid(
                "option `sentinel_user` needs option `sentinel_password` as well",
            ));
        }
        if matches!(self.topology, Topology::Cluster(_)) && self.database != 0 {
            return Err(invalid("a cluster has database 0 only"));
        }
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(
                Error::new(ErrorKind::Unsupported, not_compiled_in("TLS", TLS_FEATURES))
                    .on(BACKEND),
            );
        }
        self.check_passwords()
    }

    /// Returns the credentials for the store in these options.
    pub(crate) fn written_credentials(&self) -> Credentials {
        Credentials::written(self.user.clone(), self.password.clone())
    }

    /// Returns the credentials for the sentinels in these options.
    pub(crate) fn written_sentinel_credentials(&self) -> Credentials {
        Credentials::written(self.sentinel_user.clone(), self.sentinel_password.clone())
    }

    /// Refuses a password that would travel in clear over a network to a server in the URL.
    fn check_passwords(&self) -> Result<()> {
        let (sent, hosts) = match &self.topology {
            Topology::Single(endpoint) => (self.password.is_some(), std::slice::from_ref(endpoint)),
            // Before the sentinels answer, the primary's host is unknown. Their own hosts are the
            // best guess.
            Topology::Sentinel { sentinels, .. } => (
                self.password.is_some() || self.sentinel_password.is_some(),
                &**sentinels,
            ),
            Topology::Cluster(seeds) => (self.password.is_some(), &**seeds),
        };
        let rule = self.password_rule(sent);
        for endpoint in hosts {
            rule.check(&endpoint.host)
                .map_err(|error| error.on(BACKEND))?;
        }
        Ok(())
    }

    /// Returns the rule for passwords. `sent` says whether a password is sent.
    pub(crate) fn password_rule(&self, sent: bool) -> PasswordRule<'static> {
        PasswordRule {
            sent,
            encrypted: self.tls.is_some(),
            clear_allowed: self.clear_password,
            tls_built: cfg!(feature = "tls"),
            features: TLS_FEATURES,
            remedy: match self.topology {
                Topology::Single(_) => "write rediss:// instead of redis:// for TLS",
                Topology::Sentinel { .. } | Topology::Cluster(_) => {
                    "set the option `tls` to `true` for TLS"
                }
            },
        }
    }
}

fn duration(option: &str, value: &str) -> Result<Duration> {
    parse_duration(value)
        .map_err(|error| invalid(format!("option `{option}`: {}", error.message())))
}
