//! Redis Sentinel: which server is the primary, as a majority of the sentinels says.

mod last_majority;
mod rounds;
mod sentinel;
mod votes;

pub(crate) use self::{last_majority::LastMajority, rounds::Sentinels};
