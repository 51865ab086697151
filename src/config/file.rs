//! Reads `distlock.toml` and refuses unknown tables and keys. Errors name file, line, column and
//! key.

use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use distlock_backend_kit::{Origin, Target, hint, is_secret, mask, nearest, read_bounded};
use distlock_core::{Error, ErrorKind, Result, path_excerpt};
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use super::file_credentials::FileCredentials;

/// A configuration file:
///
/// ```toml
/// [backend]
/// url = "sqlite:/var/lib/distlock/distlock.db"
/// connect_timeout = "3s"          # every option of the URL can be a key here
///
/// [records]                       # only if the records are in another store than the locks
/// url = "postgres://app@db/locks"
///
/// [gateway]                       # read by `distlock gateway run`
/// node = "n1"
/// ```
///
/// A program that reads its configuration:
///
/// ```
/// use distlock::config::Config;
///
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("distlock.toml");
/// # std::fs::write(&path, "[backend]\nurl = \"memory:\"\n").unwrap();
/// let config = Config::load(path)?; // or `Config::from_env`
/// let locker = distlock::connect(&config).await?;
/// assert!(locker.lock("order:8").acquire().await?.release().await.is_clean());
///
/// let typo = Config::parse("[backend]\nulr = \"memory:\"", "distlock.toml").unwrap_err();
/// assert!(typo.to_string().ends_with("did you mean `url`?"));
/// # locker.close().await; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Config {
    source: Option<Source>,
    backend: Option<Target>,
    records: Option<Target>,
}

#[derive(Clone)]
struct Source {
    path: Arc<PathBuf>,
    text: Arc<str>,
    has_gateway: bool,
    has_secret: bool,
}

const TABLES: [&str; 3] = ["backend", "records", "gateway"];

/// A table that names a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreTable {
    Backend,
    Records,
}

impl StoreTable {
    const fn name(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Records => "records",
        }
    }
}

impl Config {
    /// The variable that names the configuration file.
    pub const FILE_VARIABLE: &'static str = "DISTLOCK_CONFIG";
    /// The variable with the URL of the backend. It overrides the `[backend]` table of the file.
    pub const BACKEND_VARIABLE: &'static str = "DISTLOCK_BACKEND";
    /// The variable with the URL of the store that keeps the records, if that is not the backend.
    /// It overrides the `[records]` table of the file.
    pub const RECORDS_VARIABLE: &'static str = "DISTLOCK_RECORDS";

