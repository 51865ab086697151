//! The list of drivers, which opens a store from its URL.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result, Store, at_most};

use crate::{Driver, Migrated, Target, TargetParts, nearest};

/// The drivers with which a program opens stores.
///
/// Errors about unknown schemes, suggestions and documentation are made from this list.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    drivers: Vec<Arc<dyn Driver>>,
    /// Schemes of optional backends, with the features of the library that add each backend to a
    /// build.
    features: Vec<(&'static str, &'static str)>,
    spawner: Spawner,
}

/// A task without a result.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts tasks that go on when their caller does not: on the calling runtime, or where
/// [`Drivers::tasks_on`] says.
#[derive(Clone)]
pub struct Spawner(Arc<dyn Fn(Task) + Send + Sync>);

impl Spawner {
    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        (self.0)(Box::pin(task));
    }
}

impl Default for Spawner {
    fn default() -> Self {
        Self(Arc::new(|task| drop(tokio::spawn(task))))
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}

impl Drivers {
    /// A list without drivers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a driver. For a scheme of several drivers, the driver that was added last is used.
    #[must_use]
    pub fn with(mut self, driver: Arc<dyn Driver>) -> Self {
        self.drivers.push(driver);
        self
    }

    /// Notes that these features of the library, separated by commas, add the driver of a scheme.
    /// The error about a missing driver names the features.
    #[must_use]
    pub fn brought_by(mut self, scheme: &'static str, features: &'static str) -> Self {
        self.features.push((scheme, features));
        self
    }

    /// For simulations: a store that is made of several stores starts no task on the calling
    /// runtime. Instead, `spawn` gets its tasks, and must have them polled. With its own clock, the
    /// simulation then controls every step.
    #[must_use]
    pub fn tasks_on(
        mut self,
        spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static,
    ) -> Self {
        self.spawner = Spawner(Arc::new(spawn));
        self
    }

    /// What starts the background tasks of the stores.
    #[must_use]
    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// The drivers, in the order in which they were added.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &dyn Driver> {
        self.drivers.iter().map(|driver| &**driver)
    }

    /// The schemes that [`Drivers::brought_by`] noted, with the features of each.
    #[must_use]
    pub fn features(&self) -> &[(&'static str, &'static str)] {
        &self.features
    }

    /// The driver for a scheme.
    #[must_use]
    pub fn of_scheme(&self, scheme: &str) -> Option<&dyn Driver> {
        let find = |is: &dyn Fn(&str) -> bool| {
            let mut latest_first = self.iter().rev();
            latest_first.find(|driver| driver.schemes().iter().any(|known| is(known)))
        };
        find(&|known| known == scheme).or_else(|| find(&|known| is_prefix(known, scheme)))
    }

    /// Opens a store, and the store of the [records](Target::records) if the target names one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the wrong URL or option; [`ErrorKind::Unsupported`] for a
    /// backend that this build does not have; [`ErrorKind::Unavailable`] when the store does not
    /// answer within the `connect_timeout`; and all other errors of the backend. No error contains
    /// a password.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open(&self, target: impl Into<Target>) -> Result<Store> {
        let mut target = target.into();
        let records = target.take_records();
        let parts = target.parts()?;
        // A wrong URL of the records is found before a server is asked.
        let records = records.map(|records| self.checked(&records)).transpose()?;
        let opening = async {
            let store = self.open_parts(parts.clone()).await?;
            store.ready().await?;
            Ok(store)
        };
        let store = in_time(limit_of(&parts), opening).await?;
        let Some(records) = records else {
            return Ok(store);
        };
        // Only the records of this store are used, so its locker, with the keeper thread, is not
        // started.
        match in_time(limit_of(&records), self.open_parts(records.clone())).await {
            Ok(records) => Ok(store.with_records_of(&records)),
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    /// The parts of a target whose URL and options are good.
    fn checked(&self, target: &Target) -> Result<TargetParts> {
        let parts = target.parts()?;
        self.check_parts(parts.clone())?;
        Ok(parts)
    }

    /// Opens the store with these parts of a target. A driver that wraps another store calls this
    /// method for the wrapped store. The time is not limited here, and the call does not wait until
    /// the locker is connected.
    ///
    /// # Errors
    /// As [`Drivers::open`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open_parts(&self, parts: TargetParts) -> Result<Store> {
        self.driver_of(&parts)?.open(parts, self).await
    }

    /// Creates a store's missing tables, and those of the store of the [records](Target::records)
    /// if the target names one.
    ///
    /// # Errors
    /// As [`Drivers::open`], and the errors of the store about its tables. The first store may be
    /// migrated then.
    ///
    /// # Cancel safety
    /// Each step is atomic. After a drop of the future, the next call does the remaining steps.
    pub async fn migrate(&self, target: impl Into<Target>) -> Result<Migrated> {
        let mut target = target.into();
        let records = target.take_records();
        let parts = target.parts()?;
        let records = records.map(|records| self.checked(&records)).transpose()?;
        let mut migrated = in_time(limit_of(&parts), self.migrate_parts(parts.clone())).await?;
        if let Some(records) = records {
            let limit = limit_of(&records);
            let other = in_time(limit, self.migrate_parts(records)).await?;
            migrated.records = Some(Box::new(other));
        }
        Ok(migrated)
    }

