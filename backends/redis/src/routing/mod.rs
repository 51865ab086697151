//! Finding the primary that serves a key, asking it, and asking again.

mod call;
mod exchange;
mod primaries;
mod topology;

pub(crate) use self::{
    call::Call,
    exchange::Heard,
    primaries::{NoOlder, Opening, Primaries},
    topology::Router,
};
