//! The stores that a run breaks. Each store is started for one run and removed after it; a run must
//! never touch a store that it has not started.

mod administration;
mod cluster;
mod ensemble;
mod independent;
mod kinds;
mod leader;
mod running;
mod sentinels;

pub(crate) use self::{
    kinds::StoreKind,
    leader::{FormerLeader, LeaderRemoval},
    running::{PausedServer, RunningStore, target},
};
