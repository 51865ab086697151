//! The queue of one lock.

pub(crate) mod look;
pub(crate) mod recipe;
pub(crate) mod warden;
