//! Finding the primary that serves a key, asking it, and asking again.

mod exchange;
mod topology;

pub(crate) use self::{
    exchange::{Call, Heard},
    topology::{NoOlder, Opening, Primaries, Router},
};
