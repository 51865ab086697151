//! Every statement that is sent in normal operation.
//!
//! A batch is one statement over `json_each(?1)`, an array of arrays. Owner ids and values travel
//! beside it as one blob each, cut up by position, because JSON cannot carry bytes. The two most
//! frequent statements take an array of names instead, and the rest by position too: reading a
//! row's array anew for each of its columns costs more than changing the row.
//!
//! Common parameters: `?3` the boot's id, `?4` the time in microseconds since boot, `?5` the time
//! in microseconds since 1970.

mod changes;
mod inventory;
mod queries;
mod queue;
mod reaping;
mod set;
mod sources;

pub(crate) use self::set::{Sql, Statements};
