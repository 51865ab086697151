//! Which backend a command talks to, and with which configuration.

use std::{os::unix::fs::PermissionsExt as _, path::PathBuf};

use distlock::{
    Store, Target,
    config::{Config, Origin, mask},
};

use crate::{
    args::Global,
    exit::{Failure, Outcome, code},
    output,
};

/// What every command is given.
#[derive(Debug)]
pub(crate) struct Context {
    global: Global,
}

/// What a command needs of its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Other processes must see the same locks.
    Required,
    /// A store of this process alone will do.
    Optional,
}

impl Context {
    pub(crate) fn new(global: Global) -> Self {
        Self { global }
    }

    pub(crate) fn json(&self) -> bool {
        self.global.json
    }

    /// The file that `--config` or `DISTLOCK_CONFIG` names, overridden by `DISTLOCK_BACKEND`, overridden by `--backend`.
    pub(crate) fn config(&self) -> Outcome<Config> {
        let mut config = Config::layered(self.global.config.as_deref())?;
        warn_about_readers(&config);
        if let Some(url) = &self.global.backend {
            let target = Target::new(url).from_origin(Origin::Setting("--backend"));
            if mask(url) != *url {
                output::tell(
                    "warning: a password on the command line can be read by everybody on this host: \
                     use DISTLOCK_BACKEND or a configuration file",
                );
            }
            config.set_backend(target);
        }
        Ok(config)
    }

    /// Whether the backend was named on the command line.
    pub(crate) fn backend_is_flag(&self) -> bool {
        self.global.backend.is_some()
    }

    /// The backend to use: the configured one, or the user's own SQLite file.
    pub(crate) fn target(&self, sharing: Sharing) -> Outcome<Target> {
        let target = match self.config()?.backend().cloned() {
            Some(target) => target,
            None => own_file()?,
        };
        if sharing == Sharing::Required && target.scheme().as_deref() == Some("memory") {
            return Err(Failure::new(
                code::CONFIG,
                "backend memory: lives and ends with this process, so it would lock nothing: \
                 use for example sqlite:/var/lib/distlock/distlock.db",
            ));
        }
        Ok(target)
    }

    /// Opens the backend.
    pub(crate) async fn open(&self, sharing: Sharing) -> Outcome<Store> {
        Ok(distlock::open(self.target(sharing)?).await?)
    }
}

fn warn_about_readers(config: &Config) {
    let Some(path) = config.path().filter(|_| config.has_secret()) else {
        return;
    };
    if std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
        output::tell(format_args!(
            "warning: {} holds a secret and others can read it: chmod 600 it",
            path.display()
        ));
    }
}

/// `$XDG_STATE_HOME/distlock/distlock.db`, with its folder created.
fn own_file() -> Outcome<Target> {
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            // The specification says to ignore a relative path there.
            .filter(|path| path.is_absolute())
    };
    let state = set("XDG_STATE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            Failure::new(
                code::CONFIG,
                "no backend is configured and HOME is not set: name one with --backend or DISTLOCK_BACKEND",
            )
        })?;
    let folder = state.join("distlock");
    std::fs::create_dir_all(&folder).map_err(|error| {
        Failure::new(
            code::UNAVAILABLE,
            format!("cannot create {}: {error}", folder.display()),
        )
    })?;
    Ok(Target::sqlite(folder.join("distlock.db")))
}
