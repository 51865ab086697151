//! Redis Sentinel: the choice of the primary by a majority of the sentinels.
//!
//! This folder never accepts the answer of a minority. This folder never asks over a connection
//! that locks use.

mod last_majority;
mod rounds;
mod sentinel;
mod votes;

pub(crate) use self::{last_majority::LastMajority, rounds::Sentinels};
