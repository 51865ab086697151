//! Unread counters: the number of unread messages of each conversation of a user, and the total of
//! all conversations of the user.
//!
//! # What they promise
//!
//! - A user's total is the sum of the user's conversations whenever no change is under way,
//!   whatever crashed, failed or raced before. Readers see a change of the two counters as a whole
//!   or not at all.
//! - [`increment`](UnreadCounters::increment) and [`clear`](UnreadCounters::clear) of one user take
//!   effect one after the other, as if each call ran alone.
//! - A change is attempted at most [`TRIES`] times when other clients write in between. Each
//!   repetition is counted.
//!
//! Without a remedy, a client that writes the two counters one after the other can break the sum in
//! two ways: its second write fails, or an increment comes between the read and the write of a
//! clear. These remedies have equal results:
//!
//! | | remedy | store |
//! |---|---|---|
//! | [`LockedCounters`] | the user's lock around a journalled change | every store |
//! | [`OptimisticCounters`] | the same change without a lock: compare-and-swap | every store |
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
//! - A store that forgets acknowledged writes forgets changes. Where the store can forget one of
//!   two records and keep the other (eviction, a failover in the middle), a client can notice the
//!   loss only if the store kept the journal.
//! - A client that writes the counters in another way.
//! - [`ErrorKind::OutcomeUnknown`](distlock_core::ErrorKind::OutcomeUnknown) means that the change
//!   may have been made. A caller that repeats it may count a message twice.

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
