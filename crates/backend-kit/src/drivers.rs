//! The list of drivers, which opens a store from its URL.

use std::{future::Future, sync::Arc};

use distlock_core::{Clock, Error, ErrorKind, Result, Store};

use crate::{Driver, Migrated, Target, TargetParts, not_compiled_in, suggest::nearest};

/// The drivers with which a program opens stores.
///
/// Errors about unknown schemes, suggestions and documentation are made from this list.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    drivers: Vec<Arc<dyn Driver>>,
    /// Schemes of optional backends, with the features of the library that add each backend to a
    /// build.
    features: Vec<(&'static str, &'static str)>,
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

    /// Opens a store.
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
        let parts = target.into().parts()?;
        let limit = Limit::of(&parts);
        limit
            .bound(async {
                let store = self.open_parts(parts).await?;
                store.ready().await?;
                Ok(store)
            })
            .await
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

    /// Creates or upgrades a store's tables.
    ///
    /// # Errors
    /// As [`Drivers::open`], and the errors of the store about its tables.
    ///
    /// # Cancel safety
    /// Each step is atomic. After a drop of the future, the next call does the remaining steps.
    pub async fn migrate(&self, target: impl Into<Target>) -> Result<Migrated> {
        let parts = target.into().parts()?;
        Limit::of(&parts).bound(self.migrate_parts(parts)).await
    }

    /// Creates or upgrades the tables of the store with these parts of a target, without a limit of
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

    /// Checks a URL and its options without opening the store.
    ///
    /// # Errors
    /// As [`Drivers::open`], for everything that can be checked without the store.
    pub fn check(&self, target: impl Into<Target>) -> Result<()> {
        self.check_parts(target.into().parts()?)
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

/// The time limit on opening a store, for all steps together.
struct Limit {
    clock: Arc<dyn Clock>,
    time: std::time::Duration,
    masked_url: String,
}

impl Limit {
    fn of(parts: &TargetParts) -> Self {
        Self {
            clock: Arc::clone(&parts.clock),
            time: parts.connect_timeout,
            masked_url: parts.masked_url().to_owned(),
        }
    }

    async fn bound<T>(self, opening: impl Future<Output = Result<T>>) -> Result<T> {
        // Boxed, because the drivers' futures are large, and the futures of all callers would
        // contain them.
        let opening = Box::pin(opening);
        tokio::select! {
            biased;
            done = opening => done,
            () = self.clock.sleep(self.time) => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} did not answer within {:?} (connect_timeout)",
                    self.masked_url, self.time
                ),
            )),
        }
    }
}
