//! The store to open, with its options.

use std::{fmt, ops::RangeInclusive, path::Path, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result, SystemClock};

use crate::{
    credentials::{CredentialProvider, Credentials, SharedProvider},
    mask::{mask, names_hosts},
    options::{Options, Origin},
    password::Secret,
    percent::{percent_decode, percent_encode_path},
};

/// A backend URL with its options: the store to open.
///
/// A `&str` and the facade's `Config` convert into a target. `Debug` hides secrets.
#[derive(Clone)]
pub struct Target {
    url: String,
    origin: Origin,
    options: Vec<(String, String, Origin)>,
    connect_timeout: Option<Duration>,
    credentials: Option<SharedProvider>,
    clock: Arc<dyn Clock>,
    records: Option<Box<Self>>,
}

/// The parts of a target, checked as far as possible without knowing the backend.
///
/// A driver takes its options out of `options`, and parses the rest of the URL in `body`.
/// `Debug` hides secrets.
#[derive(Clone)]
#[non_exhaustive]
pub struct TargetParts {
    /// The scheme in lower case, without its colon.
    pub scheme: String,
    /// The text between the scheme's colon and the query.
    pub body: String,
    /// The options from the query and from [`Target::option`], without `connect_timeout`.
    pub options: Options,
    /// The longest time that opening may take, 100 ms to 60 s.
    pub connect_timeout: Duration,
    /// The provider of credentials, from [`Target::credentials`]. Its answers replace the user and
    /// the password in `body` and `options`.
    pub credentials: Option<SharedProvider>,
    /// The clock of the store's client.
    pub clock: Arc<dyn Clock>,
    origin: Origin,
    masked_url: String,
}

/// The credentials that a URL and its options have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrittenCredentials {
    /// The scheme, the hosts and the path: the store for which the credentials were written.
    pub address: String,
    /// The credentials for the store.
    pub store: Credentials,
    /// The credentials for Redis' sentinels.
    pub sentinels: Credentials,
}

impl TargetParts {
    /// The URL without secrets, for messages.
    #[must_use]
    pub fn masked_url(&self) -> &str {
        &self.masked_url
    }

    /// An [`ErrorKind::InvalidConfig`] with the place where the URL was written.
    #[must_use]
    pub fn wrong(&self, problem: impl fmt::Display) -> Error {
        Error::new(ErrorKind::InvalidConfig, self.origin.locate(problem))
    }

    /// An [`ErrorKind::Unsupported`] with the place where the URL was written.
    #[must_use]
    pub fn unsupported(&self, problem: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Unsupported, self.origin.locate(problem))
    }

    /// The time-out for a backend that limits its own connecting: nine tenths of `connect_timeout`.
    /// The backend's own error then comes before the general error of
    /// [`Drivers::open`](crate::Drivers::open), and says more.
    #[must_use]
    pub fn own_connect_timeout(&self) -> Duration {
        (self.connect_timeout * 9 / 10).max(*Target::CONNECT_TIMEOUTS.start())
    }

    /// The same parts with another scheme, for a driver that opens the store that it wraps.
    #[must_use]
    pub fn with_scheme(mut self, scheme: impl Into<String>) -> Self {
        self.scheme = scheme.into();
        self
    }
}

impl Target {
    /// The default of the longest time that opening a store may take.
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

