//! Every statement that is sent in normal operation.
//!
//! A batch is one statement over `unnest` of one array for each column. It first locks the rows
//! that it may change, in the order of their names, so that no two batches wait for each other in a
//! circle. It leaves out rows that others have locked (`SKIP LOCKED`): those operations are sent
//! one by one afterwards. A single operation is the same statement over its values, without that
//! first step: it waits a little for its row.
//!
//! A condition on the time is evaluated again after a wait for a row: `clock_timestamp()` is the
//! time of evaluation, and at READ COMMITTED a changed row is read again.

mod changes;
mod inventory;
mod queries;
mod queue;
mod reaping;
mod set;
mod templates;

pub(crate) use self::set::{Sql, Statements};
