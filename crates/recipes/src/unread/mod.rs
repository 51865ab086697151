//! Unread counters: how many messages of a conversation a user has not read, and of all of them.
//!
//! # What they promise
//!
//! - A user's total is the sum of the user's conversations whenever no change is under way,
//!   whatever crashed, failed or raced before: a change of the two counters is seen as a whole or
//!   not at all.
//! - [`increment`](UnreadCounters::increment) and [`clear`](UnreadCounters::clear) of one user come
//!   one after the other, as if each had been alone.
//! - A change is begun anew at most [`TRIES`] times when others are in between, and each time is
//!   counted.
//!
//! Cures for the two failures of counters that are written one by one (the second write fails;
//! an increment comes between the read and the write of a clear), equal in result:
//!
//! | | cure | store |
//! |---|---|---|
//! | [`LockedCounters`] | the user's lock around a journalled change | every store |
//! | [`OptimisticCounters`] | the same change without a lock: compare and swap | every store |
#![cfg_attr(
    feature = "redis",
    doc = "| [`RedisCounters::watching`] | `WATCH`, `MULTI`, `EXEC` | one Redis server |"
)]
#![cfg_attr(
    feature = "redis",
    doc = "| [`RedisCounters::scripted`] | a script | one Redis server |"
)]
#![cfg_attr(
    feature = "sql",
    doc = "| [`SqlCounters`] | a transaction | SQLite, MySQL, MariaDB, Postgres |"
)]
//!
//! # What breaks them
//!
//! - A store that forgets what it had acknowledged forgets changes. Where it can forget one of two
//!   records and keep the other (eviction, a failover in the middle), the journal finds that out
//!   only if it is the journal that was kept.
//! - Somebody who writes the counters by another way.
//! - [`ErrorKind::OutcomeUnknown`](distlock_core::ErrorKind::OutcomeUnknown) means that the change is made or not; whoever repeats it may
//!   count a message twice.

mod counter;
mod journal;
mod journalled;
#[cfg(feature = "redis")]
mod redis;
mod retries;
#[cfg(feature = "sql")]
mod sql;

#[cfg(feature = "redis")]
pub use self::redis::RedisCounters;
#[cfg(feature = "sql")]
pub use self::sql::SqlCounters;
pub use self::{
    counter::{Counter, MOST, Unread, UnreadCounters},
    journalled::{LockedCounters, OptimisticCounters},
    retries::TRIES,
};
