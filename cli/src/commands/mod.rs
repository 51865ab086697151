//! One file per command.

pub(crate) mod acquire;
pub(crate) mod completions;
pub(crate) mod conformance;
pub(crate) mod conformance_worker;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod fence;
pub(crate) mod force_release;
pub(crate) mod gateway;
pub(crate) mod inspect;
pub(crate) mod jobs;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod quorum;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod resize;
pub(crate) mod ring;
pub(crate) mod run;
pub(crate) mod serve;
mod ticket;
