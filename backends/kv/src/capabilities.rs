//! The capabilities of a lock over records.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{Capabilities, Reach};

/// The TTL of a caller that names none: a holder that dies costs the others this long.
const DEFAULT_TTL: Duration = Duration::from_secs(5);

/// Names of backends are static texts. Each of them is made once in a process.
static NAMES: Mutex<BTreeMap<&'static str, &'static str>> = Mutex::new(BTreeMap::new());

/// The name of the backend over the records of another one: `kv+redis` over `redis`.
fn name_over(backend: &'static str) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names
        .entry(backend)
        .or_insert_with(|| Box::leak(format!("kv+{backend}").into_boxed_str()))
}

/// The capabilities over records of a backend of which nothing but its name is known. The values
/// are those of a server.
pub(crate) fn over_records_of(backend: &'static str) -> Capabilities {
    let mut capabilities = Capabilities::new(name_over(backend));
    capabilities.default_ttl = DEFAULT_TTL;
    capabilities
}

/// The capabilities over the records of a store whose own locks have the capabilities `inner`.
pub(crate) fn over_store(inner: &Capabilities) -> Capabilities {
    let mut capabilities = over_records_of(inner.backend);
    capabilities.reach = inner.reach;
    capabilities.expiry_clock = inner.expiry_clock;
    capabilities.survives_restart = inner.reach != Reach::Process;
    capabilities
}
