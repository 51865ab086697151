//! Opens stores with the drivers of this process.
//!
//! The drivers are set once, before anything else runs: every part of the tool opens stores, and
//! all parts must open the same kinds of stores.

use std::sync::OnceLock;

use distlock::{Registry, Result, Store, Target, backend::Migrated};

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

/// Creates or upgrades the tables of a store.
pub(crate) async fn migrate(target: impl Into<Target>) -> Result<Migrated> {
    registry().migrate(target).await
}
