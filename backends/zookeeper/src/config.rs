//! Options of a ZooKeeper store, checked once.

use std::{fmt, path::PathBuf, time::Duration};

use distlock_core::{
    Error, ErrorKind, PasswordRule, Result, TLS_DISABLE, not_compiled_in, parse_duration,
};

/// The features of the library that bring this backend with TLS, and with SASL.
const TLS_FEATURES: &str = "zookeeper,tls";
const SASL_FEATURES: &str = "zookeeper,sasl";

/// Which ensemble, where in its tree, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZooKeeperConfig {
    /// The servers, each `host:port`.
    pub servers: Vec<String>,
    /// The node under which everything is kept, `/distlock` unless told otherwise. It is created when it is absent. Never
    /// `/` nor anything under `/zookeeper`.
    pub root: String,
    /// The session timeout to ask for, 500 ms to 1 h, 10 s unless told otherwise. The ensemble may grant another one (2 to
    /// 20 of its ticks, by default). It bounds how long a lock outlives its holder, and two thirds of it how long a holder
    /// may trust its lock without hearing from the ensemble.
    pub session_timeout: Duration,
    /// The servers' `tickTime`. Needed only where `minSessionTimeout` of the servers is less than
    /// two ticks: else it is found out from that. A session must last at least two ticks.
    pub tick_time: Option<Duration>,
    /// How long one operation waits for its answer; 100 ms to 5 s, 4 s unless told otherwise.
    pub request_timeout: Duration,
    /// How long opening waits for a session; 5 s unless told otherwise.
    pub connect_timeout: Duration,
    /// Who we are.
    pub credentials: Option<Credentials>,
    /// Who may touch what we create; unless told otherwise [`AclPolicy::Creator`] with credentials, else [`AclPolicy::Open`].
    pub acl: AclPolicy,
    /// TLS, when it is wanted.
    pub tls: Option<TlsFiles>,
    /// Whether a password of ZooKeeper's `digest` may leave this machine without TLS
    /// (`tls=disable`).
    pub clear_password: bool,
    /// How long the mark of a deleted record stays before it is removed; 1 s to 365 days, 1 h unless told otherwise, and at
    /// least twice the session timeout: a write that is still on its way must find the mark.
    pub reap_after: Duration,
}

/// A user, a password, and how they are shown to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password. It goes over the wire as it is unless TLS or SASL is used.
    pub password: Secret,
    /// How they are shown.
    pub mechanism: Mechanism,
}

/// How credentials are shown to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// ZooKeeper's `digest` scheme. The server accepts any pair; nodes say which one may touch them.
    #[default]
    Digest,
    /// SASL with DIGEST-MD5. The server knows its users and refuses others.
    SaslDigestMd5,
}

/// Who may touch the nodes we create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AclPolicy {
    /// Those who show the same credentials.
    Creator,
    /// Everybody who can connect.
    Open,
}

