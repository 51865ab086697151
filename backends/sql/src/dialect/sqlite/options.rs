//! The options of a SQLite store, each checked once.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use distlock_backend_kit::{DriverOption, unknown_option};
use distlock_core::Result;

use crate::config::{
    MIGRATE, REAP_AFTER, REAP_AFTER_OPTION, TABLE_PREFIX, check_prefix, check_range, duration,
    escape, flag, invalid,
};

/// The path of a SQLite file, and the options of a store in this file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// The database file. An absent file is created, readable only by its owner.
    pub path: PathBuf,
    /// The time after which a free or expired row is removed; 1 s to 365 days, 1 h by default.
    pub reap_after: Duration,
    /// Whether connecting creates an absent file and absent tables. Connecting never changes tables
    /// that exist.
    pub migrate: bool,
    /// A text before the tables' names; empty by default.
    pub table_prefix: String,
    /// The longest wait of a statement for another process that writes; 1 ms to 1 s, 1 s by
    /// default.
    pub busy_timeout: Duration,
    /// Whether the file is used in spite of one of these dangers. The file is on a network file
    /// system, whose file locks are not reliable. Or the file may be in use under a second name (it
    /// has a hard link or is mounted by itself), and processes with different names do not exclude
    /// each other. Or this process is in a container with another boot id or another time since
    /// boot than the machine, and other processes would treat its leases as expired.
    pub force: bool,
}

impl SqliteConfig {
    /// The options, as in a URL.
    pub const OPTIONS: [DriverOption; 5] = [
        DriverOption::new(
            "busy_timeout",
            "1 ms to 1 s: how long a statement waits for another process's write",
            "1s",
        ),
        DriverOption::new(
            "force",
            "`true`: use the file although it is on a network file system, has hard links, or is \
             mounted by itself, or this container has a boot id or a time since boot of its own",
            "false",
        ),
        MIGRATE,
        REAP_AFTER_OPTION,
        TABLE_PREFIX,
    ];

    /// The configuration of a file with the default of every other option.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            reap_after: Duration::from_secs(3600),
            migrate: true,
            table_prefix: String::new(),
            busy_timeout: Duration::from_secs(1),
            force: false,
        }
    }

    /// Reads the parts of a URL `sqlite:PATH?option=value&..`, already percent-decoded.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the option, and for an
    /// unknown option the most similar known name.
    pub fn from_url_parts(path: &str, options: &[(String, String)]) -> Result<Self> {
        Self::parse(path, options).map_err(|error| error.on("sqlite"))
    }

    fn parse(path: &str, options: &[(String, String)]) -> Result<Self> {
        let mut config = Self::new(path);
        for (name, value) in options {
            match name.as_str() {
                "busy_timeout" => config.busy_timeout = duration(name, value)?,
                "force" => config.force = flag(name, value)?,
                "migrate" => config.migrate = flag(name, value)?,
                "reap_after" => config.reap_after = duration(name, value)?,
                "table_prefix" => config.table_prefix.clone_from(value),
                _ => return Err(unknown_option(name, "sqlite", &Self::OPTIONS)),
            }
        }
        config.check()?;
        Ok(config)
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the option.
    pub fn check(&self) -> Result<()> {
        self.checked().map_err(|error| error.on("sqlite"))
    }

    fn checked(&self) -> Result<()> {
        let path = &self.path;
        if path.as_os_str().is_empty() {
            return Err(invalid("the path of the SQLite file is empty"));
        }
        if path.to_str().is_none_or(|path| path.contains('\0')) {
            // The error does not show the text: the text is no path, and may be the URL of a server
            // with a password.
            return Err(invalid(
                "the path of the SQLite file is not UTF-8 or holds a NUL",
            ));
        }
        if path == Path::new(":memory:") {
            return Err(invalid(
                "`:memory:` is no file that processes could share: use the backend `memory:`",
            ));
        }
        check_range(
            "busy_timeout",
            self.busy_timeout,
            (Duration::from_millis(1), Duration::from_secs(1)),
        )?;
        check_range("reap_after", self.reap_after, REAP_AFTER)?;
        check_prefix(&self.table_prefix)
    }

    /// The URL of this configuration, with `migrate` left out.
    #[must_use]
    pub fn url(&self) -> String {
        let standard = Self::new(&self.path);
        let mut url = format!("sqlite:{}", escape(&self.path));
        let mut separator = '?';
        let mut add = |option: &str, value: &str| {
            let _ = write!(url, "{separator}{option}={value}");
            separator = '&';
        };
        if self.busy_timeout != standard.busy_timeout {
            add(
                "busy_timeout",
                &format!("{}ms", self.busy_timeout.as_millis()),
            );
        }
        if self.force {
            add("force", "true");
        }
        if self.reap_after != standard.reap_after {
            add("reap_after", &format!("{}ms", self.reap_after.as_millis()));
        }
        if self.table_prefix != standard.table_prefix {
            add("table_prefix", &self.table_prefix);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ErrorKind;

    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<SqliteConfig> {
        let options: Vec<_> = options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        SqliteConfig::from_url_parts("/tmp/a b.db", &options)
    }

    #[test]
    fn options_are_read_from_a_url_and_written_to_it() {
        assert_eq!(parse(&[]).unwrap(), SqliteConfig::new("/tmp/a b.db"));
        let config = parse(&[
            ("busy_timeout", "250ms"),
            ("force", "true"),
            ("migrate", "false"),
            ("reap_after", "2h"),
            ("table_prefix", "app_"),
        ])
        .unwrap();
        assert_eq!(config.reap_after, Duration::from_secs(7200));
        assert!(!config.migrate && config.force);
        assert_eq!(
            config.url(),
            "sqlite:/tmp/a%20b.db\
             ?busy_timeout=250ms&force=true&reap_after=7200000ms&table_prefix=app_"
        );
    }

    #[test]
    fn a_wrong_option_is_refused_with_its_name() {
        let long = "p".repeat(33);
        for (name, value, says) in [
            ("reap_afer", "1h", "did you mean `reap_after`?"),
            ("zzz", "1", "known are busy_timeout, force"),
            (
                "reap_after",
                "1",
                "`reap_after`: duration \"1\" has no unit",
            ),
            ("reap_after", "-1s", "is not whole numbers"),
            ("reap_after", "99999999999999999999h", "is too large"),
            ("reap_after", "10ms", "outside 1s"),
            ("busy_timeout", "2s", "outside 1ms to 1s"),
            ("migrate", "yes", "`migrate`: \"yes\""),
            ("table_prefix", "1a", "`table_prefix`"),
            ("table_prefix", "A", "`table_prefix`"),
            ("table_prefix", "a;drop table x", "`table_prefix`"),
            ("table_prefix", &long, "`table_prefix`"),
        ] {
            let error = parse(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}={value}");
            assert!(error.to_string().contains(says), "{error}");
        }
        for path in ["", ":memory:", "a\0b"] {
            let error = SqliteConfig::from_url_parts(path, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{path:?}");
        }
    }
}
