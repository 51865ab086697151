//! The session directory: the records in the store.

pub(crate) mod access;
pub(crate) mod accounts;
pub(crate) mod bans;
pub(crate) mod marks;
pub(crate) mod old_notes;
pub(crate) mod roster;
