//! Every statement that is sent in normal operation.
//!
//! A batch is one statement over `unnest` of one array for each column. The statement first locks
//! the rows that it may change, in the order of their names, so that two batches cannot deadlock.
//! Rows that another transaction has locked are left out (`SKIP LOCKED`); afterwards, the
//! operations on these rows are sent one by one. A lone operation has the same statement over its
//! values, without that first step, and waits briefly for its row.
//!
//! After a wait for a row, a condition on the time is evaluated again: `clock_timestamp()` is the
//! time of the evaluation, and READ COMMITTED reads a changed row again.

mod changes;
mod queries;
mod set;

pub(crate) use self::set::{Sql, Statements};