/// Where the certificates are, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may vouch for the servers.
    pub ca: PathBuf,
    /// Our own certificate, when the servers want one.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl ZooKeeperConfig {
    /// The names of the options, as in a URL.
    pub const OPTIONS: [&'static str; 10] = [
        "acl",
        "reap_after",
        "request_timeout",
        "sasl",
        "session_timeout",
        "tick_time",
        "tls",
        "tls_ca",
        "tls_cert",
        "tls_key",
    ];

    /// The standard port.
    pub const PORT: u16 = 2181;

    /// Servers (`host` or `host:port`) with everything else as it is unless told otherwise.
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            root: "/distlock".into(),
            session_timeout: Duration::from_secs(10),
            tick_time: None,
            request_timeout: Duration::from_secs(4),
            connect_timeout: Duration::from_secs(5),
            credentials: None,
            acl: AclPolicy::Open,
            tls: None,
            clear_password: false,
            reap_after: Duration::from_secs(3600),
        }
    }

    /// From the parts of a URL `zookeeper://user:password@h1:2181,h2:2181/root?option=value&..`: what stands between the
    /// scheme's colon and the question mark, and the decoded options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option, and for an unknown one the nearest known name.
    pub fn from_url_parts(body: &str, options: &[(String, String)]) -> Result<Self> {
        let body = body
            .strip_prefix("//")
            .ok_or_else(|| invalid("a ZooKeeper URL starts with `zookeeper://host`"))?;
        let (authority, root) = match body.find('/') {
            Some(at) => (&body[..at], Some(&body[at..])),
            None => (body, None),
        };
        let (user, servers) = match authority.rsplit_once('@') {
            Some((user, servers)) => (Some(user), servers),
            None => (None, authority),
        };
        let mut config = Self::new(servers.split(',').map(with_port));
        if let Some(root) = root {
            config.root = percent_decode("the root path", root)?;
        }
        if let Some(user) = user {
            // The text is a secret: no part of it goes into a message.
            let (user, password) = user.split_once(':').ok_or_else(|| {
                invalid("the user in the URL has no password: write `user:password@`")
            })?;
            config.credentials = Some(Credentials {
                user: percent_decode("the user", user)?,
                password: Secret(percent_decode("the password", password)?),
                mechanism: Mechanism::Digest,
            });
            config.acl = AclPolicy::Creator;
        }
        let (mut ca, mut cert, mut key) = (None, None, None);
        for (name, value) in options {
            match name.as_str() {
                "acl" => config.acl = acl(value)?,
                "reap_after" => config.reap_after = duration(name, value)?,
                "request_timeout" => config.request_timeout = duration(name, value)?,
                "sasl" => config.use_sasl(value)?,
                "session_timeout" => config.session_timeout = duration(name, value)?,
                "tick_time" => config.tick_time = Some(duration(name, value)?),
                "tls" if value == TLS_DISABLE => config.clear_password = true,
                "tls" => {
                    return Err(invalid(format!(
                        "option `tls`: {value:?} is not `disable`; for TLS set `tls_ca`"
                    )));
                }
                "tls_ca" => ca = Some(PathBuf::from(value)),
                "tls_cert" => cert = Some(PathBuf::from(value)),
                "tls_key" => key = Some(PathBuf::from(value)),
                _ => return Err(unknown_option(name)),
            }
        }
        config.tls = match (ca, cert, key) {
            (None, None, None) => None,
            (None, ..) => {
                return Err(invalid(
                    "option `tls_ca` is missing: it names the authorities that may vouch for the servers",
                ));
            }
            (Some(ca), cert, key) => Some(TlsFiles { ca, cert, key }),
        };
        if config.clear_password && config.tls.is_some() {
            return Err(invalid(
                "option `tls` is `disable`, and `tls_ca` asks for TLS: leave out one of the two",
            ));
        }
        config.check()?;
        Ok(config)
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option.
    pub fn check(&self) -> Result<()> {
        for (number, server) in (1..).zip(&self.servers) {
            check_server(number, server)?;
        }
        if self.servers.is_empty() {
            return Err(invalid("no server is named"));
        }
        check_root(&self.root)?;
        let range = |option: &str, value: Duration, min: Duration, max: Duration| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(invalid(format!(
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
            return Err(invalid(format!(
                "option `reap_after`: {:?} is less than twice the session timeout, {least:?}",
                self.reap_after
            )));
        }
        if self.acl == AclPolicy::Creator && self.credentials.is_none() {
            return Err(invalid(
                "option `acl`: `creator` needs credentials: write `zookeeper://user:password@..`",
            ));
        }
        if let Some(tls) = &self.tls
            && tls.cert.is_some() != tls.key.is_some()
        {
            return Err(invalid("options `tls_cert` and `tls_key` belong together"));
        }
        if self.tls.is_some() && !cfg!(feature = "tls") {
            return Err(missing_feature("TLS", TLS_FEATURES));
        }
        let credentials = self.credentials.as_ref();
        let is_sasl = credentials.is_some_and(|it| it.mechanism == Mechanism::SaslDigestMd5);
        if is_sasl && !cfg!(feature = "sasl") {
            return Err(missing_feature("SASL", SASL_FEATURES));
        }
        let rule = self.password_rule();
        for host in self.hosts() {
            rule.check(host).map_err(|error| error.on("zookeeper"))?;
        }
        Ok(())
    }

    /// The servers without their ports.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        let servers = self.servers.iter();
        servers.map(|server| server.rsplit_once(':').map_or(&**server, |(host, _)| host))
    }

    /// How the password is sent, if there is one. SASL proves that we know it without sending it.
    pub(crate) fn password_rule(&self) -> PasswordRule<'static> {
        let credentials = self.credentials.as_ref();
        PasswordRule {
            sent: credentials.is_some_and(|it| it.mechanism == Mechanism::Digest),
            encrypted: self.tls.is_some(),
            clear_allowed: self.clear_password,
            tls_built: cfg!(feature = "tls"),
            features: TLS_FEATURES,
            remedy: "for TLS name the authorities that may vouch for the servers by the option \
                     `tls_ca`, and the servers' ports for TLS",
        }
    }

    fn use_sasl(&mut self, value: &str) -> Result<()> {
        if value != "digest-md5" {
            return Err(invalid(format!(
                "option `sasl`: {value:?} is unknown: `digest-md5` is"
            )));
        }
        let Some(credentials) = &mut self.credentials else {
            return Err(invalid(
                "option `sasl` needs credentials: write `zookeeper://user:password@..`",
            ));
        };
        credentials.mechanism = Mechanism::SaslDigestMd5;
        Ok(())
    }
}

