//! The client engine: time, waiting, renewal, release and clean-up.

pub(crate) mod acquire;
pub(crate) mod bounded;
pub(crate) mod claim;
pub(crate) mod clean_up;
pub(crate) mod contended;
pub(crate) mod deadline;
pub mod hash;
pub(crate) mod jobs;
pub(crate) mod keeper;
pub(crate) mod lease_state;
pub(crate) mod lifecycle;
pub(crate) mod local_queue;
pub mod log;
pub(crate) mod meters;
pub(crate) mod min_hold;
pub(crate) mod outage;
pub(crate) mod own_connection;
pub(crate) mod parts;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod schedule;
pub(crate) mod settings;
pub(crate) mod store_queue;
pub mod threads;
pub(crate) mod ticket_steps;
pub(crate) mod unreleased;
