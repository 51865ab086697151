//! A cache whose hot values are loaded by one caller of all processes.
//!
//! # What it promises
//!
//! - When a value has expired, one caller of all processes loads it. Within a process the callers
//!   share one load; the lock's holder loads for all processes. When the loader dies, another one
//!   loads after the lock's lease.
//! - A value that was loaded earlier never replaces one that was loaded under a later lock, and is
//!   never stored after a [`delete`](CacheGuard::delete), however late its loader continues.
//! - A hit costs one request to the cache, and no lock.
//!
//! # What breaks it
//!
//! - A cache that forgets its floors (an eviction, a failover to a replica that lagged behind)
//!   stores the next value, even an old value.
//! - A lock's store that forgot its tokens grants lower tokens. The cache then refuses all values
//!   until the floors have expired.
//! - Loaders of several processes that wait for each other: nobody sees the circle, so their
//!   callers get an error only after [`Settings::wait`]. Within one process the error comes at
//!   once.
//! - [`Fallback::Load`]: a caller that has waited long enough loads the value too, at the same time
//!   as the holder of the lock.
//!
//! Sources: memcached's leases (Nishtala et al., "Scaling Memcache at Facebook", 2013) for refusing
//! late values; Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede
//! Prevention", 2015 (XFetch), for early loads.

mod cache;
mod guard;
mod memory;
mod nesting;
mod records;
#[cfg(feature = "redis")]
mod redis;
mod settings;

#[cfg(feature = "redis")]
pub use self::redis::RedisCache;
pub use self::{
    cache::{Cache, Found, Loaded, Mark, Seen},
    guard::{CacheGuard, Value},
    memory::MemoryCache,
    records::RecordsCache,
    settings::{Fallback, Settings},
};
