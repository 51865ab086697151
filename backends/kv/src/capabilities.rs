//! The capabilities of a lock over records.

use std::{collections::BTreeMap, time::Duration};

use distlock_core::{Capabilities, Reach, sync::Mutex};

/// TTL of a request that names none. After a holder dies, others wait up to this long for its lock.
const DEFAULT_TTL: Duration = Duration::from_secs(5);

/// A backend's name is a `&'static str`. Each name is leaked once in a process and kept in this
/// map.
static NAMES: Mutex<BTreeMap<&'static str, &'static str>> = Mutex::new(BTreeMap::new());

/// Returns the name for locks over the records of `backend`: `kv+redis` for `redis`.
fn kv_name(backend: &'static str) -> &'static str {
    let mut names = NAMES.lock();
    names
        .entry(backend)
        .or_insert_with(|| Box::leak(format!("kv+{backend}").into_boxed_str()))
}

/// Returns the capabilities when only the name of the inner backend is known. The other values are
/// the defaults, which fit a server that outlives this process.
pub(crate) fn over_records_of(backend: &'static str) -> Capabilities {
    let mut capabilities = Capabilities::new(kv_name(backend));
    capabilities.default_ttl = DEFAULT_TTL;
    capabilities
}

/// Returns the capabilities over the records of a store. `inner` are those of the store's own
/// locks.
pub(crate) fn over_store(inner: &Capabilities) -> Capabilities {
    let mut capabilities = over_records_of(inner.backend);
    capabilities.reach = inner.reach;
    capabilities.expiry_clock = inner.expiry_clock;
    capabilities.survives_restart = inner.reach != Reach::Process;
    capabilities
}
