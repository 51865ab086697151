//! The advice at the end of a failure: commands and options of the tool, with the flags that name
//! the store of this call. The library advises its own methods, which mean nothing on a command
//! line.

use std::fmt;

use distlock::{Error, LockName, Remedy, backend::quote_for_shell, config::mask};

use crate::{exit::Failure, global::Global};

/// The step that the reader of a failure can take. `Display` begins with a semicolon.
#[derive(Debug)]
pub(crate) struct Advice {
    step: Step,
    name: Option<LockName>,
    /// The flags that name the store of this call, each after a space.
    pub(crate) store_flags: String,
}

/// What the reader can do.
#[derive(Debug)]
enum Step {
    /// What the library advises.
    Remedy(Remedy),
    /// Give the semaphore this number of permits.
    Resize(u32),
}

impl Advice {
    /// The remedy of an error, for users of the tool.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        Some(Self {
            step: Step::Remedy(error.remedy()?.clone()),
            name: error.name().cloned(),
            store_flags: String::new(),
        })
    }

    /// The change of the number of permits that a semaphore has on record.
    pub(crate) const fn to_resize(name: LockName, permits: u32) -> Self {
        Self {
            step: Step::Resize(permits),
            name: Some(name),
            store_flags: String::new(),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = &self.store_flags;
        match (&self.step, &self.name) {
            (Step::Remedy(Remedy::WaitLonger), Some(name)) => {
                let name = quote_for_shell(name.as_str());
                let look = format!("look with `distlock inspect {name}{flags}`");
                write!(f, "; allow more time with `--wait`, {look}")
            }
            (Step::Resize(permits), Some(name)) => {
                let name = quote_for_shell(name.as_str());
                write!(
                    f,
                    "; `distlock resize {name} --permits {permits}{flags}` changes it"
                )
            }
            (Step::Remedy(Remedy::Migrate { first, .. }), _) => {
                f.write_str("; ")?;
                if let Some(statement) = first {
                    write!(f, "run `{statement}` on the database and then ")?;
                }
                write!(f, "run `distlock migrate{flags}`")
            }
            _ => Ok(()),
        }
    }
}

/// Adds the `--backend`, `--records` and `--config` of this call to the commands that a failure
/// advises. The library does not know these flags, and without them the advised command would use
/// another store. A password is masked.
pub fn add_store_flags(failure: Failure, global: &Global) -> Failure {
    failure.at_store(store_flags(global))
}

/// The flags of this call that name its store, each after a space.
fn store_flags(global: &Global) -> String {
    let config = global.config.as_ref().map(|path| path.to_string_lossy());
    let config = config.map(|path| format!(" --config {}", quote_for_shell(&path)));
    let backend = global.backend.last();
    let backend = backend.map(|url| format!(" --backend {}", quote_for_shell(&mask(url))));
    let records = global.records.as_ref();
    let records = records.map(|url| format!(" --records {}", quote_for_shell(&mask(url))));
    let system = global.system.then(|| " --system".to_owned());
    let own = global.own.then(|| " --user".to_owned());
    [config, backend, system, own, records]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use distlock::ErrorKind;

    use super::*;

    fn advised(failure: Failure, backend: Option<&str>, config: Option<&str>) -> String {
        let global = Global {
            backend: backend.into_iter().map(str::to_owned).collect(),
            config: config.map(Into::into),
            ..Global::default()
        };
        add_store_flags(failure, &global).to_string()
    }

    fn busy() -> Error {
        Error::new(ErrorKind::Timeout, "busy: held by a").with_remedy(Remedy::WaitLonger)
    }

    #[test]
    fn a_busy_lock_is_answered_with_options_of_the_tool() {
        let name = LockName::new("it's \u{202e}a").unwrap();
        let said = advised(busy().about(&name).into(), None, None);
        let advice =
            "allow more time with `--wait`, look with `distlock inspect $'it\\'s \\U0000202ea'`";
        assert!(
            said.ends_with(&format!("busy: held by a; {advice}")),
            "{said}"
        );
        assert!(!said.contains("LockBuilder"), "{said}");
        let outer = Error::new(ErrorKind::Unavailable, "no turn").caused_by(busy());
        let said = advised(outer.into(), None, None);
        assert_eq!(said, "no turn: busy: held by a");
        let other = Error::new(ErrorKind::Timeout, "slow").about(&name);
        assert_eq!(advised(other.clone().into(), None, None), other.to_string());
    }

    #[test]
    fn the_advised_command_names_the_store_of_this_call() {
        let name = LockName::new("a`b").unwrap();
        let busy = || Failure::from(busy().about(&name));
        let absent = |first: Option<&str>| {
            let remedy = Remedy::Migrate {
                url: "mysql://bob@h/d".to_owned(),
                first: first.map(str::to_owned),
            };
            Failure::from(Error::new(ErrorKind::InvalidConfig, "absent").with_remedy(remedy))
        };
        let other_number = || {
            let mut failure = Failure::usage("8 permits");
            failure.advice = Some(Advice::to_resize(name.clone(), 9));
            failure
        };
        let drop = Some("DROP TABLE distributed_queue");
        for (failure, backend, config, says) in [
            (busy(), None, None, "`distlock inspect 'a`b'`"),
            (
                busy(),
                Some("sqlite:/a b.db"),
                None,
                "`distlock inspect 'a`b' --backend 'sqlite:/a b.db'`",
            ),
            (
                busy(),
                Some("redis://u:hunter2@h"),
                Some("x.toml"),
                "`distlock inspect 'a`b' --config x.toml --backend 'redis://u:***@h'`",
            ),
            (
                other_number(),
                Some("redis://h"),
                None,
                "permits; `distlock resize 'a`b' --permits 9 --backend redis://h` changes it",
            ),
            (absent(None), None, None, "absent; run `distlock migrate`"),
            (
                absent(None),
                Some("mysql://bob:hunter2@h/d"),
                None,
                "absent; run `distlock migrate --backend 'mysql://bob:***@h/d'`",
            ),
            (
                absent(drop),
                None,
                Some("x.toml"),
                "absent; run `DROP TABLE distributed_queue` on the database and then run \
                 `distlock migrate --config x.toml`",
            ),
        ] {
            let said = advised(failure, backend, config);
            assert!(said.ends_with(says), "{said}");
        }
        let global = Global {
            system: true,
            records: Some("mysql://bob:hunter2@h/d".to_owned()),
            ..Global::default()
        };
        let said = add_store_flags(absent(None), &global).to_string();
        let says = "run `distlock migrate --system --records 'mysql://bob:***@h/d'`";
        assert!(said.ends_with(says), "{said}");
    }
}
