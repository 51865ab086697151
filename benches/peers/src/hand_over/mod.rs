//! Passes one lock on between processes. It measures the time from a release to the next grant,
//! beside one round trip to the server. Where a grant is a durable change, it also measures one
//! such change; except on Postgres, a release is one as well.

mod raw;
mod results;
mod run;
mod worker;

pub(crate) use run::{Contention, run};
pub(crate) use worker::run_worker;
