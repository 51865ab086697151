//! The parts that several backends share.

pub mod batch;
pub(crate) mod not_built;
pub(crate) mod open_flag;
pub mod panics;
pub(crate) mod password;
pub mod queue_entry;
pub mod threads;
#[cfg(feature = "tls")]
pub(crate) mod tls_files;
