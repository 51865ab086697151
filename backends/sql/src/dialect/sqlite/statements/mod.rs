//! Every statement that is sent in normal operation.
//!
//! A batch is one statement over `json_each(..)`, an array of arrays; a lone operation is a batch
//! of one. Owner ids and values travel beside it as one blob each, cut up by position, because JSON
//! cannot carry bytes.
//!
//! Common parameters: `?3` the boot's id, `?4` the time in microseconds since boot, `?5` the time
//! in microseconds since 1970.

mod changes;
mod inventory;
mod queries;
mod queue;
mod reaping;
mod set;

pub(crate) use self::set::{Sql, Statements};
