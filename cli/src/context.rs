//! Finds the backend that a command uses, and its configuration.

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    sync::OnceLock,
    time::Duration,
};

use distlock::{
    Clock as _, Store, SystemClock, Target,
    backend::path_excerpt,
    config::{Config, Origin, mask, nearest},
};

use crate::{
    default_store::{self, SHARED_VARIABLE},
    drivers,
    exit::{Failure, Outcome, code},
    global::Global,
    output,
};

/// The time for which a command that ends a lock tries again while its store is away.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two tries to open the store.
const PAUSE: Duration = Duration::from_millis(500);

/// The flags of this call of the tool, and its configuration.
#[derive(Debug)]
pub struct Context {
    global: Global,
    /// The configuration is read once, so that all parts of a command see the same values and a
    /// warning appears once.
    config: OnceLock<Config>,
}

/// The callers that must see the locks of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The processes of several hosts. The command of this name chooses one host, so the default
    /// store, of which each host has one, would have every host chosen without a word.
    Hosts(&'static str),
    /// Other processes. The command takes a lock.
    Locks,
    /// Other processes.
    Required,
    /// A store that only this process sees is enough.
    Optional,
}

impl Context {
    /// Takes the flags, and warns of misspelled environment variables.
    pub fn new(global: Global) -> Self {
        warn_about_unknown_variables();
        Self {
            global,
            config: OnceLock::new(),
        }
    }

    /// Whether results are printed as JSON.
    pub fn wants_json(&self) -> bool {
        self.global.json
    }

    /// The configuration from the file that `--config` or `DISTLOCK_CONFIG` names.
    /// `DISTLOCK_BACKEND` overrides the backend of the file, and `--backend`, `--system` or
    /// `--user` overrides both. For the store of the records, `DISTLOCK_RECORDS` and `--records` do
    /// the same.
    pub(crate) fn config(&self) -> Outcome<&Config> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let mut config = Config::layered(self.global.config.as_deref())?;
        warn_about_permissions(&config);
        if let Some(url) = &self.global.records {
            warn_about_password(url, Config::RECORDS_VARIABLE);
            config.set_records(Target::new(url).from_origin(Origin::Setting("--records")));
        }
        if let Some(url) = self.global.backend.last() {
            warn_about_password(url, Config::BACKEND_VARIABLE);
            config.set_backend(Target::new(url).from_origin(Origin::Setting("--backend")));
        } else if self.global.system {
            config.set_backend(default_store::shared_file()?);
        } else if self.global.own {
            config.set_backend(default_store::own_file()?);
        }
        Ok(self.config.get_or_init(|| config))
    }

    /// The backend of another configuration file.
    pub(crate) fn backend_in(file: &Path) -> Outcome<Target> {
        // Not shown: it has the passwords of the members.
        if file.to_string_lossy().starts_with("quorum:") {
            let problem = "--to names a configuration file, and a URL is given: a command line \
                           shows the passwords of the members to other users";
            return Err(Failure::new(code::USAGE, problem));
        }
        let config = Config::load(file)?;
        warn_about_permissions(&config);
        config.backend().cloned().ok_or_else(|| {
            let problem = format!("{}: there is no table [backend]", path_excerpt(file));
            Failure::new(code::CONFIG, problem)
        })
    }

    /// Whether `--backend`, `--system` or `--user` names the backend.
    pub fn has_backend_flag(&self) -> bool {
        self.global.system || self.global.own || !self.global.backend.is_empty()
    }

    /// The store of the records that `--records` names.
    pub(crate) fn records_flag(&self) -> Option<Target> {
        let url = self.global.records.as_ref()?;
        Some(Target::new(url).from_origin(Origin::Setting("--records")))
    }

    /// The flag or variable that selects a store when no flag names the store itself; `None` if
    /// there is none.
    pub(crate) fn default_store_setting(&self) -> Option<&'static str> {
        if self.global.config.is_some() {
            return Some("--config");
        }
        let set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        [
            Config::BACKEND_VARIABLE,
            Config::RECORDS_VARIABLE,
            Config::FILE_VARIABLE,
        ]
        .into_iter()
        .find(set)
    }

    /// Whether `--backend` was given more than once.
    pub fn has_several_backends(&self) -> bool {
        self.global.backend.len() > 1
    }

    /// All backends that `--backend` names, or the configured one if there is one. Each keeps its
    /// own records.
    pub fn targets(&self) -> Outcome<Vec<Target>> {
        if self.global.records.is_some() {
            return Err(Failure::usage(
                "the argument '--records <URL>' says nothing here: each store keeps its own \
                 records",
            ));
        }
        if self.global.backend.len() < 2 {
            return Ok(self.config()?.backend().cloned().into_iter().collect());
        }
        let named = |url: &String| Target::new(url).from_origin(Origin::Setting("--backend"));
        Ok(self.global.backend.iter().map(named).collect())
    }

    /// The backend to use, with the records in the configured store if there is one.
    pub fn target(&self, sharing: Sharing) -> Outcome<Target> {
        let config = self.config()?;
        let Some(records) = config.records() else {
            return self.locks_target(sharing);
        };
        let place = records.origin();
        if config.backend().is_none() {
            // The default store is the own file of each user on each host, so callers would share
            // the records and not the locks.
            return Err(Failure::new(
                code::CONFIG,
                format!(
                    "{place}: the records have a store of their own, and no store is named for the \
                     locks: name one with --backend, DISTLOCK_BACKEND or a configuration file; \
                     --user is your own"
                ),
            ));
        }
        if sharing != Sharing::Optional && is_of_this_process(records) {
            return Err(Failure::new(
                code::CONFIG,
                format!(
                    "{place}: memory: lives and ends with this process, so its records would be \
                     lost: use for example sqlite:/var/lib/distlock/records.db"
                ),
            ));
        }
        Ok(self.locks_target(sharing)?.records_in(records))
    }

    /// The backend to use for locks alone: the configured one, or the SQLite file of this user.
    pub(crate) fn locks_target(&self, sharing: Sharing) -> Outcome<Target> {
        let target = match (self.config()?.backend().cloned(), sharing) {
            (Some(target), _) => target,
            (None, Sharing::Hosts(command)) => {
                return Err(default_store::unnamed_failure(command));
            }
            (None, _) => default_store::unnamed_file(sharing == Sharing::Locks)?,
        };
        if sharing != Sharing::Optional && is_of_this_process(&target) {
            return Err(Failure::new(
                code::CONFIG,
                "backend memory: lives and ends with this process, so it would lock nothing: \
                 use for example sqlite:/var/lib/distlock/distlock.db",
            ));
        }
        Ok(target)
    }

    /// Opens the backend, and the store of the records.
    pub async fn open(&self, sharing: Sharing) -> Outcome<Store> {
        Ok(drivers::open(self.target(sharing)?).await?)
    }

    /// Opens the backend for a command that uses no records: the command then works also while
    /// another store, which keeps the records, is away.
    pub(crate) async fn open_locks(&self, sharing: Sharing) -> Outcome<Store> {
        Ok(drivers::open(self.locks_target(sharing)?).await?)
    }

    /// Opens the backend, and the store of the records. If another store keeps the records and is
    /// away, the backend is opened alone, with a warning.
    pub(crate) async fn open_to_show(&self, sharing: Sharing) -> Outcome<Store> {
        let has_records_apart = self.config()?.records().is_some();
        match drivers::open(self.target(sharing)?).await {
            Err(error) if has_records_apart && error.is_retryable() => {
                output::print_message(format_args!("shared locks are not shown: {error}"));
                self.open_locks(sharing).await
            }
            opened => Ok(opened?),
        }
    }

    /// Opens the backend for a command that uses no records, and tries again while the store is
    /// away, for [`PATIENCE`].
    pub(crate) async fn open_locks_patiently(&self, sharing: Sharing) -> Outcome<Store> {
        let target = self.locks_target(sharing)?;
        let until = SystemClock.now() + PATIENCE;
        loop {
            match drivers::open(&target).await {
                Err(error) if error.is_retryable() && SystemClock.now() + PAUSE < until => {}
                opened => return Ok(opened?),
            }
            SystemClock.sleep(PAUSE).await;
        }
    }
}

