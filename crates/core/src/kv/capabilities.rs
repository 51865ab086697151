//! The capabilities of a lock over records.
//!
//! Invariant: the values depend on the backend's name alone, because records tell nothing else
//! about their store.

use std::time::Duration;

use crate::contract::capabilities::{Capabilities, ExpiryClock, Reach};

/// The capabilities for the backend of this name. An unknown backend gets the values of a network
/// store.
pub(super) fn of(backend: &str) -> Capabilities {
    let (name, reach, clock) = match backend {
        "memory" => ("kv+memory", Reach::Process, ExpiryClock::Host),
        "sqlite" => ("kv+sqlite", Reach::Host, ExpiryClock::Host),
        "mysql" => ("kv+mysql", Reach::Network, ExpiryClock::Server),
        "postgres" => ("kv+postgres", Reach::Network, ExpiryClock::Server),
        "redis" => ("kv+redis", Reach::Network, ExpiryClock::Server),
        "zookeeper" => ("kv+zookeeper", Reach::Network, ExpiryClock::Server),
        "etcd" => ("kv+etcd", Reach::Network, ExpiryClock::Server),
        "remote" => ("kv+remote", Reach::Network, ExpiryClock::Server),
        _ => ("kv", Reach::Network, ExpiryClock::Server),
    };
    let mut capabilities = Capabilities::new(name);
    capabilities.default_ttl = Duration::from_secs(5);
    capabilities.reach = reach;
    capabilities.expiry_clock = clock;
    capabilities.survives_restart = reach != Reach::Process;
    capabilities
}
