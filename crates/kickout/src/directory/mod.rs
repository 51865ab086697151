//! The session directory: the records in the store.

pub(crate) mod store;
