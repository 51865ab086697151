//! Every statement that is sent in normal operation.
//!
//! Statements are text without parameters, except those that are [`prepared`](super::prepared): all values are numbers or
//! hexadecimal literals (see [`literals`](super::literals)), so that no mode, quoting style or character set of the server
//! changes their meaning, and several statements travel in one round trip. Each answers for itself: how many rows it matched, and what it gave to `LAST_INSERT_ID`, which comes back
//! in the same packet.
//!
//! Now is the server's UTC clock as it was when the statement began, so a lease that was waited for counts from before. A
//! statement that nobody waits for any more may still stand before a row that somebody has locked, and come to it with a time
//! that has long passed: it must not cut what its lock's holder was told since. So who takes a lock that is its own already
//! only ever adds to the lease, and a renewal, which may be meant to shorten it, counts from when it has the row.

mod batches;
mod changes;
mod expressions;
mod inventory;
mod literals;
mod prepared;
mod queries;
mod queue;
mod reaping;
mod set;

pub(crate) use self::{
    expressions::{BATCH_NOW, NOW, SET_BATCH_NOW, WANTED},
    prepared::{MOST, PreparedQuery, PreparedStatements},
    queries::Range,
    reaping::PAGE,
    set::Statements,
};
