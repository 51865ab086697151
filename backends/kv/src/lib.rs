//! A lock over the versioned records of any store.
//!
//! The URL `kv+redis://h` opens a lock over the records of `redis://h`. The store must offer
//! [`Records`](distlock_core::Records) and report the age of each record. This backend shows that
//! the contract of records is enough for a lock. This backend also serves a store for which no
//! locks are built.
//!
//! # Algorithm
//!
//! A lock is one record. A client reads the record and decides. Then it writes on condition that
//! the record still has the version that was read, so exactly one of several clients gets a free or
//! expired lock. A lease has expired when the record's age, by the store's clock, reaches the TTL.
//! The version that a grant wrote is the fencing token.
//!
//! An acquire costs two operations of the store, and so does a release. A store's own locks cost
//! one each. Waiters poll. The TTL of a request that names none is 5 s.
//!
//! A store that reports no age of its records (ZooKeeper) is refused.
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | [`KvDriver`]: `kv+URL` | `driver` |
//! | [`KvLock`]: `DistLock` | `lock` |
//! | records of locks: read, and written on condition of the version | `lock_records` |
//! | the stored form of a lock, and its meaning | `record` |
//! | the polls of a waiter | `wait` |
//! | the removal of records whose lease expired long ago | `reaper` |
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