fn with_port(server: &str) -> String {
    let after_address = server.rsplit(']').next().unwrap_or(server);
    if after_address.contains(':') {
        server.to_owned()
    } else {
        format!("{server}:{}", ZooKeeperConfig::PORT)
    }
}

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
    // It is not shown: it may be a password without its `@`.
    Err(invalid(format!(
        "what the URL has as number {number} of the servers is no server: write `host:port`, and commas between several"
    )))
}

fn check_root(root: &str) -> Result<()> {
    let refuse = |why: &str| {
        Err(invalid(format!(
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
    // What the servers refuse.
    let refused =
        |c: char| c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    if root.contains(refused) {
        return refuse("has a character that ZooKeeper refuses");
    }
    Ok(())
}

fn acl(value: &str) -> Result<AclPolicy> {
    match value {
        "creator" => Ok(AclPolicy::Creator),
        "open" => Ok(AclPolicy::Open),
        _ => Err(invalid(format!(
            "option `acl`: {value:?} is unknown: `creator` and `open` are known"
        ))),
    }
}

fn duration(option: &str, value: &str) -> Result<Duration> {
    parse_duration(value)
        .map_err(|error| invalid(format!("option `{option}`: {}", error.message())))
}

fn percent_decode(what: &str, text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let escape = (*first == b'%').then(|| {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        match escape {
            None => bytes.push(*first),
            Some(Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            Some(None) => return Err(invalid(format!("{what} has a broken %-escape"))),
        }
    }
    String::from_utf8(bytes).map_err(|_| invalid(format!("{what} is not UTF-8")))
}

fn unknown_option(name: &str) -> Error {
    let nearest = ZooKeeperConfig::OPTIONS
        .into_iter()
        .max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)))
        .filter(|known| strsim::jaro_winkler(name, known) > 0.75);
    let hint = match nearest {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known are {}", ZooKeeperConfig::OPTIONS.join(", ")),
    };
    invalid(format!("unknown option {name:?} for zookeeper: {hint}"))
}

fn missing_feature(what: &str, features: &str) -> Error {
    Error::new(ErrorKind::Unsupported, not_compiled_in(what, features)).on("zookeeper")
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message).on("zookeeper")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str, options: &[(&str, &str)]) -> Result<ZooKeeperConfig> {
        let options: Vec<_> = options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        ZooKeeperConfig::from_url_parts(body, &options)
    }

    #[test]
    fn what_a_url_says() {
        let config = parse(
            "//app:s%40cret@h1:2182,h2,[::1]/team/app",
            &[
                ("session_timeout", "1m"),
                ("request_timeout", "500ms"),
                ("tls", "disable"),
            ],
        )
        .unwrap();
        assert_eq!(config.servers, ["h1:2182", "h2:2181", "[::1]:2181"]);
        assert_eq!(config.root, "/team/app");
        assert_eq!(config.session_timeout, Duration::from_secs(60));
        assert_eq!(config.acl, AclPolicy::Creator);
        let credentials = config.credentials.unwrap();
        assert_eq!(credentials.user, "app");
        assert_eq!(credentials.password.expose(), "s@cret");
        let plain = parse("//h1", &[]).unwrap();
        assert_eq!(
            (plain.root.as_str(), plain.acl),
            ("/distlock", AclPolicy::Open)
        );
    }

    #[test]
    fn what_is_wrong_is_named_and_secrets_are_not() {
        for (body, options, says) in [
            ("//h1/", vec![], "among the ensemble's own nodes"),
            ("//h1/zookeeper", vec![], "belongs to the ensemble"),
            ("//h1/zookeeper/config", vec![], "belongs to the ensemble"),
            ("//h1/app/", vec![], "ends with /"),
            ("//h1/a//b", vec![], "empty or relative"),
            ("//h1/a/../zookeeper", vec![], "empty or relative"),
            ("//h1/%00", vec![], "refuses"),
            ("//h1/%zz", vec![], "%-escape"),
            ("//", vec![], "no server"),
            ("//h1:0", vec![], "no server"),
            ("//h1,,h2", vec![], "no server"),
            ("//h1,u:hunter2", vec![], "number 2 of the servers"),
            ("h1", vec![], "zookeeper://host"),
            ("//hunter2@h1", vec![], "no password"),
            ("//h1", vec![("session_timeout", "10")], "has no unit"),
            ("//h1", vec![("session_timeout", "1ms")], "outside"),
            ("//h1", vec![("tick_time", "6s")], "outside 1ms to 5s"),
            ("//h1", vec![("reap_after", "15s")], "twice the session"),
            (
                "//h1",
                vec![("session-timeout", "10s")],
                "did you mean `session_timeout`",
            ),
            ("//h1", vec![("acl", "creator")], "needs credentials"),
            ("//h1", vec![("acl", "everyone")], "`creator` and `open`"),
            ("//h1", vec![("sasl", "digest-md5")], "needs credentials"),
            ("//u:hunter2@h1", vec![("sasl", "plain")], "unknown"),
            ("//h1", vec![("tls_cert", "x.pem")], "tls_ca"),
            ("//h1", vec![("tls", "true")], "for TLS set `tls_ca`"),
            (
                "//h1",
                vec![("tls", "disable"), ("tls_ca", "x.pem")],
                "leave out one",
            ),
        ] {
            let error = parse(body, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{body}: {error}");
            assert!(error.to_string().contains(says), "{body}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let config = parse("//u:hunter2@localhost", &[]).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn a_password_leaves_this_machine_through_tls_or_on_purpose() {
        let error = parse("//u:hunter2@127.0.0.1,db.example:2182", &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let said = error.to_string();
        for word in ["\"db.example\"", "`tls` to `disable`", "`tls_ca`"] {
            assert!(said.contains(word), "{said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
        let add = not_compiled_in("TLS", "zookeeper,tls");
        assert_eq!(said.contains(&add), !cfg!(feature = "tls"), "{said}");
        for (body, options) in [
            ("//db.example", vec![]),
            ("//u:hunter2@localhost,[::1]:2182,127.0.0.1", vec![]),
            ("//u:hunter2@db.example", vec![("tls", "disable")]),
            #[cfg(feature = "sasl")]
            ("//u:hunter2@db.example", vec![("sasl", "digest-md5")]),
            #[cfg(feature = "tls")]
            ("//u:hunter2@db.example", vec![("tls_ca", "ca.pem")]),
        ] {
            parse(body, &options).unwrap();
        }
    }
}
