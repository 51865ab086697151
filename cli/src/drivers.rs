//! Opens stores with the drivers of this process, and closes them.
//!
//! The drivers are set once, before anything else runs: every part of the tool opens stores, and
//! all parts must open the same kinds of stores.

use std::sync::OnceLock;

use distlock::{Migrated, Registry, Result, Store, Target};

use crate::output::{self, format_seconds};

/// The drivers, once they are set.
static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// Sets the drivers. A second call changes nothing.
pub(crate) fn set_registry(registry: Registry) {
    let _ = REGISTRY.set(registry);
}

/// The drivers of this process: those that were set, or the built-in drivers of the library.
pub(crate) fn registry() -> &'static Registry {
    REGISTRY.get_or_init(Registry::builtin)
}

/// Opens a store.
pub async fn open(target: impl Into<Target>) -> Result<Store> {
    registry().open(target).await
}

/// Closes a store, and warns of the locks that it may still hold. The close repeats a release while
/// the store is away, within its bound, so that a command that ended at that moment does not keep
/// its lock for the whole TTL.
pub(crate) async fn close(store: &Store) {
    store.close().await;
    for lock in store.unreleased() {
        let held = match lock.ends_in.is_zero() {
            true => "has ended by itself".to_owned(),
            false => format!("stays held for about {} more", format_seconds(lock.ends_in)),
        };
        let why = lock.error.map(|error| format!(": {error}"));
        output::print_message(format_args!(
            "warning: {:?} could not be released, and {held}{}",
            lock.name,
            why.unwrap_or_default()
        ));
    }
}

/// Creates the missing tables of a store.
pub(crate) async fn migrate(target: impl Into<Target>) -> Result<Migrated> {
    registry().migrate(target).await
}
