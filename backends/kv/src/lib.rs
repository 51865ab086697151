//! A lock over the versioned records of any store.
//!
//! `kv+URL` opens it over the store of that URL: `kv+redis://h`, `kv+sqlite:PATH`. It needs no more
//! of the store than [`Records`](distlock_core::Records) that tell their ages, so it shows what the
//! contract of records is worth, and serves stores whose own locks are not built.
//!
//! # How it arbitrates
//!
//! A lock is one record. A client reads it, decides, and writes on condition of the version that it
//! read, so exactly one of several clients gets a free or expired lock. A lease has expired when
//! the record's age, by the store's clock, reaches the TTL. The version that a grant wrote is the
//! fencing token.
//!
//! An acquire and a release cost two operations each, four a cycle, where a store's own locks cost
//! two. Waiters poll. The TTL of a caller that names none is 5 s.
//!
//! A store whose records tell no ages (ZooKeeper) is refused.
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | [`KvDriver`]: `kv+URL` | `driver` |
//! | [`KvLock`]: `DistLock` | `lock` |
//! | the records of locks in the store: read, and written on condition | `lock_records` |
//! | the stored form of a lock, and its meaning | `record` |
//! | a waiter's polls | `wait` |
//! | records of dead holders are removed | `reaper` |
//! | the promises of such a lock | `capabilities` |

mod capabilities;
mod driver;
mod lock;
mod lock_records;
mod reaper;
mod record;
mod wait;

pub use driver::KvDriver;
pub use lock::KvLock;
