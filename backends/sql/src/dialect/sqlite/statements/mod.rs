//! Every statement that is sent in normal operation.
//!
//! A batch is one statement over `json_each(..)` of an array of arrays. A lone operation is a batch
//! of one operation. JSON cannot contain bytes; so all owner ids are sent as one blob and all
//! values as another blob, and the statement cuts each id or value out by its position.
//!
//! Common parameters: `?3` the boot's id, `?4` the time in microseconds since boot, `?5` the time
//! in microseconds since 1970.

mod changes;
mod queries;
mod set;

pub(crate) use self::set::{Sql, Statements};