    /// A configuration without a file.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            source: None,
            backend: None,
            records: None,
        }
    }

    /// Reads a file. A store that is opened with this configuration reads the user and the password
    /// in the file again for each new connection, unless [`Target::credentials`] sets another
    /// provider.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the file cannot be read, is no regular file, has more than
    /// 1 MiB, is not TOML, or holds an unknown table or key.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = read_bounded(path).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
        });
        let text = text.map_err(|error| {
            let shown = path_excerpt(path);
            let problem = format!("cannot read configuration file {shown}: {error}");
            Error::new(ErrorKind::InvalidConfig, problem)
        })?;
        let mut config = Self::parse(&text, path)?;
        // The working folder may change before the file is read again.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        for table in [StoreTable::Backend, StoreTable::Records] {
            let named = config.store_mut(table);
            if let Some(target) = named.take() {
                // A URL with a mistake is reported, with its place, when the store is opened.
                *named = Some(match FileCredentials::new(path.clone(), table, &target) {
                    Ok(provider) => target.credentials(provider),
                    Err(_) => target,
                });
            }
        }
        Ok(config)
    }

    /// Reads the file that `DISTLOCK_CONFIG` names, and the URLs in `DISTLOCK_BACKEND` and
    /// `DISTLOCK_RECORDS`. An empty variable counts as unset.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_env() -> Result<Self> {
        Self::layered(None)
    }

    /// As [`Config::from_env`], but `file`, if it is given, is read in place of the file that
    /// `DISTLOCK_CONFIG` names.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn layered(file: Option<&Path>) -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let named = set(Self::FILE_VARIABLE).map(PathBuf::from);
        let mut config = match file.or(named.as_deref()) {
            Some(path) => Self::load(path)?,
            None => Self::empty(),
        };
        for (variable, table) in [
            (Self::BACKEND_VARIABLE, StoreTable::Backend),
            (Self::RECORDS_VARIABLE, StoreTable::Records),
        ] {
            let Some(url) = set(variable) else { continue };
            let origin = Origin::Setting(variable);
            let url = url.into_string().map_err(|_| {
                Error::new(
                    ErrorKind::InvalidConfig,
                    format!("{origin}: the URL is not UTF-8"),
                )
            })?;
            *config.store_mut(table) = Some(Target::new(url).from_origin(origin));
        }
        Ok(config)
    }

    /// Parses the text of a file. Error messages name `path`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: impl Into<PathBuf>) -> Result<Self> {
        let mut source = Source {
            path: Arc::new(path.into()),
            text: text.into(),
            has_gateway: false,
            has_secret: false,
        };
        let document = DeTable::parse(text).map_err(|error| source.syntax_error(&error))?;
        let (mut backend, mut records) = (None, None);
        for (key, value) in document.get_ref() {
            let table = value.get_ref().as_table();
            match (key.get_ref().as_ref(), table) {
                (name @ ("backend" | "records"), Some(table)) => {
                    let named = match name {
                        "backend" => StoreTable::Backend,
                        _ => StoreTable::Records,
                    };
                    let target = source.store(named, table, key.span())?;
                    let url = target.reveal_url();
                    source.has_secret |= mask(&url) != url;
                    match named {
                        StoreTable::Backend => backend = Some(target),
                        StoreTable::Records => records = Some(target),
                    }
                }
                ("gateway", Some(table)) => {
                    source.has_gateway = true;
                    source.has_secret |= table.iter().any(|(key, value)| {
                        let value = value.get_ref().as_str().unwrap_or_default();
                        is_gateway_secret(key.get_ref(), value)
                    });
                }
                (name @ ("backend" | "records" | "gateway"), None) => {
                    return Err(
                        source.wrong(key.span(), format!("`{name}` must be a table: [{name}]"))
                    );
                }
                (unknown, _) => {
                    return Err(source.wrong(
                        key.span(),
                        format!(
                            "unknown key `{}`: {}",
                            unknown.escape_debug(),
                            hint(unknown, &TABLES)
                        ),
                    ));
                }
            }
        }
        Ok(Self {
            source: Some(source),
            backend,
            records,
        })
    }

    /// The configured backend.
    #[must_use]
    pub fn backend(&self) -> Option<&Target> {
        self.backend.as_ref()
    }

    /// Replaces the backend and its options.
    pub fn set_backend(&mut self, target: Target) {
        self.backend = Some(target);
    }

    /// The store that keeps the records; `None` if that is the backend.
    #[must_use]
    pub fn records(&self) -> Option<&Target> {
        self.records.as_ref()
    }

    /// Replaces the store that keeps the records, and its options.
    pub fn set_records(&mut self, target: Target) {
        self.records = Some(target);
    }

    pub(super) fn store(&self, table: StoreTable) -> Option<&Target> {
        match table {
            StoreTable::Backend => self.backend.as_ref(),
            StoreTable::Records => self.records.as_ref(),
        }
    }

    fn store_mut(&mut self, table: StoreTable) -> &mut Option<Target> {
        match table {
            StoreTable::Backend => &mut self.backend,
            StoreTable::Records => &mut self.records,
        }
    }

    /// The path of the file that was read; `None` without a file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.source.as_ref().map(|source| source.path.as_path())
    }

    /// Whether the file holds a password, key or token. Then no other user should be able to read
    /// the file.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.has_secret)
    }

    /// Reads the `[gateway]` table as a `T`. Returns `None` if the file has no such table. The
    /// caller's type `T` has to refuse unknown fields itself, with `serde(deny_unknown_fields)`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with file, line, column and key.
    pub fn gateway<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        #[derive(serde::Deserialize)]
        struct Document<T> {
            gateway: T,
        }
        let Some(source) = self.source.as_ref().filter(|source| source.has_gateway) else {
            return Ok(None);
        };
        toml::from_str::<Document<T>>(&source.text)
            .map(|document| Some(document.gateway))
            .map_err(|error| source.gateway_value_error(&error))
    }

    /// The position in the file of the value of this `[gateway]` key; `None` when the table does
    /// not set the key.
    #[must_use]
    pub fn gateway_origin(&self, key: &str) -> Option<Origin> {
        let source = self.source.as_ref().filter(|source| source.has_gateway)?;
        let document = DeTable::parse(&source.text).ok()?;
        let mut tables = document.get_ref().iter();
        let (_, table) = tables.find(|(name, _)| name.get_ref() == "gateway")?;
        let mut keys = table.get_ref().as_table()?.iter();
        let (_, value) = keys.find(|(name, _)| name.get_ref() == key)?;
        Some(source.origin(value.span().start))
    }
}

