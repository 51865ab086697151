//! Passes one lock on between processes, or lets them share it. Measures the time from a release to
//! the next grant, beside the time of one round trip to the server. On Postgres and MySQL each
//! grant is a durable change of a row, so the run also measures one such change. On MySQL each
//! release is a durable change as well.

mod raw;
mod results;
mod run;
mod worker;

pub(in crate::peers) use raw::open_store;
pub(crate) use run::{Contention, run};
pub(crate) use worker::{Mode, run_worker};
