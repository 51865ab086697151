//! Parsers of this crate for the repository's fuzz targets. They are no part of its interface.

use distlock_core::Result;

use crate::{Registry, Target};

/// Reads a URL and its options as [`open`](crate::open) does, and opens nothing.
///
/// # Errors
/// As [`open`](crate::open), as far as no server is needed to find them.
pub fn target(target: &Target) -> Result<()> {
    Registry::builtin().drivers().check(target)
}
