//! Counters in a database.

mod counters;
mod statements;
mod url;

pub use counters::SqlCounters;
