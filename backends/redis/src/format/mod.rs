//! The stored format: keys, and the values under them.

pub(crate) mod keys;
pub(crate) mod value;
