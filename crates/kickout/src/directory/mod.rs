//! The session directory: the records in the store.
//!
//! This module turns values of the model into records, and records into values. The module never
//! decides about sessions.

pub(crate) mod accounts;
pub(crate) mod records;