/// Whether the store ends with this process.
pub(crate) fn is_of_this_process(target: &Target) -> bool {
    let scheme = target.scheme().unwrap_or_default();
    scheme == "memory" || scheme.ends_with("+memory")
}

/// Warns of a URL of a flag that holds a password. `variable` can hold the URL instead.
fn warn_about_password(url: &str, variable: &str) {
    if mask(url) != *url {
        output::print_message(format_args!(
            "warning: a password on the command line can be read by everybody on this host: use \
             {variable} or a configuration file"
        ));
    }
}

/// Warns of a misspelled variable, which would otherwise be ignored silently. A gateway checks its
/// own variables.
fn warn_about_unknown_variables() {
    const KNOWN: [&str; 10] = [
        "DISTLOCK_BACKEND",
        "DISTLOCK_RECORDS",
        "DISTLOCK_CONFIG",
        "DISTLOCK_LOG",
        SHARED_VARIABLE,
        "DISTLOCK_TICKET",
        // `run` sets these for its command, which may be this tool again.
        "DISTLOCK_NAME",
        "DISTLOCK_TOKEN",
        "DISTLOCK_HOLDER",
        "DISTLOCK_INDICES",
    ];
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name == "DISTLOCK_LOG_FORMAT" {
            output::print_message(
                "warning: DISTLOCK_LOG_FORMAT means nothing here: use --log-format",
            );
            continue;
        }
        if !name.starts_with("DISTLOCK_")
            || name.starts_with("DISTLOCK_GATEWAY_")
            || KNOWN.contains(&name.as_ref())
        {
            continue;
        }
        // Other programs may have variables with this prefix, so only names that are close to a
        // known one are reported.
        if let Some(near) = nearest_variable(&name, &KNOWN) {
            output::print_message(format_args!(
                "warning: {} means nothing here: did you mean {near}?",
                name.escape_debug()
            ));
        }
    }
}

/// The known variable that `name` probably means.
pub(crate) fn nearest_variable<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower: Vec<_> = known.iter().map(|known| known.to_lowercase()).collect();
    let near = nearest(name, lower.iter().map(String::as_str))?;
    known
        .iter()
        .copied()
        .find(|known| known.eq_ignore_ascii_case(near))
}

/// Warns if the configuration file holds a secret and other users can read the file, and if another
/// user can choose the store of root, and the programs that root asks.
fn warn_about_permissions(config: &Config) {
    let Some(path) = config.path() else {
        return;
    };
    let Ok(file) = std::fs::metadata(path) else {
        return;
    };
    let mode = file.permissions().mode();
    if config.has_secret() && mode & 0o077 != 0 {
        output::print_message(format_args!(
            "warning: {} holds a secret and others can read it: chmod 600 it",
            path_excerpt(path)
        ));
    }
    if rustix::process::geteuid().is_root() && (file.uid() != 0 || mode & 0o022 != 0) {
        output::print_message(format_args!(
            "warning: root reads {}, which another user can write: that user chooses the store, so \
             chown it to root, and chmod go-w it",
            path_excerpt(path)
        ));
    }
}
