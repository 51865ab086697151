//! The stores that are broken: each is started for one run, and is gone after it.

mod administration;
mod cluster;
mod ensemble;
mod kinds;
mod leader;
mod leader_change;
mod running;
mod sentinels;

pub(crate) use self::{
    kinds::StoreKind,
    leader::{FormerLeader, LeaderRemoval},
    running::{PausedServer, RunningStore},
};
