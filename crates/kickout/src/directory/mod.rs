//! The session directory: the records in the store.

pub(crate) mod bans;
pub(crate) mod store;