impl Source {
    fn store(&self, named: StoreTable, table: &DeTable<'_>, at: Range<usize>) -> Result<Target> {
        let name = named.name();
        let Some((_, url)) = table.iter().find(|(key, _)| key.get_ref() == "url") else {
            let near = table
                .keys()
                .find(|key| nearest(key.get_ref(), ["url"]).is_some());
            return Err(match near {
                Some(key) => self.wrong(
                    key.span(),
                    format!(
                        "unknown key `{}` in [{name}]: did you mean `url`?",
                        key.get_ref()
                    ),
                ),
                None => self.wrong(at, format!("[{name}] has no `url`")),
            });
        };
        let Some(text) = url.get_ref().as_str() else {
            return Err(self.wrong(url.span(), format!("`url` in [{name}] must be a string")));
        };
        let mut target = Target::new(text).from_origin(self.origin(url.span().start));
        for (key, value) in table {
            if key.get_ref() == "url" {
                continue;
            }
            let key_origin = self.origin(key.span().start);
            let key = key.get_ref().as_ref();
            if let DeValue::Array(list) = value.get_ref() {
                for one in list {
                    let Some(text) = one.get_ref().as_str() else {
                        let problem = format!("`{key}` in [{name}] must be a list of strings");
                        return Err(self.wrong(one.span(), problem));
                    };
                    target = target.option_from(key, text, self.origin(one.span().start));
                }
                continue;
            }
            let text = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) if number.radix() == 10 => {
                    number.as_str().replace('_', "")
                }
                DeValue::Boolean(flag) => flag.to_string(),
                _ => {
                    return Err(self.wrong(
                        value.span(),
                        format!(
                            "`{key}` in [{name}] must be a string, a number, true or false, or a \
                             list of strings"
                        ),
                    ));
                }
            };
            target = target.option_from(key, text, key_origin);
        }
        Ok(target)
    }

    fn syntax_error(&self, error: &toml::de::Error) -> Error {
        // The full message of the parser quotes the line, and the line may hold a password.
        self.wrong(
            error.span().unwrap_or(0..0),
            format!("not valid TOML: {}", error.message()),
        )
    }

    fn gateway_value_error(&self, error: &toml::de::Error) -> Error {
        let span = error.span().unwrap_or(0..0);
        let message = error.message();
        let mut quoted = message.split('`').skip(1).step_by(2);
        if message.starts_with("unknown field") || message.starts_with("unknown variant") {
            let unknown = quoted.next().unwrap_or_default();
            let known: Vec<_> = quoted.collect();
            let what = match self.gateway_key_at(span.start) {
                Some(key) if message.starts_with("unknown variant") => {
                    format!("value `{}` of `gateway.{key}`", unknown.escape_debug())
                }
                _ => format!("key `{}` in [gateway]", unknown.escape_debug()),
            };
            let hint = hint(unknown, &known);
            return self.wrong(span, format!("unknown {what}: {hint}"));
        }
        match self.gateway_key_at(span.start) {
            Some(key) if is_gateway_secret(&key, "") => {
                self.wrong(span, format!("`{key}` in [gateway] is not valid"))
            }
            Some(key) => self.wrong(span, format!("`{key}` in [gateway]: {message}")),
            None => self.wrong(span, format!("[gateway]: {message}")),
        }
    }

    /// The `[gateway]` key whose value contains this byte offset. Any TOML form of the table is
    /// accepted.
    fn gateway_key_at(&self, at: usize) -> Option<String> {
        let document = DeTable::parse(&self.text).ok()?;
        let mut tables = document.get_ref().iter();
        let (_, table) = tables.find(|(name, _)| name.get_ref() == "gateway")?;
        let mut keys = table.get_ref().as_table()?.iter();
        let (key, _) = keys.find(|(_, value)| value.span().contains(&at))?;
        Some(key.get_ref().escape_debug().to_string())
    }

    fn wrong(&self, span: Range<usize>, problem: impl fmt::Display) -> Error {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("{}: {problem}", self.origin(span.start)),
        )
    }

    fn origin(&self, at: usize) -> Origin {
        let before = &self.text[..self.text.floor_char_boundary(at)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Origin::File {
            path: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl From<&Config> for Target {
    /// The configured backend, with the records in the configured store.
    fn from(config: &Config) -> Self {
        let backend = config.backend().cloned().unwrap_or_else(|| Self::new(""));
        match config.records() {
            Some(records) => backend.records_in(records),
            None => backend,
        }
    }
}

impl From<Config> for Target {
    fn from(config: Config) -> Self {
        Self::from(&config)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("path", &self.path())
            .field("backend", &self.backend)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

/// Whether the value of a `[gateway]` key is a secret. Each URL there is that of a web service, and
/// counts as a secret, because it may contain the access key of the service.
fn is_gateway_secret(key: &str, value: &str) -> bool {
    is_secret(key, value) || key.ends_with("_url")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let error = Config::parse(text, "distlock.toml").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        error.to_string()
    }

    #[test]
    fn mistakes_are_reported_with_place_and_suggestion() {
        for (text, says) in [
            ("[backend\n", "distlock.toml:1:"),
            (
                "[backned]\nurl = \"memory:\"",
                "distlock.toml:1:2: unknown key `backned`: did you mean `backend`?",
            ),
            (
                "[backend]\nulr = \"memory:\"",
                "distlock.toml:2:1: unknown key `ulr` in [backend]: did you mean `url`?",
            ),
            ("\n[backend]\n", "distlock.toml:2:2: [backend] has no `url`"),
            (
                "[backend]\nurl = 5",
                "distlock.toml:2:7: `url` in [backend] must be a string",
            ),
            (
                "backend = 5",
                "distlock.toml:1:1: `backend` must be a table",
            ),
            (
                "[backend]\nurl = \"memory:\"\nx = {}",
                "distlock.toml:3:5: `x` in [backend] must be a string, a number, true or false",
            ),
            (
                "[backend]\nurl = \"memory:\"\nx = [\"a\", 1]",
                "distlock.toml:3:11: `x` in [backend] must be a list of strings",
            ),
            (
                "[record]\nurl = \"memory:\"",
                "distlock.toml:1:2: unknown key `record`: did you mean `records`?",
            ),
            (
                "[records]\nulr = \"memory:\"",
                "distlock.toml:2:1: unknown key `ulr` in [records]: did you mean `url`?",
            ),
            (
                "records = \"memory:\"",
                "distlock.toml:1:1: `records` must be a table: [records]",
            ),
            ("[records]\n", "distlock.toml:1:2: [records] has no `url`"),
            (
                "[records]\nurl = 5",
                "distlock.toml:2:7: `url` in [records] must be a string",
            ),
            (
                "[records]\nurl = \"memory:\"\nx = 1.5",
                "distlock.toml:3:5: `x` in [records] must be",
            ),
        ] {
            assert!(problem(text).contains(says), "{text:?}: {}", problem(text));
        }
    }

    #[test]
    fn the_error_about_a_broken_line_hides_its_password() {
        let said = problem("[backend]\nurl = \"redis://bob:hunter2@h\" oops");
        assert!(
            said.contains("distlock.toml:2:") && !said.contains("hunter2"),
            "{said}"
        );
    }

    #[test]
    fn unknown_keys_and_wrong_types_in_the_gateway_table_are_refused() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Gateway {
            node: String,
            #[expect(dead_code, reason = "only its parsing matters here")]
            token_key: Option<String>,
        }
        let config = |text: &str| Config::parse(text, "d.toml").unwrap().gateway::<Gateway>();
        assert!(config("").unwrap().is_none());
        assert_eq!(
            config("[gateway]\nnode = \"n1\"").unwrap().unwrap().node,
            "n1"
        );
        let placed = Config::parse("[gateway]\nnode = \"n1\"", "d.toml").unwrap();
        let place = |key| placed.gateway_origin(key).map(|it| it.to_string());
        assert_eq!(place("node").as_deref(), Some("d.toml:2:8"));
        assert_eq!(
            (place("listen"), Config::empty().gateway_origin("node")),
            (None, None)
        );
        let unknown = config("[gateway]\nnode = \"n1\"\n  nod = 1")
            .unwrap_err()
            .to_string();
        assert_eq!(
            unknown,
            "d.toml:3:3: unknown key `nod` in [gateway]: did you mean `node`?"
        );
        let kind = config("[gateway]\nnode = 5").unwrap_err().to_string();
        assert!(
            kind.starts_with("d.toml:2:8: `node` in [gateway]: invalid type"),
            "{kind}"
        );
        for (text, place) in [
            ("[gateway]\nnode = \"n\"\ntoken_key = 12345", "d.toml:3:13"),
            (
                "gateway = { node = \"n\", token_key = 12345 }",
                "d.toml:1:37",
            ),
            ("gateway.token_key = 12345", "d.toml:1:21"),
            ("[gateway]\n'token_key' = 12345", "d.toml:2:15"),
        ] {
            let secret = config(text).unwrap_err().to_string();
            let says = format!("{place}: `token_key` in [gateway] is not valid");
            assert_eq!(secret, says, "{text}");
        }
    }

    #[test]
    fn a_file_with_a_secret_is_recognised() {
        for (text, has) in [
            ("[backend]\nurl = \"redis://bob:hunter2@h\"", true),
            (
                "[backend]\nurl = \"redis://h\"\npassword = \"hunter2\"",
                true,
            ),
            ("[records]\nurl = \"redis://bob:hunter2@h\"", true),
            ("[records]\nurl = \"redis://bob@h\"", false),
            (
                "[backend]\nurl = \"q:\"\nmembers = [\"a=redis://:hunter2@h\", \"b=c:\"]",
                true,
            ),
            (
                "[backend]\nurl = \"q:\"\nmembers = [\"a=redis://h\", \"b=c:\"]",
                false,
            ),
            ("[gateway]\ntoken_key = \"hunter2\"", true),
            (
                "[gateway]\nprofile_url = \"http://h/check?key=hunter2\"",
                true,
            ),
            ("[gateway]\nmay_send_url = \"http://h/hunter2\"", true),
            ("[gateway]\nsave_url = \"http://h/hunter2\"", true),
            ("[gateway]\ntls_key = \"/etc/tls/node.key\"", false),
            (
                "[backend]\nurl = \"sqlite:x.db\"\nreap_after = \"1h\"\n[gateway]\nnode = \"n\"",
                false,
            ),
        ] {
            assert_eq!(
                Config::parse(text, "d.toml").unwrap().has_secret(),
                has,
                "{text}"
            );
        }
    }

    #[test]
    fn the_elements_of_a_list_are_one_option_in_their_order() {
        let text = "[backend]\nmembers = [\"a=redis://:hunter2@h\",\n  \"b=c:\"]\n\
                    url = \"q:?member=z=y:\"\nmax_lease = \"1m\"";
        let config = Config::parse(text, "d.toml").unwrap();
        let mut options = Target::from(&config).parts().unwrap().options;
        let members = options.take_list("member");
        let given: Vec<_> = members
            .iter()
            .map(|member| (member.value.as_str(), member.origin.to_string()))
            .collect();
        assert_eq!(
            given,
            [
                ("z=y:", "d.toml:4:7".to_owned()),
                ("a=redis://:hunter2@h", "d.toml:2:12".to_owned()),
                ("b=c:", "d.toml:3:3".to_owned()),
            ]
        );
        let error = members[1].wrong("it is refused").to_string();
        assert!(
            error.contains("d.toml:2:12") && !error.contains("hunter2"),
            "{error}"
        );
        assert_eq!(options.take("max_lease").unwrap().value, "1m");
        options.finish("q").unwrap();
        let single = "[backend]\nurl = \"q:\"\nmax_lease = [\"1m\", \"2m\"]";
        let config = Config::parse(single, "d.toml").unwrap();
        let mut options = Target::from(&config).parts().unwrap().options;
        options.take("max_lease");
        let error = options.finish("q").unwrap_err().to_string();
        let says = "option `max_lease` is given twice: in d.toml:3:14 and in d.toml:3:20";
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn the_records_are_in_the_backend_unless_their_table_names_another_store() {
        let config = |text: &str| Config::parse(text, "d.toml").unwrap();
        let one = config("[backend]\nurl = \"memory:\"");
        assert!(one.records().is_none() && Target::from(&one).records().is_none());
        let two = "[backend]\nurl = \"memory:\"\n[records]\nurl = \"redis://h\"\npool = 5";
        let two = Target::from(&config(two));
        assert_eq!(two.masked_url(), "memory:");
        let records = two.records().unwrap();
        assert_eq!(records.reveal_url(), "redis://h?pool=5");
        assert_eq!(records.origin().to_string(), "d.toml:4:7");
    }

    #[test]
    fn debug_hides_secrets() {
        let config = Config::parse(
            "[backend]\nurl = \"redis://bob:hunter2@h\"\npassword = \"hunter3\"\n\
             [records]\nurl = \"redis://bob:hunter2@i\"\npassword = \"hunter3\"",
            "d.toml",
        )
        .unwrap();
        assert!(!format!("{config:?}").contains("hunter"), "{config:?}");
    }
}
