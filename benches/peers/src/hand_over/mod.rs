//! Passes one lock on between processes. Measures the time from a release to the next grant, beside
//! the time of one round trip to the server. On Postgres and MySQL it also measures one durable
//! change of a row, because each grant is such a change there. On MySQL each release is one as
//! well.

mod raw;
mod results;
mod run;
mod worker;

pub(crate) use run::{Contention, run};
pub(crate) use worker::run_worker;