    /// Creates the target for the store at this URL. The URL is checked when the store is opened.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            origin: Origin::Code,
            options: Vec::new(),
            connect_timeout: None,
            credentials: None,
            clock: Arc::new(SystemClock),
            records: None,
        }
    }

    /// Creates the target for the SQLite file at this path. The path may hold any character.
    #[must_use]
    pub fn sqlite(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().as_os_str().as_encoded_bytes();
        Self::new(format!("sqlite:{}", percent_encode_path(path)))
    }

    /// The target of a store that wraps this store: the same URL with `prefix` before it, for
    /// example `kv+`. The store of the records stays the same.
    #[must_use]
    pub fn wrapped_by(mut self, prefix: &str) -> Self {
        self.url.insert_str(0, prefix);
        self
    }

    /// Sets the place where the URL was written, for messages.
    #[must_use]
    pub fn from_origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Adds an option, with the effect of a query parameter of the URL.
    #[must_use]
    pub fn option(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.option_from(key, value, Origin::Code)
    }

    /// Adds an option, with the place where it was written.
    #[must_use]
    pub fn option_from(
        mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        origin: Origin,
    ) -> Self {
        self.options.push((key.into(), value.into(), origin));
        self
    }

    /// The range of `connect_timeout`.
    pub(crate) const CONNECT_TIMEOUTS: RangeInclusive<Duration> =
        Duration::from_millis(100)..=Duration::from_secs(60);

    /// Sets the longest time that opening may take, 100 ms to 60 s; the same as the option
    /// `connect_timeout`.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the provider of user and password. It is asked before each attempt to connect, so a
    /// password can change while the store is open; see [`CredentialProvider`]. A store without
    /// credentials, such as SQLite, never asks.
    #[must_use]
    pub fn credentials(mut self, provider: impl CredentialProvider) -> Self {
        self.credentials = Some(SharedProvider::new(provider));
        self
    }

    /// Replaces the machine's clock, to test how a program handles expiry.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Keeps the records in another store than the locks: the opened store has the locks of this
    /// target and the records of `target`, as with `Store::with_records_of`. All programs that
    /// share the records must share the locks as well.
    #[must_use]
    pub fn records_in(mut self, target: impl Into<Self>) -> Self {
        let mut target = target.into();
        // The records of a store are in one place.
        if let Some(further) = target.records.take() {
            target = *further;
        }
        self.records = Some(Box::new(target));
        self
    }

    /// The store of the records, if [`records_in`](Self::records_in) named one.
    #[must_use]
    pub fn records(&self) -> Option<&Self> {
        self.records.as_deref()
    }

    /// Takes the store of the records off, so that this target is that of the locks alone.
    pub(crate) fn take_records(&mut self) -> Option<Self> {
        self.records.take().map(|target| *target)
    }

    /// The URL without secrets, for messages.
    #[must_use]
    pub fn masked_url(&self) -> String {
        // A password that was pasted in place of a URL is one word.
        if !self.url.contains([':', '/']) && !self.url.is_empty() {
            return "***".to_owned();
        }
        mask(&self.url)
    }

    /// The URL with all options and secrets, to pass to another process. Never print it. The store
    /// of the [records](Self::records) has a URL of its own.
    #[must_use]
    pub fn reveal_url(&self) -> String {
        let mut url = self.url.clone();
        let mut sign = if url.contains('?') { '&' } else { '?' };
        for (key, value, _) in &self.options {
            let pair = form_urlencoded::Serializer::new(String::new())
                .append_pair(key, value)
                .finish();
            url.push(sign);
            url.push_str(&pair);
            sign = '&';
        }
        url
    }

    /// The scheme in lower case, if the URL has one.
    #[must_use]
    pub fn scheme(&self) -> Option<String> {
        let (scheme, _) = self.url.split_once(':')?;
        let mut letters = scheme.chars();
        let plain = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        plain.then(|| scheme.to_ascii_lowercase())
    }

    /// The place where the URL was written.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Splits the target into its parts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL without a scheme, for an address that may hold a part
    /// of a password, and for a wrong `connect_timeout`. An option that is given twice is refused
    /// when the driver has taken its options ([`Options::finish`]).
    pub fn parts(&self) -> Result<TargetParts> {
        let Some(scheme) = self.scheme() else {
            return Err(self.wrong(if self.url.is_empty() {
                "no backend is given: name one, for example sqlite:/var/lib/distlock/distlock.db"
                    .into()
            } else {
                format!(
                    "\"{}\" is not a backend URL (what may be a password is not shown): it has no \
                     scheme, as in sqlite:PATH",
                    self.masked_url().escape_debug()
                )
            }));
        };
        let rest = &self.url[scheme.len() + 1..];
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        self.check_address(body, query)?;
        let mut options = Options::default();
        let in_url = match &self.origin {
            Origin::Code => Origin::Url,
            written => written.clone(),
        };
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            options.add(key.into_owned(), value.into_owned(), in_url.clone());
        }
        for (key, value, origin) in &self.options {
            options.add(key.clone(), value.clone(), origin.clone());
        }
        let named = options.take_duration("connect_timeout", Self::CONNECT_TIMEOUTS)?;
        if let Some(timeout) = self
            .connect_timeout
            .filter(|timeout| !Self::CONNECT_TIMEOUTS.contains(timeout))
        {
            return Err(self.wrong(format!(
                "connect_timeout of {timeout:?} is outside 100 ms to 60 s"
            )));
        }
        Ok(TargetParts {
            scheme,
            body: body.to_owned(),
            options,
            connect_timeout: self
                .connect_timeout
                .or(named)
                .unwrap_or(Self::DEFAULT_CONNECT_TIMEOUT),
            credentials: self.credentials.clone(),
            clock: self.clock.clone(),
            origin: self.origin.clone(),
            masked_url: self.masked_url(),
        })
    }

    /// The credentials in the URL and its options, for a provider that reads them again.
    ///
    /// # Errors
    /// As [`Target::parts`], and [`ErrorKind::InvalidConfig`] for credentials that are not UTF-8.
    pub fn written_credentials(&self) -> Result<WrittenCredentials> {
        let TargetParts {
            scheme,
            body,
            mut options,
            ..
        } = self.parts()?;
        let (userinfo, address) = match body.rsplit_once('@') {
            Some((userinfo, address)) => (userinfo.trim_start_matches('/'), address),
            None => ("", body.trim_start_matches('/')),
        };
        let (user, password) = match userinfo.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (userinfo, None),
        };
        let decoded = |text: &str| {
            let not_utf8 = || self.wrong("the user or the password is not UTF-8".into());
            percent_decode(text).ok_or_else(not_utf8)
        };
        let user = Some(decoded(user)?).filter(|user| !user.is_empty());
        let password = password.map(decoded).transpose()?;
        let mut take = |key| options.take(key).map(|given| given.value);
        let written = WrittenCredentials {
            address: format!("{scheme}://{address}"),
            store: Credentials::written(
                take("user").or(user),
                take("password").or(password).map(Secret::new),
            ),
            sentinels: Credentials::written(
                take("sentinel_user"),
                take("sentinel_password").map(Secret::new),
            ),
        };
        options.check_single_values()?;
        Ok(written)
    }

    /// Refuses a URL with a password that is not escaped, or without the `@` after the password.
    /// Otherwise a part of the password would be parsed as a host, a port or an option, and would
    /// be shown in messages.
    fn check_address(&self, body: &str, query: &str) -> Result<()> {
        const ESCAPES: &str = "in a user or a password, `/`, `?`, `#`, `@` and `%` are written \
        %2F, %3F, %23, %40 and %25";
        let Some(rest) = body.strip_prefix("//") else {
            return Ok(());
        };
        if query.contains('@') {
            return Err(self.wrong(format!(
                "the URL has an `@` after its `?` (it is not shown, as it may hold a password): \
                {ESCAPES}, and `@` in the \
                 value of an option is %40"
            )));
        }
        let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
        if names_hosts(address.split('/').next().unwrap_or(address)) {
            return Ok(());
        }
        Err(self.wrong(format!(
            "what the URL has in place of a host is no host, host:port or [IPv6]:port (it is not \
            shown, as it may hold a \
             password): a user and a password end with `@`, as in \
             redis://user:password@host:6379; {ESCAPES}"
        )))
    }

    fn wrong(&self, problem: String) -> Error {
        Error::new(ErrorKind::InvalidConfig, self.origin.locate(problem))
    }
}

