//! Parsers of this crate for the repository's fuzz targets. This module is not part of the public
//! interface.

use distlock_core::Result;

use crate::{Registry, Target};

/// Reads a URL and its options as [`open`](crate::open) does, without opening a store.
///
/// # Errors
/// The errors of [`open`](crate::open) that can be found without a server.
pub fn target(target: &Target) -> Result<()> {
    Registry::builtin().drivers().check(target)
}
