//! The part that all handles of one store share.

pub(crate) mod connect;
mod supervisor;

pub(crate) use supervisor::{Ensemble, Handle};
