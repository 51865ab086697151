//! The stored format: the names of keys, and the values under them.
//!
//! All clients of a store must agree on this format, across versions. A change here lets two
//! versions hold one lock.

pub(crate) mod keys;
pub(crate) mod value;