    /// Creates the missing tables of the store with these parts of a target, without a limit of
    /// time. A driver that wraps another store calls this method for the wrapped store.
    ///
    /// # Errors
    /// As [`Drivers::migrate`].
    ///
    /// # Cancel safety
    /// As [`Drivers::migrate`].
    pub async fn migrate_parts(&self, parts: TargetParts) -> Result<Migrated> {
        self.driver_of(&parts)?.migrate(parts, self).await
    }

    /// Checks a URL and its options without opening the store, and those of the store of the
    /// [records](Target::records).
    ///
    /// # Errors
    /// As [`Drivers::open`], for everything that can be checked without the store.
    pub fn check(&self, target: impl Into<Target>) -> Result<()> {
        let target = target.into();
        self.checked(&target)?;
        match target.records() {
            Some(records) => self.checked(records).map(drop),
            None => Ok(()),
        }
    }

    /// Checks the parts of a target, as [`Drivers::check`] does. A driver that wraps another store
    /// calls this method for the wrapped store.
    ///
    /// # Errors
    /// As [`Drivers::check`].
    pub fn check_parts(&self, parts: TargetParts) -> Result<()> {
        self.driver_of(&parts)?.check(parts, self)
    }

    fn driver_of(&self, parts: &TargetParts) -> Result<&dyn Driver> {
        let scheme = parts.scheme.as_str();
        self.of_scheme(scheme)
            .ok_or_else(|| self.unknown_scheme(parts, scheme))
    }

    fn unknown_scheme(&self, parts: &TargetParts, scheme: &str) -> Error {
        let not_built = self
            .features
            .iter()
            .find(|(known, _)| *known == scheme || is_prefix(known, scheme));
        if let Some((_, features)) = not_built {
            let what = format!("the {scheme} backend");
            return parts.unsupported(not_compiled_in(&what, features));
        }
        let mut usable: Vec<_> = self.iter().flat_map(Driver::schemes).copied().collect();
        usable.extend(self.features.iter().map(|(scheme, _)| *scheme));
        usable.sort_unstable();
        usable.dedup();
        let hint = nearest(scheme, usable.iter().copied()).map_or_else(
            || {
                let listed = usable.iter().map(|scheme| match scheme.strip_suffix('+') {
                    Some(prefix) => format!("{prefix}+URL"),
                    None => format!("{scheme}:"),
                });
                format!("known are {}", listed.collect::<Vec<_>>().join(", "))
            },
            |near| format!("did you mean {near}:?"),
        );
        parts.wrong(format_args!("unknown backend scheme \"{scheme}:\": {hint}"))
    }
}

/// Whether the driver's scheme `known` ends with `+`, and `scheme` starts with `known`.
fn is_prefix(known: &str, scheme: &str) -> bool {
    known.ends_with('+') && scheme.len() > known.len() && scheme.starts_with(known)
}

/// Bounds all steps of opening a store together by the option `connect_timeout`.
async fn in_time<T>(
    (clock, limit, masked_url): (Arc<dyn Clock>, Duration, String),
    opening: impl Future<Output = Result<T>>,
) -> Result<T> {
    // Boxed, because the drivers' futures are large, and the futures of all callers would contain
    // them.
    at_most(&*clock, limit, Box::pin(opening))
        .await
        .unwrap_or_else(|| {
            let late = format!("{masked_url} did not answer within {limit:?} (connect_timeout)");
            Err(Error::new(ErrorKind::Unavailable, late))
        })
}

fn limit_of(parts: &TargetParts) -> (Arc<dyn Clock>, Duration, String) {
    let url = parts.masked_url().to_owned();
    (Arc::clone(&parts.clock), parts.connect_timeout, url)
}

/// The sentence of the error about the part `what` that this build does not have, and that these
/// `features` of the library add. The features are separated by commas (`redis,tls`). The
/// command-line tool always has every backend, so the sentence mentions the tool only for features
/// that the tool also has.
///
/// The crates are not published, so the sentence names the steps that work in a checkout: the line
/// for `Cargo.toml` and the command, as in the README. `tests/readme.rs` keeps the two texts equal.
#[must_use]
pub fn not_compiled_in(what: &str, features: &str) -> String {
    let listed: Vec<_> = features
        .split(',')
        .map(|name| format!("{name:?}"))
        .collect();
    let mut text = format!(
        "{what} is not compiled in: in Cargo.toml, write `distlock = {{ path = \"../distlock\", \
         features = [{}] }}`",
        listed.join(", ")
    );
    let of_the_tool = features
        .split(',')
        .find(|name| TOOL_FEATURES.contains(name));
    if let Some(feature) = of_the_tool {
        text += &format!(
            "; for the command, run `cargo install --locked --path cli --features {feature}` in \
             the checkout"
        );
    }
    text
}

/// The features of the library that the package of the command-line tool also has.
const TOOL_FEATURES: [&str; 2] = ["sasl", "tls"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_line_of_cargo_toml_and_the_command() {
        assert_eq!(
            not_compiled_in("the sqlite backend", "sqlite"),
            "the sqlite backend is not compiled in: in Cargo.toml, write `distlock = { path = \
             \"../distlock\", features = [\"sqlite\"] }`"
        );
        assert_eq!(
            not_compiled_in("TLS", "redis,tls"),
            "TLS is not compiled in: in Cargo.toml, write `distlock = { path = \"../distlock\", \
             features = [\"redis\", \"tls\"] }`; for the command, run `cargo install --locked \
             --path cli --features tls` in the checkout"
        );
    }
}
