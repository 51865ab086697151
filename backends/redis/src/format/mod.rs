//! The stored format: keys, and the values under them.

pub(crate) mod names;
pub(crate) mod value;
