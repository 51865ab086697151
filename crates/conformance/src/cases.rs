//! The cases of the suite, one file for each property.
//!
//! Invariant: [`ALL`] lists every case once; a case that is missing there never runs.

mod cancellation;
mod closing;
mod exclusion;
mod expiry;
mod fencing;
mod handover;
mod inspect;
mod limits;
mod loss;
mod multi_lock;
mod names;
mod ownership;
mod records;
mod reentrancy;
mod release;
mod renewal;
mod shared;
mod tickets;
mod token_floor;
mod waiting;

use crate::spec::Spec;

/// All cases, grouped by property, in the order of a run.
pub(crate) const ALL: &[&[Spec]] = &[
    exclusion::CASES,
    waiting::CASES,
    cancellation::CASES,
    expiry::CASES,
    renewal::CASES,
    release::CASES,
    closing::CASES,
    loss::CASES,
    fencing::CASES,
    token_floor::CASES,
    ownership::CASES,
    reentrancy::CASES,
    handover::CASES,
    names::CASES,
    inspect::CASES,
    multi_lock::CASES,
    tickets::CASES,
    records::WRITING,
    records::READING,
    limits::CASES,
    shared::READERS_WRITERS,
    shared::PERMITS,
    shared::ENTRIES,
    shared::PROCESSES,
];