impl fmt::Debug for TargetParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `body` may hold a password.
        f.debug_struct("TargetParts")
            .field("url", &self.masked_url)
            .field("options", &self.options)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.options.iter().map(|(key, ..)| key).collect();
        f.debug_struct("Target")
            .field("url", &self.masked_url())
            .field("options", &keys)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

impl From<&str> for Target {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<String> for Target {
    fn from(url: String) -> Self {
        Self::new(url)
    }
}

impl From<&String> for Target {
    fn from(url: &String) -> Self {
        Self::new(url)
    }
}

impl From<&Self> for Target {
    fn from(target: &Self) -> Self {
        target.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percent::percent_decode;

    #[test]
    fn a_path_with_any_character_is_read_back_from_its_url() {
        for path in [
            "/tmp/x.db",
            "/tmp/what?.db",
            "/tmp/100%25 #1&a=b.db",
            "rel/\u{e9}.db",
        ] {
            let target = Target::sqlite(path);
            let parts = target.parts().unwrap();
            assert_eq!(percent_decode(&parts.body).as_deref(), Some(path));
        }
    }

    #[test]
    fn written_credentials_are_those_of_the_url_or_of_the_options_in_their_place() {
        for (url, user, password) in [
            ("redis://h:1/0", None, None),
            ("redis://:hun%2Fter2@h:1/0", None, Some("hun/ter2")),
            ("mysql://bob:hunter2@h:1/0", Some("bob"), Some("hunter2")),
            (
                "mysql://bob@h:1/0?password=hunter2",
                Some("bob"),
                Some("hunter2"),
            ),
            ("redis://a:b@h:1/0?user=bob", Some("bob"), Some("b")),
            (
                "mysql://a:b@h:1/0?user=bob&password=c",
                Some("bob"),
                Some("c"),
            ),
        ] {
            let written = Target::new(url).written_credentials().unwrap();
            let expected = Credentials::written(user.map(Into::into), password.map(Secret::new));
            assert_eq!(written.store, expected, "{url}");
            assert!(written.address.ends_with("://h:1/0"), "{written:?}");
            assert_eq!(written.sentinels, Credentials::default());
            assert!(!format!("{written:?}").contains("hun"), "{written:?}");
        }
        let sentinels = Target::new("redis+sentinel://h/p").option("sentinel_password", "hunter2");
        let written = sentinels.written_credentials().unwrap();
        assert_eq!(written.sentinels, Credentials::new("hunter2"));
        assert!(Target::new("redis://%ff@h").written_credentials().is_err());
        let twice = Target::new("redis://h?password=a").option("password", "b");
        assert!(twice.written_credentials().is_err());
    }

    #[test]
    fn an_option_in_the_url_and_in_the_program_is_refused() {
        let target = Target::new("sqlite:x.db?reap_after=1h").option("migrate", "false");
        assert_eq!(
            target.reveal_url(),
            "sqlite:x.db?reap_after=1h&migrate=false"
        );
        let twice = Target::new("sqlite:x.db?migrate=true").option("migrate", "false");
        let mut options = twice.parts().unwrap().options;
        assert_eq!(options.take("migrate").unwrap().value, "true");
        let error = options.finish("sqlite").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(
            error.to_string().contains("`migrate` is given twice"),
            "{error}"
        );
    }

    #[test]
    fn the_parts_show_no_secret() {
        let target = Target::new("redis://u:hunter2@h?a=1").option("password", "hunter2");
        let parts = target.parts().unwrap();
        assert!(parts.body.contains("hunter2"));
        let shown = format!("{parts:?}");
        assert!(shown.contains("redis://u:***@h?a=1"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn the_records_of_a_target_are_in_one_other_store() {
        let records = Target::new("sqlite:x.db").records_in("memory:b");
        let target = Target::new("memory:a").records_in(records);
        let named = target.records().unwrap();
        assert_eq!(named.masked_url(), "memory:b");
        assert!(named.records().is_none());
        let shown = Target::new("memory:").records_in("redis://u:hunter2@h");
        let shown = format!("{shown:?}");
        assert!(shown.contains("redis://u:***@h"), "{shown}");
    }

    #[test]
    fn a_connect_timeout_out_of_range_is_refused_in_the_url_and_in_the_program() {
        let error = |target: Target| target.parts().unwrap_err().to_string();
        for time in ["0s", "99ms", "61s"] {
            let said = error(Target::new(format!("memory:?connect_timeout={time}")));
            assert!(said.contains("outside 100ms to 60s"), "{said}");
            assert!(
                said.contains(&format!("`connect_timeout` = \"{time}\"")),
                "{said}"
            );
        }
        let said = error(Target::new("memory:").connect_timeout(Duration::ZERO));
        assert!(said.contains("outside 100 ms to 60 s"), "{said}");
        let parts = Target::new("memory:?connect_timeout=60s").parts().unwrap();
        assert_eq!(parts.connect_timeout, Duration::from_secs(60));
    }

    #[test]
    fn a_target_without_a_scheme_is_refused() {
        for (url, says) in [("", "no backend is given"), ("/tmp/x.db", "has no scheme")] {
            let error = Target::new(url).parts().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
